"""The data source's cursor in data.pt, and when it may continue.

    data.cursor_resume   the source continues exactly, or
    auto                 restarts with a note: no cursor saved, no source here, a source without state or that cannot
                         be compared, another world size. A malformed cursor or another source is refused.
    strict               refuses: at the save where the source has no state, at the restore for every reason above
    off                  is neither saved nor restored

A source is Stateful. Its identity is its class, the world size, and `fingerprint()` where it offers that: a text
that is equal exactly when the order and content of what it yields are. All of this is decided before anything
live is touched.

Source: the checkpointing contract, "Preference-data cursor".
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from milepost.engines.trainers.protocols import CursorResume, RestoreSource, Stateful, Tree
from milepost.engines.trainers.saved import Saved, require_format
from milepost.transitions.errors import MilepostError, NotResumable, Refused

FORMAT = "milepost.data.v1"


@runtime_checkable
class Fingerprinted(Protocol):
    """A data source that can prove that it is the same source."""

    def fingerprint(self) -> str: ...


def save_cursor(data: object, *, cursor_resume: CursorResume) -> Tree | None:
    """The tree of data.pt, or None where there is none to save."""
    if cursor_resume == "off":
        return None
    if not isinstance(data, Stateful):
        if cursor_resume == "strict":
            raise Refused(
                f"data.cursor_resume=strict and {_unsupported(data)}; give a source with state_dict() and "
                "load_state_dict(), or set data.cursor_resume=auto"
            )
        return None
    return {"format": FORMAT, "identity": _identity(data, world_size=1), "cursor": data.state_dict()}


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
    require_format(saved, expected=FORMAT)
    cursor, identity = saved.need("cursor", dict), saved.inner("identity")
    world_size, kind = identity.count("world_size"), identity.need("class", str)
    there = identity.need("fingerprint", str) if identity.tree.get("fingerprint") is not None else None
    if not isinstance(data, Stateful):
        return f"{_unsupported(data)}: the saved data cursor is skipped"
    here = _identity(data, world_size=source.world_size)
    if kind != here["class"] or (None not in (there, here["fingerprint"]) and there != here["fingerprint"]):
        raise NotResumable(
            f"{where}: this is another data source: saved {kind} with fingerprint {there}, here {here['class']} "
            f"with {here['fingerprint']}; use the same data, or set data.cursor_resume=off to start it anew"
        )
    if there != here["fingerprint"]:
        return "only one of saved and present data source has a fingerprint: the data source restarts"
    if world_size != source.world_size:
        return f"the data cursor is of {world_size} ranks, {source.world_size} are here: the data source restarts"
    return cursor


def _identity(data: Stateful, *, world_size: int) -> Tree:
    fingerprint = data.fingerprint() if isinstance(data, Fingerprinted) else None
    return {"class": type(data).__qualname__, "fingerprint": fingerprint, "world_size": world_size}


def _unsupported(data: object) -> str:
    if data is None:
        return "the trainer has no data source"
    return f"the data source {type(data).__qualname__} has no state_dict() and load_state_dict()"
