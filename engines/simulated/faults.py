"""What can go wrong on purpose: errors, short writes and kills, chosen by the operation they hit.

Every call of a verb, of a sink's, a source's or a lock's method is one operation, and its index is its place in the
disk's trace. A rule sees the `Site` and answers; rules are plain functions, so a test may write its own. It is asked
while the operation is under way and must not use the disk itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TypeAlias

from attrs import frozen


class Killed(BaseException):
    """The process died here. Not an `Exception`: a killed process runs no error handling."""


@frozen(kw_only=True)
class Site:
    """Where an operation happens: its index in the trace, whose it is, the verb, and the path it names.

    The verbs are those of `Disk`; `write`, `sync` and `close` of a sink; `read_into` of a source; `release` of a
    lock. `path` is the name by which a sink, source or lock was opened; for two paths it is the target.
    """

    index: int
    process: str
    verb: str
    path: str


@frozen(kw_only=True)
class Fault:
    """The operation reports `error` (an errno: EIO, ENOSPC, EDQUOT, …).

    `done` says that it took effect nevertheless, as a rename may whose answer was lost. Otherwise nothing happened,
    except for `sync`, `sync_file`, `sync_dir` and `close`: what they should have made durable may or may not be, and
    no later sync makes it so.
    """

    error: int
    done: bool = False


FaultRule: TypeAlias = Callable[[Site], Fault | None]
ShortRule: TypeAlias = Callable[[Site, int], int]
"""How many of the bytes given a `write` takes: from one to all."""


def no_fault(_site: Site) -> Fault | None:
    return None


def fault_at(faults: Mapping[int, Fault]) -> FaultRule:
    """The operations with these indices fail."""
    return lambda site: faults.get(site.index)


def fault_on(verb: str, fault: Fault, *, nth: int = 1, path: str | None = None) -> FaultRule:
    """The `nth` operation of this verb (on this path, if given) fails, counting from one."""
    left = nth

    def rule(site: Site) -> Fault | None:
        nonlocal left
        if site.verb != verb or path not in (None, site.path):
            return None
        left -= 1
        return fault if left == 0 else None

    return rule


def whole(_site: Site, size: int) -> int:
    return size


def halves(_site: Site, size: int) -> int:
    return (size + 1) // 2


def drawn(seed: int) -> ShortRule:
    """Every write takes a random part; the same seed draws the same."""
    chance = random.Random(seed)
    return lambda _site, size: chance.randint(1, size)
