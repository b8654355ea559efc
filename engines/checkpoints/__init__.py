"""Where checkpoints live: stage · put · seal · observe · mark · prune · point · clear · witnesses · resync.

A save of the full plan becomes a checkpoint; one of any other plan becomes an artifact, in a tree beside them that
no resume, no pointer and no retention ever looks at (INV-05).

Everything above is written against `Checkpoints`; `local.py` is the one over a disk. Rules that every
implementation keeps:

1. What is visible under its final name is whole and durable (INV-01) and never changes there (INV-02). Small files
   may join it, and retention may take from it what it has said that it will.
2. A failure before the publishing step is `GivenUp`: nothing of the save is visible and nothing will be. A failure in
   it or after it is `Uncertain`: only a later writer's look can tell, so this one records nothing more.
3. Doing a verb twice leaves what doing it once leaves (INV-13).
4. The fence is looked at after a name exists that is going to be renamed, and before it is.
5. Several roles are a checkpoint only together, and with the marker that says so (INV-15).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from attrs import frozen

from milepost.engines.checkpoints.manifest import Manifest
from milepost.transitions.errors import MilepostError, Unavailable
from milepost.transitions.retention import Part
from milepost.transitions.saving import Save
from milepost.transitions.validation import Generation
from milepost.transitions.values import FULL, FileDigest, Plan, SaveId, Witness

if TYPE_CHECKING:  # who only looks at checkpoints does without tensors
    from milepost.engines.formats import Image

__all__ = ["Checkpoints", "Found", "GivenUp", "Manifest", "Published", "Uncertain"]


class GivenUp(MilepostError):
    """The save failed before its publishing step. `code` is short and stable, for records and tests."""

    def __init__(self, code: str, detail: str) -> None:
        self.code, self.detail = code, detail
        super().__init__(f"{code}: {detail}")


class Uncertain(Unavailable):
    """The publishing step, or a sync behind it, failed: whether it took effect is not known."""


@frozen(kw_only=True)
class Found:
    """A published save as a look found it: its manifest and that file's own digest."""

    manifest: Manifest
    file: FileDigest


@frozen(kw_only=True)
class Published:
    """A name among the checkpoints or the artifacts, and what is wrong with it (empty: nothing was found wrong).

    What the release marker says is gone is not wrong.
    """

    name: str
    found: Found | None
    problem: str


class Checkpoints(Protocol):
    """The verbs of a place for checkpoints."""

    def stage(self, save: SaveId, *, size: int, folders: tuple[str, ...] = (), plan: Plan = FULL) -> None:
        """Make the save's private staging, for `size` bytes of payload. `GivenUp`, or `Fenced`.

        `plan` is that of the save, here and below: in a bucket, which has no staging, it says in which tree the
        payload lies.

        `folders` are the directories in it, relative to it, each behind the one that it lies in.
        """
        ...

    def put(self, save: SaveId, image: Image, *, plan: Plan = FULL) -> FileDigest:
        """Write one payload file into the staging, or into a directory of it. `GivenUp` or `Uncertain`.

        Its bytes are durable on return, and its name with the sealing. Every rank does it on its own view of the
        place.
        """
        ...

    def put_bytes(self, save: SaveId, name: str, data: bytes, *, plan: Plan = FULL) -> FileDigest:
        """The same for a small payload file, which is here whole."""
        ...

    def seal(self, manifest: Manifest, *, pending: bool, marker: bytes | None = None) -> FileDigest:
        """Write the manifest, last, and publish: in the tree of the manifest's plan, never over what is there.

        With `pending` the checkpoint says from the start that its evaluation is pending. `marker` is that of a
        boundary, for a checkpoint of several roles, and follows the manifest. `GivenUp` before the publishing step
        (with the code `conflict` where something is there already), else `Uncertain`.
        """
        ...

    def observe(self, save: SaveId, *, plan: Plan) -> Found | None:
        """Revoke the staging of a save whose writer is gone, then look whether it was published."""
        ...

    def mark(self, save: SaveId, generation: Generation) -> None:
        """Say beside the manifest how far the validation is: created durably, never replaced.

        `Corrupt` where the checkpoint is not this save's or says something else, `Unavailable` or `Uncertain`.
        """
        ...

    def prune(self, save: SaveId, part: Part, files: tuple[str, ...]) -> None:
        """Delete `files` of the checkpoint behind a marker that says so, or all of it, out of its namespace first.

        `Corrupt` where the checkpoint is not this save's, `Unavailable` where the disk fails; what is left then never
        looks complete without being so, and another call goes on from there.
        """
        ...

    def point(self, save: SaveId, *, epoch: int) -> None:
        """Make the pointer name the save's checkpoint."""
        ...

    def clear(self, *, epoch: int, abandoned: tuple[SaveId, ...]) -> tuple[str, ...]:
        """Remove what earlier epochs and these abandoned saves left in staging; the names that went."""
        ...

    def names(self) -> tuple[str, ...]:
        """Every name where a checkpoint may be, in order of step, by listings alone."""
        ...

    def claimed(self, name: str) -> Published | None:
        """What is or claims to be a checkpoint under this name; None where nothing does."""
        ...

    def published(self) -> tuple[Published, ...]:
        """Every name that is or claims to be a checkpoint, in order of step."""
        ...

    def artifacts(self) -> tuple[Published, ...]:
        """Every name that is or claims to be an artifact, in order of step."""
        ...

    def examine(self, save: Save, *, lost: Part | None) -> str:
        """What is wrong with a sealed save at a quick look (small files and sizes), or an empty string.

        `lost` is what retention took or is taking of it: that may be gone, and what says so has to be there.
        """
        ...

    def witnesses(self) -> tuple[tuple[str, Witness], ...]:
        """What every readable manifest of either tree knew of the journal, by a name that no two share."""
        ...

    def resync(self) -> None:
        """Make durable everything here that a recovery rests on, before it records anything."""
        ...
