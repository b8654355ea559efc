"""What `verify` may find, as a table: one row per finding, how bad it is, and what to do next.

The rows of `damage.TABLE` are findings as well, under their own codes. A code is stable: scripts may look for it.
The effect of the worst finding decides the exit code of `verify`; the worst is first:

    effect     exit   what it means
    JOURNAL    3      the journal is refused: its entries past that place cannot be believed
    NEWER      4      written by a newer milepost: this one cannot tell
    PAYLOAD    5      a checkpoint that was promised is not whole
    LAYOUT     1      something lies, or is missing, where only milepost puts things; every checkpoint may be whole
    TORN       6      the log ends in bytes that a crash left; nothing of it was acknowledged
    NOTE       0      worth knowing and no damage
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from milepost.journal.log import damage
from milepost.journal.log.damage import Verdict


class Effect(Enum):
    """What a finding means for the run, the worst first."""

    JOURNAL = "journal"
    NEWER = "newer"
    PAYLOAD = "payload"
    LAYOUT = "layout"
    TORN = "torn"
    NOTE = "note"


EXIT_CODES = {
    Effect.JOURNAL: 3,
    Effect.NEWER: 4,
    Effect.PAYLOAD: 5,
    Effect.LAYOUT: 1,
    Effect.TORN: 6,
    Effect.NOTE: 0,
}


class Severity(Enum):
    """Whether a finding is damage, or only worth knowing."""

    DAMAGE = "damage"
    NOTE = "note"


@frozen
class Row:
    """A row of the table."""

    code: str
    effect: Effect
    action: str


@frozen(kw_only=True)
class Finding:
    """A row, met at a place. `place` is a path; `offset` counts bytes from the beginning of that file."""

    code: str
    effect: Effect
    severity: Severity
    place: str
    offset: int | None
    expected: str
    found: str
    action: str


_COPY = "bring the file back from a copy, or resume from another checkpoint by its path; nothing here was changed"
_LOOK = "find out who put it there; move it out of the run's directory"
_NOTHING = "nothing: the next start settles it"

BEING_WRITTEN = Row("being-written", Effect.NOTE, "nothing: a writer is at work; verify again once it has ended")
NOT_ENDED = Row("not-ended", Effect.NOTE, "nothing: the next start continues the run")
EMPTY_JOURNAL = Row("empty-journal", Effect.NOTE, "start the run, or look whether this is the directory you meant")
EVIDENCE_CHANGED = Row(
    "evidence-changed", Effect.NOTE, "nothing: bytes behind a segment's valid length are never read"
)
BAD_LINE = Row("bad-line", Effect.JOURNAL, "bring the segment back from a copy: this line is bad as well")
UNREADABLE_JOURNAL = Row("journal-unreadable", Effect.JOURNAL, "make the journal readable, then verify again")
NEWER_JOURNAL = Row("newer", Effect.NEWER, "read this journal with the milepost that wrote it, or a later one")

NO_JOURNAL = Row("no-journal", Effect.NOTE, "nothing, where this is a copy or an archive: it has no journal")
BAD_SLOT = Row("journal-slot", Effect.JOURNAL, "bring the object back from a copy; nothing here was changed")

POINTER_MISSING = Row("pointer-missing", Effect.LAYOUT, "nothing: the next start writes it")
POINTER_PENDING = Row("pointer-pending", Effect.NOTE, "nothing: the next start moves it")
POINTER_UNREADABLE = Row("pointer-unreadable", Effect.LAYOUT, "move it away; the next start writes it anew")
POINTER_MALFORMED = Row("pointer-malformed", Effect.LAYOUT, "nothing: the next start writes it anew")
POINTER_DANGLING = Row("pointer-dangling", Effect.LAYOUT, "nothing: the next start writes it anew")
POINTER_BEHIND = Row("pointer-behind", Effect.LAYOUT, "nothing: the next start writes it anew")

SAVE_OPEN = Row("save-open", Effect.NOTE, _NOTHING)
STAGING_LEFTOVER = Row("staging-leftover", Effect.NOTE, "nothing: the next start clears it")
POINTER_TEMPORARY = Row("pointer-temporary", Effect.NOTE, "nothing: the next start clears it")
UNKNOWN_NAME = Row("unknown-name", Effect.LAYOUT, _LOOK)
UNRECORDED = Row("unrecorded-checkpoint", Effect.LAYOUT, "resume=auto passes it over; " + _LOOK)
SYMLINK = Row("symlink", Effect.LAYOUT, "nothing here makes symlinks and none is followed: " + _LOOK)
LOOK_FAILED = Row("look-failed", Effect.LAYOUT, "make it readable, then verify again")

HALF_WRITTEN = Row("half-written", Effect.NOTE, "nothing: without a manifest no reader takes it")
ATTEMPT_LEFTOVER = Row("attempt-leftover", Effect.NOTE, "nothing: an earlier attempt at this step left it")

UNRECORDED_ARTIFACT = Row("unrecorded-artifact", Effect.LAYOUT, _LOOK)
PRUNED_BACK = Row("pruned-back", Effect.LAYOUT, "resume=auto passes it over; move it out of the run's directory")
HALF_PRUNED = Row("half-pruned", Effect.NOTE, "nothing: the next start goes on with it")
PRUNE_FAILED = Row("prune-failed", Effect.NOTE, "see `milepost log --kind prune-failed`; every start tries it again")

CHECKPOINT_MISSING = Row("checkpoint-missing", Effect.PAYLOAD, _COPY)
ARTIFACT_MISSING = Row("artifact-missing", Effect.PAYLOAD, "bring it back from a copy; no start depends on it")
MANIFEST_MISSING = Row("manifest-missing", Effect.PAYLOAD, _COPY)
MANIFEST_UNREADABLE = Row("manifest-unreadable", Effect.PAYLOAD, _COPY)
MANIFEST_NEWER = Row("manifest-newer", Effect.NEWER, "verify with the milepost that wrote it, or a later one")
MANIFEST_DIFFERS = Row("manifest-differs", Effect.PAYLOAD, _COPY)
MANIFEST_FOREIGN = Row("manifest-foreign", Effect.PAYLOAD, _COPY)
FILE_MISSING = Row("file-missing", Effect.PAYLOAD, _COPY)
FILE_UNREADABLE = Row("file-unreadable", Effect.PAYLOAD, _COPY)
FILE_SIZE = Row("file-size", Effect.PAYLOAD, _COPY)
FILE_DIGEST = Row("file-digest", Effect.PAYLOAD, _COPY)
FILE_RELEASED = Row("file-released", Effect.LAYOUT, "retention released this file: " + _LOOK)
GENERATION_MISSING = Row("generation-missing", Effect.PAYLOAD, _COPY)
GENERATION_UNREADABLE = Row("generation-unreadable", Effect.PAYLOAD, _COPY)
GENERATION_NEWER = Row("generation-newer", Effect.NEWER, "verify with the milepost that wrote it, or a later one")
GENERATION_UNRECORDED = Row("generation-unrecorded", Effect.LAYOUT, _LOOK)
RELEASE_MISSING = Row("release-missing", Effect.PAYLOAD, _COPY)
RELEASE_UNREADABLE = Row("release-unreadable", Effect.PAYLOAD, _COPY)
RELEASE_NEWER = Row("release-newer", Effect.NEWER, "verify with the milepost that wrote it, or a later one")
RELEASE_UNRECORDED = Row("release-unrecorded", Effect.LAYOUT, _LOOK)
MARKER_MISSING = Row("success-missing", Effect.PAYLOAD, _COPY)
MARKER_UNREADABLE = Row("success-unreadable", Effect.PAYLOAD, _COPY)
MARKER_NEWER = Row("success-newer", Effect.NEWER, "verify with the milepost that wrote it, or a later one")
MARKER_DIFFERS = Row("success-differs", Effect.PAYLOAD, _COPY)
MARKER_UNRECORDED = Row("success-unrecorded", Effect.LAYOUT, _LOOK)
FILE_UNLISTED = Row("file-unlisted", Effect.LAYOUT, _LOOK)

_OF_THE_LOG = {
    Verdict.TORN: Effect.TORN,
    Verdict.CORRUPT: Effect.JOURNAL,
    Verdict.LOST: Effect.JOURNAL,
    Verdict.NEWER: Effect.NEWER,
}


def finding(row: Row, place: str, *, expected: str, found: str, offset: int | None = None) -> Finding:
    """The row, met at a place."""
    mild = row.effect in (Effect.TORN, Effect.NOTE)
    return Finding(
        code=row.code,
        effect=row.effect,
        severity=Severity.NOTE if mild else Severity.DAMAGE,
        place=place,
        offset=offset,
        expected=expected,
        found=found,
        action=row.action,
    )


def finding_of(found: damage.Finding) -> Finding:
    """A finding of the log's own table."""
    row = Row(found.row.code, _OF_THE_LOG[found.row.verdict], found.row.action)
    return finding(row, found.where, expected=found.expected, found=found.found, offset=found.offset)


def exit_code(findings: tuple[Finding, ...]) -> int:
    """That of the worst finding; 0 for none."""
    found = {one.effect for one in findings}
    return next((EXIT_CODES[effect] for effect in Effect if effect in found), 0)
