"""The data source's cursor in data.pt, and when it may continue.

    data.cursor_resume   the source continues exactly, or
    auto                 restarts with a note: no cursor saved, no source here, a source without state or that cannot
                         be compared, another world size. A malformed cursor or another source is refused.
    strict               refuses: at the save where the source has no state, at the restore for every reason above
    off                  is neither saved nor restored

A source is Stateful. Its identity is its class, the world size, and `fingerprint()` where it offers that: a text
that is equal exactly when the order and content of what the ranks yield together are. So it is the same on every
rank; what a rank takes of the whole is part of its cursor. All of this is decided before anything live is touched.

    data.pt   format "milepost.data.v1", identity {class, fingerprint, world_size: 1}, cursor
              format "milepost.data.v2", identity {class, fingerprint, world_size: n}, cursors: one a rank

Source: the checkpointing contract, "Preference-data cursor".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from milepost.engines.trainers.protocols import CursorResume, RestoreSource, Stateful, Tree
from milepost.engines.trainers.saved import Saved, malformed, require_format
from milepost.transitions.errors import MilepostError, NotResumable, Refused

FORMAT = "milepost.data.v1"
OF_RANKS = "milepost.data.v2"


@runtime_checkable
class Fingerprinted(Protocol):
    """A data source that can prove that it is the same source."""

    def fingerprint(self) -> str: ...


def save_cursor(data: object, *, cursor_resume: CursorResume) -> Tree | None:
    """`identity` and `cursor` of this rank's source, or None where there is none to save."""
    if cursor_resume == "off":
        return None
    if not isinstance(data, Stateful):
        if cursor_resume == "strict":
            raise Refused(
                f"data.cursor_resume=strict and {_unsupported(data)}; give a source with state_dict() and "
                "load_state_dict(), or set data.cursor_resume=auto"
            )
        return None
    return {"identity": _identity(data), "cursor": data.state_dict()}


def join_cursors(ranks: Sequence[Tree]) -> Tree | None:
    """The tree of data.pt of what each rank saved (no `cursor`: nothing), or None where none did.

    `Refused` where the ranks do not read one and the same source.
    """
    told: dict[str, list[int]] = {}
    for rank, saved in enumerate(ranks):
        told.setdefault(_told(saved.get("identity")), []).append(rank)
    if len(told) > 1:
        listed = "; ".join(f"rank {', '.join(map(str, which))}: {what}" for what, which in told.items())
        raise Refused(
            f"the ranks have different data sources: {listed}. Give every rank the same source and keep what a rank "
            "takes of it in its cursor, or set data.cursor_resume=off"
        )
    identity = ranks[0].get("identity")
    if not isinstance(identity, dict):
        return None
    identity = {**identity, "world_size": len(ranks)}
    if len(ranks) == 1:
        return {"format": FORMAT, "identity": identity, "cursor": ranks[0]["cursor"]}
    return {"format": OF_RANKS, "identity": identity, "cursors": [saved["cursor"] for saved in ranks]}


def read_cursor(source: RestoreSource, data: object, *, cursor_resume: CursorResume) -> Tree | str | None:
    """The state to load into `data`, or the reason why it restarts; None where there is nothing to say."""
    if cursor_resume == "off":
        return None if data is None else "data.cursor_resume=off: the data source restarts"
    where = f"{source.where}/data.pt"
    cursor = _compare(source, data, where=where)
    if cursor_resume == "strict" and not isinstance(cursor, dict):
        reason = cursor or "the trainer has no data source"
        raise NotResumable(f"{where}: {reason}; data.cursor_resume=strict continues only exactly: set it to auto")
    return cursor


def load_cursor(data: Stateful, cursor: Tree, *, where: str) -> None:
    """Put the cursor into the live source; what the source does not take is `NotResumable`."""
    try:
        data.load_state_dict(cursor)
    except MilepostError:
        raise
    except Exception as error:
        name = type(data).__qualname__
        raise NotResumable(f"{where}: {name} does not take its saved cursor: {error!r}") from error


def _compare(source: RestoreSource, data: object, *, where: str) -> Tree | str | None:
    if "data" not in source.names():
        return None if data is None else "no data cursor was saved: the data source restarts"
    saved = Saved.read(where, source.load("data"))
    cursors, identity = _read_cursors(saved), saved.inner("identity")
    world_size, kind = identity.count("world_size"), identity.need("class", str)
    if world_size != len(cursors):
        raise malformed(f"{identity.where}.world_size", expected=f"{len(cursors)}, as of cursors", found=world_size)
    there = identity.need("fingerprint", str) if identity.tree.get("fingerprint") is not None else None
    if not isinstance(data, Stateful):
        return f"{_unsupported(data)}: the saved data cursor is skipped"
    here = _identity(data)
    if kind != here["class"] or (None not in (there, here["fingerprint"]) and there != here["fingerprint"]):
        raise NotResumable(
            f"{where}: this is another data source: saved {kind} with fingerprint {there}, here {here['class']} "
            f"with {here['fingerprint']}; use the same data, or set data.cursor_resume=off to start it anew"
        )
    if there != here["fingerprint"]:
        return "only one of saved and present data source has a fingerprint: the data source restarts"
    if world_size != source.world_size:
        return f"the data cursor is of {world_size} ranks, {source.world_size} are here: the data source restarts"
    return cursors[source.rank]


def _read_cursors(saved: Saved) -> list[Tree]:
    """One cursor a rank, in either format."""
    if saved.tree.get("format") != OF_RANKS:
        require_format(saved, expected=FORMAT)
        return [saved.need("cursor", dict)]
    ranks = saved.need("cursors", list)
    return [Saved.read(f"{saved.where}.cursors[{rank}]", cursor).tree for rank, cursor in enumerate(ranks)]


def _identity(data: Stateful) -> Tree:
    fingerprint = data.fingerprint() if isinstance(data, Fingerprinted) else None
    return {"class": type(data).__qualname__, "fingerprint": fingerprint}


def _told(identity: object) -> str:
    if not isinstance(identity, dict):
        return "none with a state"
    return f"{identity.get('class')} with fingerprint {identity.get('fingerprint')}"


def _unsupported(data: object) -> str:
    if data is None:
        return "the trainer has no data source"
    return f"the data source {type(data).__qualname__} has no state_dict() and load_state_dict()"
