"""Every error that a caller of milepost may want to handle differently.

Messages say what was refused, what was found, and what to do next.
"""


class MilepostError(Exception):
    """The base of every error that milepost raises on purpose."""


class Refused(MilepostError):
    """The state forbids what was asked; nothing was changed."""


class Misconfigured(MilepostError):
    """One or more configuration values are wrong; `problems` names each of them."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems) if len(problems) == 1 else "\n".join(("", *problems)))


class NotResumable(MilepostError):
    """There is no checkpoint that this start may continue from, and a fresh start was not asked for."""


class NotACheckpoint(NotResumable):
    """There is nothing at this place that was ever published: not wrong bytes, and none that do not fit."""


class Busy(MilepostError):
    """Another live writer owns the run."""


class Fenced(Busy):
    """A later writer took the run over; this one may record nothing more."""


class Corrupt(MilepostError):
    """Bytes are wrong: the message says where, what was expected and what was found."""


class NewerVersion(Corrupt):
    """The bytes were written by a newer milepost; they may be fine, this version cannot tell."""


class Unavailable(MilepostError):
    """A disk or a store failed; the message says what is safe now."""


class IllegalTransition(MilepostError):
    """A record that the lifecycle's table does not have for the stage it met."""
