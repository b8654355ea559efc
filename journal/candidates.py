"""The facts that choosing a resume needs: what the journal sealed, and what a look at the disk found of it."""

from __future__ import annotations

from milepost.engines.checkpoints import Checkpoints
from milepost.transitions.machine import State
from milepost.transitions.resuming import Candidate, Standing
from milepost.transitions.retention import Part
from milepost.transitions.values import parse_iteration


def candidates_of(state: State, checkpoints: Checkpoints) -> tuple[Candidate, ...]:
    """Every checkpoint that the journal sealed and retention left, and every name that the journal does not have."""
    seen = {one.name: one for one in checkpoints.published()}
    sealed = {save.id.directory: save for save in state.saving.sealed.values()}
    found = []
    for name in sorted(seen.keys() | sealed.keys()):
        save = sealed.get(name)
        if save is None:
            detail = seen[name].problem or "the journal has no record of it"
            found.append(Candidate(name=name, step=_step(name), standing=Standing.UNRECORDED, detail=detail))
            continue
        lost = state.retention.lost(save.id.step)
        if lost is Part.CHECKPOINT and name not in seen:
            continue
        problem = checkpoints.examine(save, lost=lost) if name in seen else "the directory is gone"
        standing = Standing.DAMAGED if problem else Standing.SOUND if lost is None else Standing.RELEASED
        detail = problem or (_LOST[lost] if lost is not None else "")
        found.append(Candidate(name=name, step=save.id.step, standing=standing, save=save.id, detail=detail))
    return tuple(found)


_LOST = {
    Part.OPTIMIZER: "retention released its optimizer",
    Part.CHECKPOINT: "retention is removing it",
}


def _step(name: str) -> int:
    step = parse_iteration(name)
    assert step is not None, name
    return step
