"""What an opened run continues from: found, restored by every member, and recorded with every reason.

The rules are the table of `milepost.transitions.resuming`; this room brings it the facts and carries out the choice.
An explicit path must exist and be whole: it never ends in a fresh start. A checkpoint of several roles is taken by a
run of the same roles, whole or not at all (INV-15).
"""

from __future__ import annotations

import os

from attrs import evolve, frozen

from milepost.engines.buckets.reading import BucketDisk
from milepost.engines.buckets.remote import SCHEME, OpenRemote, parse_address
from milepost.engines.checkpoints import Checkpoints, generations, marker, released, sampled
from milepost.engines.checkpoints.manifest import ARTIFACT, LIMIT_BYTES, MANIFEST, Manifest, decode
from milepost.engines.checkpoints.roles import roles_of
from milepost.engines.checkpoints.source import unreadable
from milepost.engines.crew.company import Company
from milepost.engines.crew.orders import Restore
from milepost.engines.disks import Disk
from milepost.engines.disks.local import LocalDisk
from milepost.engines.places import Place, Store, disk_of
from milepost.engines.trainers import Restored
from milepost.journal.candidates import candidates_of
from milepost.journal.config import Config
from milepost.journal.driver import Driver
from milepost.journal.sampling.boundaries import SamplingBoundary, boundary_of
from milepost.transitions.boundary import disagreement
from milepost.transitions.errors import Corrupt, NotResumable
from milepost.transitions.machine import State, obligations
from milepost.transitions.resuming import Candidate, choose, passed_for, require_not_behind
from milepost.transitions.run import AdoptResume
from milepost.transitions.validation import Generation
from milepost.transitions.values import (
    FULL,
    Clocks,
    LoopValue,
    PassedOver,
    ResumeKind,
    RoleClocks,
    SamplingPoint,
    SaveId,
    parse_iteration,
)


@frozen(kw_only=True)
class Resumption:
    """What a start continues from. `kind` is `fresh`, `exact` or `warm`.

    `pending` is `evaluation` where the checkpoint waits for its evaluation, `publication` where a copy of one was
    evaluated and not published, and otherwise None. `promotes` says that it lies outside the run, so that the run
    needs a checkpoint of its own before it goes on with that. `sampling` is the boundary that the checkpoint carried.
    """

    step: int
    kind: str
    source: str
    pending: str | None
    promotes: bool
    passed_over: tuple[PassedOver, ...]
    notes: tuple[str, ...]
    sampling: SamplingBoundary | None = None


@frozen(kw_only=True)
class _Found:
    """What is restored: `path` on `disk`, which is the local one of `root` where it is not the run's own.

    `manifest` is None for a single file, and `step` for one that states it only inside; `save` is set for the run's
    own. `generation` is what a checkpoint outside the run says of its own validation, `mark` the marker of its roles,
    `sampling` the boundary that it carries.
    """

    disk: Disk
    root: str | None
    path: str
    manifest: Manifest | None
    step: int | None
    save: SaveId | None
    generation: Generation | None = None
    mark: marker.Marker | None = None
    sampling: SamplingPoint | None = None

    @property
    def where(self) -> str:
        return self.disk.where(self.path)


