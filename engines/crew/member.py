"""A member of a crew: the one place that touches live state, on the orders of whoever leads.

1. It has the trainers of the roles that live in this process, and its own view of the disk on which the run lies.
2. One snapshot at a time. It holds references until the state is staged, gathered or written; `Release` forgets it.
3. What goes into one file is written by the role's leader: `<name>.pt`, each role in a slot of its own. What is
   written together is a directory of shards, one file for each rank (`milepost.engines.formats.dcp`).
4. Under `dcp` model, optimizer and moving copies are written together. Under `consolidated` they are files, but for
   the optimizer of a trainer with sharded state: its full moments do not fit the leader's memory beside the model.
5. Nothing here talks to another member, but for `Gather`, in which all ranks of a role take part.

Source: the checkpointing contract, "Two formats" and "Async discipline".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from milepost.engines.ambient import SystemAmbient
from milepost.engines.buckets.remote import OpenRemote
from milepost.engines.buckets.remote import remotes as real_remotes
from milepost.engines.checkpoints import Checkpoints
from milepost.engines.checkpoints.parts import BULK, full_name, split_name
from milepost.engines.checkpoints.source import CheckpointSource, open_file
from milepost.engines.crew.orders import (
    Answer,
    Assign,
    Capture,
    Captured,
    Done,
    Enlist,
    Enlisted,
    Evaluate,
    Fill,
    Gather,
    Order,
    Release,
    Restore,
    RestoredRoles,
    Stage,
    StagedFiles,
    Stored,
    StoreFiles,
    StoreShards,
    Warm,
)
from milepost.engines.disks import Disk
from milepost.engines.formats import Image, Proven, Staged, Stager, stream
from milepost.engines.formats.chunks import is_sharded
from milepost.engines.formats.tensors import bytes_in
from milepost.engines.places import Place, Store, disk_of, open_place
from milepost.engines.slots import Slot, ThreadSlot, finalize_units
from milepost.engines.trainers import RestoreSource, Trainer
from milepost.engines.trainers.joining import join
from milepost.engines.trainers.protocols import Tree
from milepost.transitions.errors import Refused
from milepost.transitions.values import FULL, FileDigest, Plan, SaveId

if TYPE_CHECKING:  # most runs are of one process, and torch.distributed takes most of a second to import
    from milepost.engines.crew.gathering import Gatherer
    from milepost.engines.formats.dcp import Planner, Shards


@define(kw_only=True)
class _Role:
    """One role as this member has it: its trainer, its rank among the role's ranks, and its memory between saves."""

    trainer: Trainer
    rank: int = 0
    size: int = 1
    slot: Slot
    stager: Stager = field(factory=Stager)
    gatherer: Gatherer | None = None
    planners: dict[str, Planner] = field(factory=dict)


@define(kw_only=True)
class _Snapshot:
    """What was captured: by full name the trees of each sort, and what was made of them since.

    `ready` says that it was laid out to be written: one that was forgotten holds nothing, and must not pass for one
    that has nothing. `plan` is what was captured: in a bucket it says in which tree the payload lies.
    """

    plan: Plan = FULL
    ready: bool = False
    files: dict[str, Tree] = field(factory=dict)
    gathers: dict[str, Tree] = field(factory=dict)
    shards: dict[str, Shards] = field(factory=dict)
    staged: dict[str, Staged] = field(factory=dict)
    images: dict[str, list[Image]] = field(factory=dict)


@frozen(kw_only=True)
class _Desk:
    """What a member was assigned. `disk` is what the run's own checkpoints are read on."""

    place: Place
    disk: Disk
    checkpoints: Checkpoints
    form: str


