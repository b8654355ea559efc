"""The proof that a staged snapshot shares nothing with anything live.

A snapshot is bytes in an arena that only this package writes, and a skeleton of values that were copied. That
leaves two ways in which it could still change, or have changed while it was taken: a source that lies in the
arena itself, and a source in memory that another process, or another mapping of the same file, can write.
Both are questions about address ranges, and the kernel answers them: /proc/self/maps, proc_pid_maps(5).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

from milepost.engines.formats.skeleton import Live
from milepost.engines.memory import Arena

_MAPS = Path("/proc/self/maps")


@frozen
class Proven:
    """The snapshot is CPU-only and shares no memory with live state."""


@frozen
class Unproven:
    """The snapshot may share memory; `reason` names the leaf. The caller saves synchronously instead."""

    reason: str


Proof = Proven | Unproven


@frozen(order=True)
class _Range:
    start: int
    end: int
    what: str


def prove(sources: Iterable[Live], *, arena: Arena) -> Proof:
    """Check every source's address range against the arena and against all shared or file-backed memory."""
    try:
        suspects = _foreign()
    except OSError as error:
        return Unproven(f"the kernel does not say which memory is shared ({error})")
    suspects.append(_Range(arena.address, arena.address + arena.size, "the staging arena itself"))
    suspects.sort()
    starts = [suspect.start for suspect in suspects]
    for live in sources:
        if live.address is None or not live.size:
            continue
        nearest = bisect_right(starts, live.address + live.size - 1) - 1
        if nearest >= 0 and suspects[nearest].end > live.address:
            return Unproven(f"{live.path} lies in {suspects[nearest].what}")
    return Proven()


def _foreign() -> list[_Range]:
    """The mappings of this process that are shared or backed by a file; disjoint, as mappings are."""
    found = []
    for line in _MAPS.read_text(errors="replace").splitlines():
        place, rights, _, _, inode, *name = line.split(maxsplit=5)
        if "s" in rights or inode != "0":
            start, end = (int(part, 16) for part in place.split("-"))
            what = f"memory that others can change ({name[0] if name else 'shared, anonymous'})"
            found.append(_Range(start, end, what))
    return found