@frozen(kw_only=True)
class Restoring:
    """Everything that deciding and carrying out a resume needs. `disk` is what the run's own checkpoints lie on."""

    config: Config
    disk: Disk
    place: Place
    checkpoints: Checkpoints
    company: Company
    remotes: OpenRemote

    def resume(self, driver: Driver) -> Resumption:
        """Decide, restore, record. On return the resume is durable."""
        saving, asked = driver.state.saving, self.config.resume
        candidates = candidates_of(driver.state, self.checkpoints, every=False)
        if asked in ("auto", "off"):
            choice = choose(candidates, artifact=saving.newest_artifact)
            found = self._taken(choice.taken) if choice.taken is not None else None
            passed_over = choice.passed_over
        else:
            found = self._locate(asked, driver.state)
            passed_over = passed_for(candidates, path=asked, name=found.save.directory if found.save else "")
        if found is None:
            return _adopt(driver, self._fresh(passed_over), generation=None)
        if found.step is not None:
            require_not_behind(saving, step=found.step, path=asked)
        found = _with_sampling(self._with_roles(found))
        restored = self._restore(found)
        step = found.step if found.step is not None else restored[""].clocks.optimizer_step
        require_not_behind(saving, step=step, path=asked)
        return _adopt(driver, _exact(found, step, restored, passed_over), generation=found.generation)

    def _restore(self, found: _Found) -> dict[str, Restored]:
        """Everybody's state from what was found, by role, each role at the counter that the marker committed."""
        restored = self.company.restore(
            Restore(
                root=found.root,
                path=found.path,
                manifest=found.manifest,
                verify=self.config.verify_on_resume or found.generation in _PENDING,
                cursor_resume=self.config.data.cursor_resume,
                validation=self.config.validation_identity,
            )
        )
        if found.mark is not None and (problem := disagreement(_clocks(restored), counters=found.mark.counters)):
            raise Corrupt(f"{found.where}: {problem}. Its roles are not of one boundary; resume from another one")
        return restored

    def _with_roles(self, found: _Found) -> _Found:
        """What was found with its marker, once it is known to be of this run's roles, all of them."""
        here, there = self.company.roles, roles_of(found.manifest.files) if found.manifest is not None else ()
        if here != there:
            named = [", ".join(roles) or "one trainer without a name" for roles in (there, here)]
            raise NotResumable(
                f"{found.where} holds {named[0]}, this run has {named[1]}: a checkpoint is continued by the roles "
                "that it was saved with"
            )
        if not here or found.manifest is None:
            return found
        try:
            mark = marker.read(found.disk, found.path)
        except OSError as error:
            raise unreadable(f"{found.where}/{marker.SUCCESS}", "the marker of its roles", error) from error
        if problem := marker.contradiction(mark, save=found.manifest.save, roles=there):
            raise NotResumable(f"{found.where}: {problem}")
        return evolve(found, mark=mark)

    def _fresh(self, passed_over: tuple[PassedOver, ...]) -> AdoptResume:
        return AdoptResume(
            resume=ResumeKind.FRESH,
            step=0,
            source="",
            save=None,
            clocks=Clocks(),
            passed_over=passed_over,
            roles=tuple(RoleClocks(role=role, clocks=Clocks()) for role in self.company.roles),
        )

    def _taken(self, candidate: Candidate) -> _Found:
        """A checkpoint that the journal sealed and a look found sound."""
        path = f"{self.place.checkpoints}/{candidate.name}"
        return _Found(
            disk=self.disk,
            root=None,
            path=path,
            manifest=read_manifest(self.disk, path),
            step=candidate.step,
            save=candidate.save,
        )

    def _locate(self, asked: str, state: State) -> _Found:
        disk, root, path = self._place(asked)
        stat = disk.stat(path)
        if stat is None:
            raise NotResumable(
                f"resume={asked}: nothing is at {disk.where(path)}; a path that is asked for must exist"
            )
        if stat.kind == "file" and not isinstance(disk, BucketDisk):
            step = next(filter(None, map(parse_iteration, path.split("/"))), None)
            return _Found(disk=disk, root=root, path=path, manifest=None, step=step, save=None)
        if disk.stat(f"{path}/{ARTIFACT}") is not None:
            raise NotResumable(f"resume={asked} is a partial artifact: it lacks what an exact resume needs")
        manifest = read_manifest(disk, path)
        found = _Found(disk=disk, root=root, path=path, manifest=manifest, step=manifest.save.step, save=None)
        if files := released.read(disk, path):
            raise NotResumable(
                f"resume={asked}: retention released {', '.join(files)} of it; take a newer checkpoint"
            )
        if manifest.plan != FULL:
            raise NotResumable(f"resume={asked} holds only {', '.join(part.value for part in manifest.plan)}")
        if disk is self.disk and path.startswith(f"{self.place.checkpoints}/"):
            return evolve(found, save=self._own(asked, manifest, state))
        generation = generations.read(disk, path)
        if generation in _PENDING:  # it becomes a checkpoint of this run
            if self.place.direct:
                raise _unsettled(asked)
            _require_free(state, manifest.save.step, asked)
        return evolve(found, generation=generation)

    def _own(self, asked: str, manifest: Manifest, state: State) -> SaveId:
        """A path into the run itself: the journal must know it, and it must be what was sealed."""
        save = state.saving.sealed.get(manifest.save.step)
        if save is None or save.id != manifest.save:
            raise NotResumable(
                f"resume={asked} lies in this run, but the run's journal never published it; see `milepost why`"
            )
        if problem := self.checkpoints.examine(save, lost=state.retention.lost(save.id.step)):
            raise Corrupt(f"resume={asked} was published whole and no longer is: {problem}")
        return save.id

    def _place(self, asked: str) -> tuple[Disk, str | None, str]:
        """The disk, the folder or the bucket it is of where it is not the run's own, and the path on it.

        What lies below the output root is on the run's own disk, where that is a local one.
        """
        if asked.startswith(SCHEME):
            return self._place_in_bucket(asked)
        absolute = os.path.realpath(os.path.expanduser(asked))
        root = os.path.realpath(self.config.run.output_root)
        if absolute.startswith(f"{root}/") and not self.place.direct:
            return self.disk, None, os.path.relpath(absolute, root)
        above, name = os.path.split(absolute)
        return LocalDisk(above), above, name

    def _place_in_bucket(self, asked: str) -> tuple[Disk, str | None, str]:
        """The same for an address: every rank reads it in place, with the credentials of the run's own store."""
        within = self.place.within
        assert isinstance(within, Store), "the configuration refuses an address beside a local primary"
        bucket, key = parse_address(asked)
        uri = f"{SCHEME}{bucket}"
        if uri == within.uri and key.startswith(f"{self.place.checkpoints}/"):
            return self.disk, None, key
        return disk_of(uri, credentials=within.credentials, remotes=self.remotes), uri, key


