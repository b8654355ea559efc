"""What an opened run continues from: found, restored into the trainer, and recorded with every reason.

The rules are the table of `milepost.transitions.resuming`; this room brings it the facts and carries out the choice.
An explicit path must exist and be whole: it never ends in a fresh start.
"""

from __future__ import annotations

import os

from attrs import evolve, frozen

from milepost.engines.attempts import Attempt
from milepost.engines.checkpoints import Checkpoints, generations, released
from milepost.engines.checkpoints.manifest import ARTIFACT, LIMIT_BYTES, MANIFEST, Manifest, decode
from milepost.engines.checkpoints.source import CheckpointSource, open_file, unreadable
from milepost.engines.disks import Disk
from milepost.engines.disks.local import LocalDisk
from milepost.engines.trainers import Restored, RestoreSource, Trainer
from milepost.journal.candidates import candidates_of
from milepost.journal.config import Config
from milepost.journal.driver import Driver
from milepost.transitions.errors import Corrupt, NotResumable
from milepost.transitions.machine import State, obligations
from milepost.transitions.resuming import Candidate, choose, passed_for, require_not_behind
from milepost.transitions.run import AdoptResume
from milepost.transitions.validation import Generation
from milepost.transitions.values import FULL, Clocks, PassedOver, ResumeKind, SaveId, parse_iteration


@frozen(kw_only=True)
class Resumption:
    """What a start continues from. `kind` is `fresh`, `exact` or `warm`.

    `pending` is `evaluation` where the checkpoint waits for its evaluation, `publication` where a copy of one was
    evaluated and not published, and otherwise None. `promotes` says that it lies outside the run, so that the run
    needs a checkpoint of its own before it goes on with that.
    """

    step: int
    kind: str
    source: str
    pending: str | None
    promotes: bool
    passed_over: tuple[PassedOver, ...]
    notes: tuple[str, ...]


@frozen(kw_only=True)
class _Found:
    """What is restored. `step` is None for a file that states it only inside; `save` is set for the run's own.

    `generation` is what a checkpoint outside the run says of its own validation.
    """

    source: RestoreSource
    step: int | None
    save: SaveId | None
    generation: Generation | None = None


@frozen(kw_only=True)
class Restoring:
    """Everything that deciding and carrying out a resume needs."""

    config: Config
    disk: Disk
    attempt: Attempt
    checkpoints: Checkpoints
    trainer: Trainer
    world_size: int

    def resume(self, driver: Driver) -> Resumption:
        """Decide, restore, record. On return the resume is durable."""
        saving, asked = driver.state.saving, self.config.resume
        candidates = candidates_of(driver.state, self.checkpoints)
        if asked in ("auto", "off"):
            choice = choose(candidates, artifact=saving.newest_artifact)
            found = self._taken(choice.taken) if choice.taken is not None else None
            passed_over = choice.passed_over
        else:
            found = self._locate(asked, driver.state)
            passed_over = passed_for(candidates, path=asked, name=found.save.directory if found.save else "")
        if found is None:
            return _adopt(driver, _fresh(passed_over), generation=None)
        if found.step is not None:
            require_not_behind(saving, step=found.step, path=asked)
        restored = self.trainer.restore(
            found.source,
            cursor_resume=self.config.data.cursor_resume,
            validation=self.config.validation_identity,
        )
        step = found.step if found.step is not None else restored.clocks.optimizer_step
        require_not_behind(saving, step=step, path=asked)
        return _adopt(driver, _exact(found, step, restored, passed_over), generation=found.generation)

    def _taken(self, candidate: Candidate) -> _Found:
        """A checkpoint that the journal sealed and a look found sound."""
        path = f"{self.attempt.path}/checkpoints/{candidate.name}"
        return _Found(source=self._directory(self.disk, path), step=candidate.step, save=candidate.save)

    def _directory(self, disk: Disk, path: str) -> CheckpointSource:
        return CheckpointSource(
            disk=disk,
            path=path,
            manifest=read_manifest(disk, path),
            world_size=self.world_size,
            verify=self.config.verify_on_resume,
        )

    def _locate(self, asked: str, state: State) -> _Found:
        disk, path = self._place(asked)
        stat = disk.stat(path)
        if stat is None:
            raise NotResumable(
                f"resume={asked}: nothing is at {disk.where(path)}; a path that is asked for must exist"
            )
        if stat.kind == "file":
            step = next(filter(None, map(parse_iteration, path.split("/"))), None)
            return _Found(source=open_file(disk, path, world_size=self.world_size), step=step, save=None)
        if disk.stat(f"{path}/{ARTIFACT}") is not None:
            raise NotResumable(f"resume={asked} is a partial artifact: it lacks what an exact resume needs")
        source = self._directory(disk, path)
        manifest = source.manifest
        if files := released.read(disk, path):
            raise NotResumable(
                f"resume={asked}: retention released {', '.join(files)} of it; take a newer checkpoint"
            )
        if manifest.plan != FULL:
            raise NotResumable(f"resume={asked} holds only {', '.join(part.value for part in manifest.plan)}")
        if disk is self.disk and path.startswith(f"{self.attempt.path}/checkpoints/"):
            return _Found(source=source, step=manifest.save.step, save=self._own(asked, manifest, state))
        generation = generations.read(disk, path)
        if generation in _PENDING:
            _require_free(state, manifest.save.step, asked)
            source = evolve(source, verify=True)  # it becomes a checkpoint of this run
        return _Found(source=source, step=manifest.save.step, save=None, generation=generation)

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

    def _place(self, asked: str) -> tuple[Disk, str]:
        """The disk and the path on it: the run's own disk for what lies below the output root."""
        absolute = os.path.realpath(os.path.expanduser(asked))
        root = os.path.realpath(self.config.run.output_root)
        if absolute.startswith(f"{root}/"):
            return self.disk, os.path.relpath(absolute, root)
        above, name = os.path.split(absolute)
        return LocalDisk(above), name


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


def _fresh(passed_over: tuple[PassedOver, ...]) -> AdoptResume:
    return AdoptResume(
        resume=ResumeKind.FRESH, step=0, source="", save=None, clocks=Clocks(), passed_over=passed_over
    )


def _exact(found: _Found, step: int, restored: Restored, passed_over: tuple[PassedOver, ...]) -> AdoptResume:
    return AdoptResume(
        resume=ResumeKind.EXACT,
        step=step,
        source=found.source.where,
        save=found.save,
        clocks=restored.clocks,
        passed_over=passed_over,
        notes=restored.notes,
    )


_PENDING = {Generation.EVALUATION_PENDING: "evaluation", Generation.PUBLICATION_PENDING: "publication"}


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
    return Resumption(
        step=command.step,
        kind=command.resume.value,
        source=command.source,
        pending=elsewhere or ("evaluation" if obligations(driver.state) else None),
        promotes=elsewhere is not None,
        passed_over=command.passed_over,
        notes=command.notes,
    )
