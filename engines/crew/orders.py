"""Orders to the members of a crew, and their answers: plain values that travel between processes.

A role is the name of one trainer of the run: `""` where there is only one. A role's state may be spread over several
members: these are its ranks, in order of the members, and the first one is its leader, which writes what is written
once.

    Enlist       who are you, and which roles have you?                       Enlisted
    Assign       where the run lives, and which rank of which role you are    Done
    Evaluate     evaluate the model after this step                           Done
    Restore      put this checkpoint back into your live state                RestoredRoles
    Capture      take references to your live state                           Captured
    Stage        lay out what you write by yourself, of these joined parts    StagedFiles
    Gather       give the leader of each role the whole of what it writes alone  Done
    StoreShards  write your part of what is written together                  Stored
    StoreFiles   write what you write by yourself                             Stored
    Fill         copy what is staged: live state may change behind it         Done
    Release      forget the snapshot                                          Done
    Warm         make ready for snapshots of this plan                        Done

Every order is performed by the member that it is given to, and answered in the same process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from milepost.engines.checkpoints.manifest import Manifest
from milepost.engines.places import Place as Place
from milepost.transitions.values import Clocks, FileDigest, Plan, SaveId

if TYPE_CHECKING:  # who only prunes does without tensors
    from milepost.engines.trainers.protocols import CursorResume, Restored, Tree


@frozen(kw_only=True)
class Enlist:
    """Say which roles this member has."""


@frozen(kw_only=True)
class Assign:
    """Learn where the run lives and who has which role.

    `seats` are by role its members in order of their ranks, the leader first; `you` is the member that this is for.
    `form` is the checkpoint format, `consolidated` or `dcp`. `distributed` says that members are the ranks of a
    torch.distributed world, and `timeout_s` how long they may be apart.
    """

    place: Place
    seats: Mapping[str, tuple[int, ...]]
    you: int
    form: str
    distributed: bool
    timeout_s: float


@frozen(kw_only=True)
class Evaluate:
    """Run the evaluation that this call of the facade was given."""

    step: int


@frozen(kw_only=True)
class Restore:
    """Restore every role from the checkpoint at `path` on the disk of `root` (None: the run's own).

    `root` is an absolute path, or the address of a bucket (`s3://bucket`), in which the checkpoint is read in place.
    `manifest` is None for a single `.pt` file from before checkpoints were directories.
    """

    root: str | None
    path: str
    manifest: Manifest | None
    verify: bool
    cursor_resume: CursorResume
    validation: Mapping[str, object] | None


@frozen(kw_only=True)
class Capture:
    """Take references to the components of every role, at a quiescent boundary; `clocks` by role."""

    components: Plan
    clocks: Mapping[str, Clocks]
    cursor_resume: CursorResume
    validation: Mapping[str, object] | None


@frozen(kw_only=True)
class Stage:
    """Lay out what this member writes by itself. `locals` are by role the rank-local parts of all of its ranks.

    With `background` it is laid out so that live state may change after a `Fill`, where that can be proven.
    """

    locals: Mapping[str, tuple[Tree, ...]]
    background: bool


@frozen(kw_only=True)
class Gather:
    """Bring the whole of each of these trees to the member that leads its role; every rank of the role takes part."""

    names: tuple[str, ...]


@frozen(kw_only=True)
class StoreShards:
    """Write this member's part of each tree that is written together; `plans` by the tree's name."""

    save: SaveId
    plans: Mapping[str, Any]


@frozen(kw_only=True)
class StoreFiles:
    """Write the files that were laid out for this member alone."""

    save: SaveId


@frozen(kw_only=True)
class Fill:
    """Copy the state that was laid out for the background."""


@frozen(kw_only=True)
class Release:
    """Forget the snapshot and give its memory back. Harmless where there is none."""


@frozen(kw_only=True)
class Warm:
    """Allocate what snapshots of this plan need, beside the first steps; a state that cannot be saved is refused."""

    capture: Capture


Order = (
    Enlist | Assign | Evaluate | Restore | Capture | Stage | Gather | StoreShards | StoreFiles | Fill | Release | Warm
)


@frozen(kw_only=True)
class Done:
    """It was done."""


@frozen(kw_only=True)
class Enlisted:
    """The roles of this member."""

    roles: tuple[str, ...]


@frozen(kw_only=True)
class RestoredRoles:
    """What a restore did, by role."""

    roles: Mapping[str, Restored]


@frozen(kw_only=True)
class Captured:
    """What this member has to contribute: by role what is rank-local, and by tree (`model`, `policy/model`) the plan
    of its shards. `gathers` are the trees that its role's leader writes whole.

    `room` are the bytes that it is going to write of those shards.
    """

    locals: Mapping[str, Tree]
    plans: Mapping[str, Any]
    gathers: tuple[str, ...]
    room: int


@frozen(kw_only=True)
class StagedFiles:
    """What lies ready: the trees, the bytes to write, and why not in the background (empty: it may be)."""

    names: tuple[str, ...]
    room: int
    unproven: str


@frozen(kw_only=True)
class Stored:
    """Files that are durable in the staging of the save, and by tree what its directory has to say of the shards."""

    files: tuple[FileDigest, ...]
    entries: Mapping[str, Any]


Answer = Done | Enlisted | RestoredRoles | Captured | StagedFiles | Stored