def _with_sampling(found: _Found) -> _Found:
    """What was found with the sampling boundary that it carries, proven, where it carries one."""
    file = None if found.manifest is None else sampled.listed(found.manifest)
    if file is None:
        return found
    try:
        point = sampled.read(found.disk, found.path, file=file)
    except OSError as error:
        raise unreadable(f"{found.where}/{file.path}", "a sampling boundary", error) from error
    return evolve(found, sampling=point)


def read_manifest(disk: Disk, path: str) -> Manifest:
    """The manifest of a checkpoint directory, wherever it lies."""
    where = disk.where(path)
    try:
        data = disk.read(f"{path}/{MANIFEST}", limit=LIMIT_BYTES)
    except FileNotFoundError:
        raise NotResumable(
            f"{where} has no {MANIFEST}: it is no checkpoint, or a half-written one; name an iter_* directory that "
            "has one"
        ) from None
    except OSError as error:
        raise unreadable(f"{where}/{MANIFEST}", "a manifest", error) from error
    return decode(data, where=f"{where}/{MANIFEST}")


def _exact(
    found: _Found, step: int, restored: dict[str, Restored], passed_over: tuple[PassedOver, ...]
) -> AdoptResume:
    """A resume of one trainer at its own clocks, or of roles at theirs; the run's own then count iterations."""
    alone = restored.get("")
    return AdoptResume(
        resume=ResumeKind.EXACT,
        step=step,
        source=found.where,
        save=found.save,
        clocks=alone.clocks if alone is not None else Clocks(attempt_id=step, optimizer_step=step),
        passed_over=passed_over,
        notes=tuple(
            f"{role}: {note}" if role else note for role, one in sorted(restored.items()) for note in one.notes
        ),
        roles=() if alone is not None else _clocks(restored),
        loop_state=_loop_state(found.mark),
        sampling=found.sampling,
    )


def _clocks(restored: dict[str, Restored]) -> tuple[RoleClocks, ...]:
    return tuple(RoleClocks(role=role, clocks=one.clocks) for role, one in sorted(restored.items()))


def _loop_state(mark: marker.Marker | None) -> tuple[LoopValue, ...] | None:
    return None if mark is None or mark.loop_state is None else marker.loop_values(mark.loop_state)


_PENDING = {Generation.EVALUATION_PENDING: "evaluation", Generation.PUBLICATION_PENDING: "publication"}


def _unsettled(asked: str) -> NotResumable:
    return NotResumable(
        f"resume={asked} waits for its validation, and what lies outside the run is not changed. Select its root, "
        "with the journal that lies beside it, as rl.checkpoint_store.prefix and use resume=auto; a checkpoint on a "
        "disk is completed by a run with a local primary"
    )


def _require_free(state: State, step: int, asked: str) -> None:
    """A pending checkpoint from elsewhere becomes one of the run's own; that must not be there already."""
    if state.saving.newest_step is not None and step <= state.saving.newest_step:
        raise NotResumable(
            f"resume={asked} waits for its validation, and this attempt holds step {state.saving.newest_step} "
            "already: nothing is written over. Use resume=auto, or give the run another name (run.name=…)"
        )


def _adopt(driver: Driver, command: AdoptResume, *, generation: Generation | None) -> Resumption:
    driver.submit(command)
    driver.barrier()
    elsewhere = None if generation is None else _PENDING.get(generation)
    sampling = driver.state.sampling.boundary
    return Resumption(
        step=command.step,
        kind=command.resume.value,
        source=command.source,
        pending=elsewhere or ("evaluation" if obligations(driver.state) else None),
        promotes=elsewhere is not None,
        passed_over=command.passed_over,
        notes=command.notes,
        sampling=None if sampling is None else boundary_of(sampling),
    )
