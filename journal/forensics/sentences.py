"""Each kind of record as a sentence for people. The table covers every kind; a test checks that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from milepost.transitions.archiving import ArchiveDeclared, ArchiveFailed, ArchiveMarked
from milepost.transitions.boundary import BoundaryOpened, RolesResumed, RoleStored, RoleUpdated
from milepost.transitions.emergency import EmergencyCovered, TerminationObserved
from milepost.transitions.machine import Record
from milepost.transitions.pointing import PointerAdvanced
from milepost.transitions.retention import Part, Pruned, PruneFailed, PruneOpened
from milepost.transitions.run import RunEnded, RunOpened, RunResumed, SegmentOpened, StoreProbed
from milepost.transitions.sampling import SamplingRestored, WorkIssued, WorkSettled
from milepost.transitions.saving import ArtifactSealed, ComponentStored, SaveAbandoned, SaveOpened, SaveSealed
from milepost.transitions.sweeping import DebrisCleared
from milepost.transitions.updates import StepReported, UpdateAborted, UpdateApplied, UpdateOpened, UpdateSkipped
from milepost.transitions.validation import (
    EvaluationFailed,
    EvaluationPassed,
    EvaluationPended,
    PublicationCompleted,
    PublicationPended,
)
from milepost.transitions.values import FULL, LoopValue, ResumeKind, RoleClocks, SamplingPoint


def sentence(record: Record) -> str:
    """What the record promises, in words."""
    return SENTENCES[type(record)](record)


def step_of(record: Record) -> int | None:
    """The step that the record speaks of, where it speaks of one."""
    save = getattr(record, "save", None)
    step: int | None = getattr(record, "step", None if save is None else save.step)
    return step


def size(count: int) -> str:
    """Bytes for people: `1.5 MiB`."""
    if count < 1024:
        return f"{count} B"
    scaled = count / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if scaled < 1024:
            return f"{scaled:.1f} {unit}"
        scaled /= 1024
    return f"{scaled:.1f} TiB"


def roles_told(roles: Sequence[RoleClocks]) -> str:
    """The roles with their counters: `critic at optimizer step 9, policy at optimizer step 4`."""
    return ", ".join(f"{one.role} at optimizer step {one.clocks.optimizer_step}" for one in roles)


def loop_told(loop_state: Sequence[LoopValue]) -> str:
    """A loop's own state: `critic_warmup_iterations=5, lr=0.1`, each value as JSON writes it."""
    return ", ".join(f"{one.name}={one.value}" for one in loop_state)


def _segment_opened(record: SegmentOpened) -> str:
    closed = "; ".join(
        f"segment {one.number} ends at byte {one.length} behind entry {one.seq}"
        + (f", {size(one.left)} left behind" if one.left else "")
        for one in record.closes
    )
    return f"segment {record.number} begins" + (f": {closed}" if closed else "")


def _run_opened(record: RunOpened) -> str:
    return f"epoch {record.epoch}: process {record.pid} on {record.host} owns the run (milepost {record.milepost})"


def _store_probed(record: StoreProbed) -> str:
    kept = ", ".join(one.name.replace("_", " ") for one in record.promises)
    return f"{record.store} was seen to keep: {kept}"


def _run_resumed(record: RunResumed) -> str:
    if record.resume is ResumeKind.FRESH:
        text = "a fresh start"
    else:
        text = f"continues at step {record.step} from {record.source} ({record.resume.value})"
    if record.passed_over:
        text += "; passed over " + ", ".join(f"{one.name} ({one.reason})" for one in record.passed_over)
    return text


def _run_ended(record: RunEnded) -> str:
    return f"ended by itself after step {record.step}: {record.outcome.value}" + _because(record.detail)


def _step_reported(record: StepReported) -> str:
    return f"step {record.step}: " + ", ".join(f"{one.name}={one.value}" for one in record.metrics)


def _save_opened(record: SaveOpened) -> str:
    plan = "everything" if record.plan == FULL else ", ".join(part.value for part in record.plan)
    return f"save {record.save} of {plan} begins, {record.reason.value} and {record.mode.value}" + _because(
        record.why
    )


def _component_stored(record: ComponentStored) -> str:
    total = sum(file.size for file in record.files)
    names = ", ".join(file.path for file in record.files) or "no file"
    return f"save {record.save}: {record.component.value} is durable in staging ({names}, {size(total)})"


def _boundary_opened(record: BoundaryOpened) -> str:
    return f"save {record.save} joins {roles_told(record.roles)}" + _because(loop_told(record.loop_state))


def _role_updated(record: RoleUpdated) -> str:
    count, what = (record.applied, "applied") if record.applied else (record.skipped, "skipped")
    return f"{record.role}: {count} update{'s were' if count > 1 else ' was'} {what}"


