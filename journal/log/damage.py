"""What may be found in a log, as a table: one row per finding, what it means, and what to do next.

`torn` is what a crash leaves: set aside, gone on from, said so. Everything else is refused, because going on would
mean to forget something that may have been acknowledged, or to believe something that was not.

The rule for a bad line (one that is not whole: a sum that differs, NULs, no newline, more than 1 MiB):

                             nobody names it    a later entry of the      a witness names it
                             as synced          segment names it synced   or a later entry
    in a segment that no
    valid header closes      torn-tail          synced-line               witnessed-line
    its first line there     half-born          headless (any entry)      witnessed-line
    within the valid length
    of a closed segment      closed-line        closed-line               closed-line

Lines that were written and not synced may survive a power loss out of order, a later page without an earlier one.
So a whole line behind a bad one condemns the log only if its writer knew, when it wrote it, that the bad one was
durable. A header is durable before anything follows it, so any whole line behind a bad header does.
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from milepost.transitions.errors import Corrupt


class Verdict(Enum):
    """The class of a finding."""

    TORN = "torn"
    CORRUPT = "corrupt"
    LOST = "lost"
    NEWER = "newer"


@frozen(kw_only=True)
class Row:
    """One row of the table. `code` is stable: people and scripts may look for it."""

    code: str
    verdict: Verdict
    meaning: str
    action: str


_RESTORE = (
    "keep the journal as it is, bring this segment back from a copy (the archive, a snapshot of the disk), "
    "or resume from a published checkpoint in a new run"
)

TORN_TAIL = Row(
    code="torn-tail",
    verdict=Verdict.TORN,
    meaning=(
        "The last segment ends in bytes that are no entry, and nobody knew them to be durable: a writer was "
        "killed or the power failed before a sync. Nothing of it was acknowledged. With a bad line goes all "
        "that follows it."
    ),
    action="nothing: the next writer notes where the valid part ends and leaves the bytes as evidence",
)
HALF_BORN = Row(
    code="half-born",
    verdict=Verdict.TORN,
    meaning=(
        "A segment was claimed and its header is torn: its writer died before it owned the run. It closes "
        "nothing, and no entry of it exists."
    ),
    action="nothing: the next writer's header says that it is empty",
)
SYNCED_LINE = Row(
    code="synced-line",
    verdict=Verdict.CORRUPT,
    meaning=(
        "A line is bad, and a later entry of the same writer says that it was durable: it was damaged afterwards."
    ),
    action=_RESTORE,
)
HEADLESS = Row(
    code="headless",
    verdict=Verdict.CORRUPT,
    meaning=(
        "A segment's header is bad, and an entry follows it: a header is durable before anything is written "
        "behind it, so it was damaged afterwards. What it said of the segments before it is gone with it."
    ),
    action=_RESTORE,
)
WITNESSED_LINE = Row(
    code="witnessed-line",
    verdict=Verdict.CORRUPT,
    meaning=(
        "The log ends in bytes that are no entry, and a checkpoint's manifest knows that there was one: it "
        "was durable before the manifest, so it was damaged afterwards."
    ),
    action=_RESTORE,
)
CLOSED_LINE = Row(
    code="closed-line",
    verdict=Verdict.CORRUPT,
    meaning=(
        "A line is bad within the length that the segment's successor states as valid. Who stated it had "
        "read the line and made it durable, so it was damaged afterwards."
    ),
    action=_RESTORE,
)
CLOSED_OTHERWISE = Row(
    code="closed-otherwise",
    verdict=Verdict.CORRUPT,
    meaning=(
        "A segment does not end as its successor's header states: it is missing, shorter, or its last entry "
        "is another one."
    ),
    action=_RESTORE,
)
UNCLOSED = Row(
    code="unclosed",
    verdict=Verdict.CORRUPT,
    meaning=(
        "A segment lies before a valid header and no header says where it ends. A header lists every "
        "segment that is not closed yet: this one was put there from elsewhere."
    ),
    action="move the segment out of the journal's folder, keep it, and find out where it came from",
)
MISPLACED = Row(
    code="misplaced",
    verdict=Verdict.CORRUPT,
    meaning=(
        "A segment begins with an entry that is not the header of this segment: the file was renamed, "
        "copied, or cut at its beginning. Or its header closes a segment that is closed already, or that "
        "comes after it."
    ),
    action=_RESTORE,
)
GAP = Row(
    code="gap",
    verdict=Verdict.CORRUPT,
    meaning=(
        "A whole entry follows that is not the next one: entries are missing, doubled or out of order (INV-09)."
    ),
    action=_RESTORE,
)
SPLICED = Row(
    code="spliced",
    verdict=Verdict.CORRUPT,
    meaning="An entry has the next seq and does not continue this chain: it belongs to another log.",
    action=_RESTORE,
)
UNREADABLE = Row(
    code="unreadable",
    verdict=Verdict.CORRUPT,
    meaning=("An entry is whole, and what it holds is not what a record of its kind holds. Its writer was faulty."),
    action="keep the journal and report it: this is a defect of the program that wrote the entry",
)
ILLEGAL = Row(
    code="illegal",
    verdict=Verdict.CORRUPT,
    meaning="An entry is whole, and its record cannot follow the ones before it. Its writer was faulty.",
    action="keep the journal and report it: this is a defect of the program that wrote the entry",
)
WITNESS_DIFFERS = Row(
    code="witness-differs",
    verdict=Verdict.CORRUPT,
    meaning=(
        "A checkpoint's manifest was sealed when the log had another entry at this place: journal and "
        "checkpoint are not of one run, or one of them was rewritten."
    ),
    action="find out which of the two was replaced; do not resume from either before that",
)
LOST_HEAD = Row(
    code="lost-head",
    verdict=Verdict.LOST,
    meaning=(
        "The log is whole as far as it goes, and it ends before an entry that a checkpoint's manifest saw durable."
    ),
    action="bring back the newest segment from a copy, or resume from that checkpoint in a new run",
)
NEWER = Row(
    code="newer",
    verdict=Verdict.NEWER,
    meaning="An entry is whole and was written by a newer milepost.",
    action="read this journal with the milepost that wrote it, or a later one",
)

TABLE: tuple[Row, ...] = (
    TORN_TAIL,
    HALF_BORN,
    SYNCED_LINE,
    HEADLESS,
    WITNESSED_LINE,
    CLOSED_LINE,
    CLOSED_OTHERWISE,
    UNCLOSED,
    MISPLACED,
    GAP,
    SPLICED,
    UNREADABLE,
    ILLEGAL,
    WITNESS_DIFFERS,
    LOST_HEAD,
    NEWER,
)


@frozen(kw_only=True)
class Finding:
    """A row of the table, met at a place.

    `offset` is in bytes from the segment's start; `seq` is the entry that should be there, 0 where that is unknown;
    `where` names the segment for people.
    """

    row: Row
    segment: int
    where: str
    offset: int
    seq: int
    expected: str
    found: str

    def __str__(self) -> str:
        entry = f", entry {self.seq}" if self.seq else ""
        return (
            f"{self.row.code}: {self.where}, byte {self.offset}{entry}: expected {self.expected}, "
            f"found {self.found}. {self.row.meaning} Next: {self.row.action}."
        )


class Damaged(Corrupt):
    """The log is refused; `finding` says why. (A `newer` finding is raised as `NewerVersion` instead.)"""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding
