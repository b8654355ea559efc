"""Effect to report: one table over all effects.

Performing is idempotent (INV-13) and answers with a command that says what was proved by looking. A snapshot never
enters an effect: it is held here under its save's id, and given back as soon as its bytes are durable or lost. What
every rank writes together is reported before the rest, which may then be written beside the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from milepost.engines.checkpoints import Checkpoints, GivenUp, Uncertain, marker, sampled
from milepost.engines.checkpoints.manifest import Manifest
from milepost.engines.crew.failures import Lost
from milepost.transitions.archiving import ArchiveSave, ReportArchived, ReportArchiveFailed
from milepost.transitions.errors import Corrupt, Fenced, Unavailable
from milepost.transitions.machine import Command, Effect
from milepost.transitions.pointing import AdvancePointer, ReportPointed
from milepost.transitions.retention import PrunePart, ReportPruned, ReportPruneFailed
from milepost.transitions.saving import (
    ObserveSave,
    ReportAbsent,
    ReportFound,
    ReportGivenUp,
    ReportSealed,
    ReportStored,
    SealSave,
    StorePayload,
)
from milepost.transitions.sweeping import ClearDebris, ReportCleared
from milepost.transitions.validation import MarkGeneration, ReportMarked
from milepost.transitions.values import FULL, Component, SaveId, StoredComponent, Witness

if TYPE_CHECKING:
    from milepost.engines.archive.archiver import Archiver
    from milepost.engines.crew.company import Payload


@frozen(kw_only=True)
class Engines:
    """What performs the effects of one writer."""

    checkpoints: Checkpoints
    run_ts: str
    checkpoint_format: str
    world_size: int
    milepost: str
    archiver: Archiver | None = None
    held: dict[SaveId, Payload] = field(factory=dict)

    def perform(self, effect: Effect, *, witness: Witness) -> Command:
        """Do what the effect says and report. `witness` is the journal's durable head, for the manifest."""
        try:
            return _PERFORM[type(effect)](self, effect, witness)
        except GivenUp as failure:
            assert isinstance(effect, StorePayload | SealSave), f"{type(effect).__name__} cannot be given up"
            return ReportGivenUp(save=effect.save, code=failure.code, detail=failure.detail)

    def _store(self, effect: StorePayload, witness: Witness) -> Command:
        payload, over = self.held[effect.save], True
        try:
            components = self._with_sampling(effect, payload.store(effect.save, self.checkpoints))
            over = payload.stored
        except (GivenUp, Uncertain, Fenced):
            raise
        except Exception as error:  # whatever broke, it broke before anything could be visible
            code = "rank-lost" if isinstance(error, Lost) else type(error).__name__
            raise GivenUp(code, str(error)) from error
        finally:
            if over:
                self.forget(effect.save)
        return ReportStored(save=effect.save, components=components, roles=payload.company.roles if over else ())

    def _with_sampling(
        self, effect: StorePayload, components: tuple[StoredComponent, ...]
    ) -> tuple[StoredComponent, ...]:
        """What was stored, with the boundary that the save carries as a file of its training state."""
        if effect.sampling is None or all(one.component is not Component.TRAINING_STATE for one in components):
            return components
        file = sampled.put(self.checkpoints, effect.save, effect.sampling)
        return tuple(
            evolve(one, files=(*one.files, file)) if one.component is Component.TRAINING_STATE else one
            for one in components
        )

    def forget(self, save: SaveId) -> None:
        """Give the snapshot of this save back. Harmless where that was done."""
        if (payload := self.held.pop(save, None)) is not None:
            payload.release()

    def _seal(self, effect: SealSave, witness: Witness) -> Command:
        manifest = Manifest(
            save=effect.save,
            run_ts=self.run_ts,
            plan=effect.plan,
            checkpoint_format=self.checkpoint_format,
            world_size=self.world_size,
            components=effect.components,
            witness=witness,
            milepost=self.milepost,
        )
        mark = None
        if effect.roles:
            said = marker.of_boundary(effect.save, roles=effect.roles, loop_state=effect.loop_state)
            mark = marker.encode(said)
        return ReportSealed(
            save=effect.save, manifest=self.checkpoints.seal(manifest, pending=effect.pending, marker=mark)
        )

    def _observe(self, effect: ObserveSave, witness: Witness) -> Command:
        found = self.checkpoints.observe(effect.save, plan=effect.plan)
        if found is None:
            return ReportAbsent(save=effect.save)
        return ReportFound(save=effect.save, manifest=found.file, files=found.manifest.files)

    def _point(self, effect: AdvancePointer, witness: Witness) -> Command:
        self.checkpoints.point(effect.save, epoch=effect.epoch)
        return ReportPointed(save=effect.save)

    def _mark(self, effect: MarkGeneration, witness: Witness) -> Command:
        self.checkpoints.mark(effect.save, effect.generation)
        return ReportMarked(save=effect.save, generation=effect.generation)

    def _archive(self, effect: ArchiveSave, witness: Witness) -> Command:
        if self.archiver is None:
            return ReportArchiveFailed(
                save=effect.save, code="off", detail="archives are off; set rl.upload.enabled=true to go on with it"
            )
        tree = self.archiver.checkpoints if effect.plan == FULL else self.archiver.artifacts
        try:
            done = self.archiver.archive(f"{tree}/{effect.save.directory}", destination=effect.destination)
        except Exception as error:  # noqa: BLE001 -- whatever broke, the local copy is whole and the run can go on
            return ReportArchiveFailed(save=effect.save, code=type(error).__name__, detail=str(error))
        return ReportArchived(save=effect.save, files=done.files, size=done.bytes, sent=len(done.sent))

    def _prune(self, effect: PrunePart, witness: Witness) -> Command:
        try:
            self.checkpoints.prune(effect.save, effect.part, effect.files)
        except Uncertain:
            raise
        except (Unavailable, Corrupt) as failure:  # nothing rests on what is left: the run goes on
            return ReportPruneFailed(save=effect.save, part=effect.part, detail=str(failure))
        return ReportPruned(save=effect.save, part=effect.part)

    def _clear(self, effect: ClearDebris, witness: Witness) -> Command:
        return ReportCleared(names=self.checkpoints.clear(epoch=effect.epoch, abandoned=effect.abandoned))


_PERFORM: Mapping[type, Callable[[Engines, Any, Witness], Command]] = {
    StorePayload: Engines._store,
    SealSave: Engines._seal,
    ObserveSave: Engines._observe,
    AdvancePointer: Engines._point,
    MarkGeneration: Engines._mark,
    ArchiveSave: Engines._archive,
    PrunePart: Engines._prune,
    ClearDebris: Engines._clear,
}