def _roles_resumed(record: RolesResumed) -> str:
    return f"the roles are {roles_told(record.roles)}" + _because(loop_told(record.loop_state or ()))


def _save_abandoned(record: SaveAbandoned) -> str:
    return f"save {record.save} was given up, nothing of it is visible: {record.code}" + _because(record.detail)


def _prune_opened(record: PruneOpened) -> str:
    what = record.save.directory if record.part is Part.CHECKPOINT else f"the optimizer of {record.save.directory}"
    return f"{what} is about to be deleted: {record.why} ({', '.join(record.files)})"


def _pruned(record: Pruned) -> str:
    if record.part is Part.CHECKPOINT:
        return f"{record.save.directory} is deleted"
    return f"the optimizer of {record.save.directory} is deleted; its weights stay, and no run resumes from it"


def _prune_failed(record: PruneFailed) -> str:
    return (
        f"the {record.part.value} of {record.save.directory} was not deleted, or only in part; nobody relies on it, "
        "and it is tried again later" + _because(record.detail)
    )


def _archive_declared(record: ArchiveDeclared) -> str:
    waits = "; its publication waits for that" if record.strict else ""
    return f"{record.save.directory} is to be archived at {record.destination}{waits}"


def _archive_marked(record: ArchiveMarked) -> str:
    return (
        f"{record.save.directory} is archived: {record.files} files of {record.size} bytes are proven there, "
        f"{record.sent} of them were sent now, and the receipt lies beside the local copy"
    )


def _archive_failed(record: ArchiveFailed) -> str:
    return f"{record.save.directory} was not archived ({record.code}: {record.detail}); the local copy is untouched"


def _point_told(point: SamplingPoint) -> str:
    return f"epoch {point.epoch} with {point.remaining} completions remaining"


def _work_issued(record: WorkIssued) -> str:
    count = f"{record.completions} completion{'s' if record.completions > 1 else ''}"
    return f"work {record.number} of {count} is issued, up to {_point_told(record.after)}"


def _debris_cleared(record: DebrisCleared) -> str:
    return f"staging was cleared of {', '.join(record.names)}" if record.names else "staging holds nothing old"


def _because(detail: str) -> str:
    return f" ({detail})" if detail else ""


SENTENCES: Mapping[type, Callable[[Any], str]] = {
    SegmentOpened: _segment_opened,
    RunOpened: _run_opened,
    StoreProbed: _store_probed,
    RunResumed: _run_resumed,
    RunEnded: _run_ended,
    UpdateOpened: lambda r: f"step {r.step} begins (attempt {r.attempt})",
    UpdateApplied: lambda r: f"attempt {r.attempt} was applied",
    UpdateSkipped: lambda r: f"attempt {r.attempt} was skipped" + _because(r.why),
    UpdateAborted: lambda r: f"attempt {r.attempt} was taken back" + _because(r.why),
    StepReported: _step_reported,
    SaveOpened: _save_opened,
    ComponentStored: _component_stored,
    SaveSealed: lambda r: f"{r.save.directory} is published, whole and durable (save {r.save})",
    ArtifactSealed: lambda r: f"{r.save.directory} is published as an artifact, no resume source (save {r.save})",
    SaveAbandoned: _save_abandoned,
    BoundaryOpened: _boundary_opened,
    RoleStored: lambda r: f"save {r.save}: everything of {r.role} is durable in staging",
    RoleUpdated: _role_updated,
    RolesResumed: _roles_resumed,
    EvaluationPended: lambda r: f"save {r.save} will wait for its evaluation once it is published",
    EvaluationFailed: lambda r: (
        f"the evaluation of {r.save.directory} failed and is still pending" + _because(r.detail)
    ),
    EvaluationPassed: lambda r: f"{r.save.directory} passed its evaluation, which is never run again",
    PublicationPended: lambda r: f"{r.save.directory} says that it passed and that only its publication is pending",
    PublicationCompleted: lambda r: f"{r.save.directory} says that it is published: its validation is complete",
    ArchiveDeclared: _archive_declared,
    ArchiveMarked: _archive_marked,
    ArchiveFailed: _archive_failed,
    PruneOpened: _prune_opened,
    Pruned: _pruned,
    PruneFailed: _prune_failed,
    PointerAdvanced: lambda r: f"latest names {r.save.directory}",
    DebrisCleared: _debris_cleared,
    TerminationObserved: lambda r: f"told to stop at step {r.step}: {r.reason}" + _because(r.detail),
    EmergencyCovered: lambda r: f"{r.save.directory} covers the stop at step {r.step}",
    WorkIssued: _work_issued,
    WorkSettled: lambda r: f"completion {r.index} of work {r.number} is settled",
    SamplingRestored: lambda r: f"sampling goes on from {_point_told(r.boundary)}",
}
