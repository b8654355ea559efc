"""Failures that travel between processes, and the one error that several of them make.

1. An error crosses a process boundary as its kind and its text; what arrives is an error of the same kind, so that a
   caller handles it alike on every rank. A kind that is not ours arrives as `Unavailable`.
2. Of several failures the gravest kind is raised, with every failing member named: first what leaves an outcome
   unknown, then what gives a save up, then what the caller did wrong.
3. A member that was lost is a failure too, `Lost`: the crew is broken, and what was published stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from milepost.engines.checkpoints import GivenUp, Uncertain
from milepost.transitions.errors import (
    Busy,
    Corrupt,
    Fenced,
    IllegalTransition,
    Misconfigured,
    NewerVersion,
    NotResumable,
    Refused,
    Unavailable,
)


class Lost(Unavailable):
    """A member did not arrive within the time limit, or is gone: the message names it."""


@frozen(kw_only=True)
class Failure:
    """One member's failure: who, the kind of error and what it said; `code` is that of a save that was given up."""

    member: str
    kind: str
    text: str
    code: str = ""

    @classmethod
    def of(cls, error: BaseException, *, member: str) -> Failure:
        """The failure that this error is."""
        if isinstance(error, GivenUp):
            return cls(member=member, kind="GivenUp", code=error.code, text=error.detail)
        kind = next((one.__name__ for one in type(error).__mro__ if one.__name__ in _GRAVITY), "")
        text = str(error) if kind else f"{type(error).__name__}: {error}"
        return cls(member=member, kind=kind, text=text)

    @classmethod
    def lost(cls, *, member: str, why: str) -> Failure:
        """The failure that is a member's absence."""
        return cls(member=member, kind="Lost", text=why)


_GRAVITY: Mapping[str, Callable[[str], Exception]] = {
    "Fenced": Fenced,
    "Uncertain": Uncertain,
    "GivenUp": lambda text: GivenUp("rank", text),
    "IllegalTransition": IllegalTransition,
    "NewerVersion": NewerVersion,
    "Corrupt": Corrupt,
    "Busy": Busy,
    "Misconfigured": lambda text: Misconfigured((text,)),
    "NotResumable": NotResumable,
    "Refused": Refused,
    "Lost": Lost,
    "Unavailable": Unavailable,
}
"""The kinds that keep their name, the gravest first; every other error is `Unavailable` where it arrives."""


def combined(failures: Sequence[Failure]) -> Exception:
    """The one error to raise: the gravest kind, naming every member that failed."""
    grave = min(failures, key=lambda failure: _rank(failure.kind))
    text = "; ".join(f"{failure.member}: {failure.text}" for failure in failures)
    if grave.kind == "GivenUp":
        return GivenUp(grave.code, text)
    return _GRAVITY.get(grave.kind, Unavailable)(text)


def repeated(failure: Failure) -> Exception:
    """The leader's error, as it is raised in another process."""
    if failure.kind == "GivenUp":
        return GivenUp(failure.code, failure.text)
    return _GRAVITY.get(failure.kind, Unavailable)(failure.text)


def _rank(kind: str) -> int:
    kinds = list(_GRAVITY)
    return kinds.index(kind) if kind in kinds else kinds.index("Unavailable")