class Member:
    """Performs orders on the trainers of this process, by role (`""` where there is only one).

    `disk` is what the run lies on; without one it is the local disk that the leader names. `remotes` opens the bucket
    of a run that lies in one, by default with real clients. `slots` makes the slot of each role. `evaluation` is what
    `Evaluate` calls: whoever makes a call of the facade sets it.
    """

    def __init__(
        self,
        trainers: Mapping[str, Trainer],
        *,
        disk: Disk | None = None,
        remotes: OpenRemote | None = None,
        slots: Callable[[], Slot] = ThreadSlot,
    ) -> None:
        self.evaluation: Callable[[int], object] | None = None
        self._roles = {name: _Role(trainer=trainer, slot=slots()) for name, trainer in trainers.items()}
        self._disk = disk
        self._remotes = remotes or real_remotes(SystemAmbient())
        self._desk: _Desk | None = None
        self._snapshot = _Snapshot()

    def perform(self, order: Order) -> Answer:
        """Do what the order says, here and now."""
        return _PERFORM[type(order)](self, order)

    # --- taking part ------------------------------------------------------------------------------------

    def _enlist(self, order: Enlist) -> Answer:
        return Enlisted(roles=tuple(self._roles))

    def _assign(self, order: Assign) -> Answer:
        disk, checkpoints = open_place(order.place, disk=self._disk, remotes=self._remotes, fence=_unfenced)
        self._desk = _Desk(place=order.place, disk=disk, checkpoints=checkpoints, form=order.form)
        for name, members in sorted(order.seats.items()):
            if order.distributed and len(members) > 1 and order.form == "consolidated":  # rule 4: only then
                from milepost.engines.crew.gathering import Gatherer

                # A call that every rank of the world has to make.
                gatherer = Gatherer.prepare(members, timeout_s=order.timeout_s)
                if name in self._roles:
                    self._roles[name].gatherer = gatherer
            if name in self._roles:
                self._roles[name].rank, self._roles[name].size = members.index(order.you), len(members)
        return Done()

    def _evaluate(self, order: Evaluate) -> Answer:
        if self.evaluation is None:
            raise Refused(f"step {order.step} is to be evaluated here as well: give validate= on every rank")
        self.evaluation(order.step)
        return Done()

    # --- restoring --------------------------------------------------------------------------------------

    def _restore(self, order: Restore) -> Answer:
        disk = self._assigned.disk if order.root is None else self._disk_of(order.root)
        restored = {}
        for name, role in self._roles.items():
            source: RestoreSource
            if order.manifest is None:
                source = open_file(disk, order.path, world_size=role.size, rank=role.rank)
            else:
                source = CheckpointSource(
                    disk=disk,
                    path=order.path,
                    manifest=order.manifest,
                    role=name,
                    world_size=role.size,
                    rank=role.rank,
                    verify=order.verify,
                )
            restored[name] = role.trainer.restore(
                source, cursor_resume=order.cursor_resume, validation=order.validation
            )
        return RestoredRoles(roles=restored)

    def _disk_of(self, root: str) -> Disk:
        within = self._assigned.place.within
        credentials = within.credentials if isinstance(within, Store) else ""
        return disk_of(root, credentials=credentials, remotes=self._remotes)

    # --- taking a snapshot ------------------------------------------------------------------------------

    def _capture(self, order: Capture) -> Answer:
        self._forget()
        locals_: dict[str, Tree] = {}
        snapshot = self._snapshot
        snapshot.plan = order.components
        for name, role in self._roles.items():
            captured = role.trainer.capture(
                order.components,
                clocks=order.clocks[name],
                cursor_resume=order.cursor_resume,
                validation=order.validation,
            )
            locals_[name] = captured.local
            for tree_name, tree in captured.trees.items():
                self._sort(full_name(name, tree_name), tree, role)
        return Captured(
            locals=locals_,
            plans={full: shards.plan for full, shards in snapshot.shards.items()},
            gathers=tuple(sorted(snapshot.gathers)),
            room=sum(shards.room for shards in snapshot.shards.values()),
        )

    def _sort(self, full: str, tree: Tree, role: _Role) -> None:
        """Rule 4: what becomes of this tree."""
        name, snapshot = split_name(full)[1], self._snapshot
        sharded = is_sharded(tree)
        if name in BULK and (self._assigned.form == "dcp" or (sharded and name == "optim")):
            from milepost.engines.formats.dcp import Planner, Shards

            planner = role.planners.setdefault(full, Planner())
            snapshot.shards[full] = Shards(full, tree, coordinator=role.rank == 0, planner=planner)
        elif sharded and name in BULK:
            snapshot.gathers[full] = tree
        elif sharded:
            raise Refused(
                f"{full}: expected small state that every rank has whole, found tensors that are spread over ranks; "
                "give them to the trainer as part of its model"
            )
        elif role.rank == 0:
            snapshot.files[full] = tree

    def _stage(self, order: Stage) -> Answer:
        snapshot, unproven = self._snapshot, ""
        self._unstage()
        for name, trees in self._own(order.locals).items():
            if order.background:
                staged = self._roles[name].stager.begin(trees)
                snapshot.staged[name] = staged
                snapshot.images[name] = list(staged.images)
                if not isinstance(staged.proof, Proven):
                    unproven = unproven or staged.proof.reason
            else:
                snapshot.images[name] = list(stream(trees))
        snapshot.ready = True
        images = [image for own in snapshot.images.values() for image in own]
        return StagedFiles(
            names=(*(image.name.removesuffix(".pt") for image in images), *self._led_gathers()),
            room=sum(image.room for image in images) + sum(map(bytes_in, self._led_gathers().values())),
            unproven=unproven,
        )

    def _own(self, locals_: Mapping[str, tuple[Tree, ...]]) -> dict[str, dict[str, Tree]]:
        """By role that is led here, its files by full name, joined with what each of its ranks has alone."""
        own: dict[str, dict[str, Tree]] = {}
        for name, parts in locals_.items():
            mine = {
                split_name(full)[1]: tree
                for full, tree in self._snapshot.files.items()
                if split_name(full)[0] == name
            }
            own[name] = {full_name(name, one): tree for one, tree in join(mine, parts).items()}
        return own

    def _led_gathers(self) -> dict[str, Tree]:
        gathers = self._snapshot.gathers
        return {full: tree for full, tree in gathers.items() if self._roles[split_name(full)[0]].rank == 0}

    def _gather(self, order: Gather) -> Answer:
        for full in order.names:
            tree = self._snapshot.gathers.get(full)
            if tree is None:
                continue  # of a role that is not here
            name = split_name(full)[0]
            role = self._roles[name]
            if role.gatherer is None:  # sharded over a mesh of one
                from milepost.engines.crew.gathering import Gatherer

                role.gatherer = Gatherer()
            whole = role.gatherer.gather(full, tree, lead=role.rank == 0)
            if whole is not None:
                self._snapshot.images.setdefault(name, []).extend(stream({full: whole}))
        return Done()

    def _fill(self, order: Fill) -> Answer:
        for staged in self._snapshot.staged.values():
            staged.fill()
        return Done()

    def _release(self, order: Release) -> Answer:
        self._forget()
        return Done()

    def _warm(self, order: Warm) -> Answer:
        """Without a word to the others: their rank-local parts are taken to be as large as the leader's."""
        answer = self._capture(order.capture)
        assert isinstance(answer, Captured)
        led = {
            name: (own,) * self._roles[name].size for name, own in answer.locals.items() if not self._roles[name].rank
        }
        for name, trees in self._own(led).items():
            self._roles[name].stager.prepare(trees)
        self._forget()
        return Done()

    # --- writing ----------------------------------------------------------------------------------------

    def _store_shards(self, order: StoreShards) -> Answer:
        files: list[FileDigest] = []
        entries: dict[str, Any] = {}
        # In a bucket nothing is staged: what an attempt writes has names that no other attempt has.
        prefix = str(order.save) if self._assigned.place.direct else ""
        for full, plan in order.plans.items():
            shards = self._snapshot.shards[full]
            image = shards.image(plan, rank=self._roles[split_name(full)[0]].rank, prefix=prefix)
            if image.empty:
                entries[full] = ()
                continue
            files.append(self._assigned.checkpoints.put(order.save, image, plan=self._snapshot.plan))
            entries[full] = image.entries
        self._snapshot.shards.clear()
        return Stored(files=tuple(files), entries=entries)

    def _store_files(self, order: StoreFiles) -> Answer:
        """Each role in its own slot, where there are several; all of them are waited for."""
        snapshot = self._snapshot
        if not snapshot.ready:
            raise Refused("this snapshot was released before it was written; save again")
        images, files = snapshot.images, dict[str, list[FileDigest]]()
        lanes = {}
        for name, own in images.items():
            files[name] = []
            lanes[name] = self._writing(order.save, own, files[name], snapshot.plan)
        try:
            if len(lanes) == 1:
                deque(*lanes.values(), maxlen=0)
            else:
                units = {name: self._roles[name].slot for name in lanes}
                for name, lane in lanes.items():
                    units[name].start(lane)
                finalize_units(units)
        finally:
            self._forget()
        return Stored(files=tuple(file for own in files.values() for file in own), entries={})

    def _writing(self, save: SaveId, images: list[Image], files: list[FileDigest], plan: Plan) -> Iterator[object]:
        for image in images:
            files.append(self._assigned.checkpoints.put(save, image, plan=plan))
            yield image.name

    # --- what is held -----------------------------------------------------------------------------------

    @property
    def _assigned(self) -> _Desk:
        assert self._desk is not None, "a member is assigned before it is ordered to touch a run"
        return self._desk

    def _unstage(self) -> None:
        for staged in self._snapshot.staged.values():
            staged.release()
        self._snapshot.staged.clear()
        self._snapshot.images.clear()

    def _forget(self) -> None:
        """Another thread may be filling or writing this very snapshot: nothing of it is taken apart."""
        forgotten, self._snapshot = self._snapshot, _Snapshot()
        for staged in forgotten.staged.values():
            staged.release()


def _unfenced() -> None:
    """Members write payload into a staging whose fence the leader looked at when it was made."""


_PERFORM: Mapping[type, Callable[[Member, Any], Answer]] = {
    Enlist: Member._enlist,
    Assign: Member._assign,
    Evaluate: Member._evaluate,
    Restore: Member._restore,
    Capture: Member._capture,
    Stage: Member._stage,
    Gather: Member._gather,
    StoreShards: Member._store_shards,
    StoreFiles: Member._store_files,
    Fill: Member._fill,
    Release: Member._release,
    Warm: Member._warm,
}
