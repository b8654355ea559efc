"""The facts that choosing a resume needs: what the journal sealed, and what a look at the disk found of it.

A start looks at the newest checkpoint, and back from a damaged one to the first that is sound: how long it takes does
not grow with the age of the run.
"""

from __future__ import annotations

from attrs import evolve as replaced

from milepost.engines.checkpoints import Checkpoints
from milepost.transitions.machine import State
from milepost.transitions.resuming import Candidate, Standing
from milepost.transitions.retention import Part
from milepost.transitions.values import parse_iteration


def candidates_of(state: State, checkpoints: Checkpoints, *, every: bool) -> tuple[Candidate, ...]:
    """Every checkpoint that the journal sealed and retention left, and every name that the journal does not have.

    With `every` each is looked at; otherwise those older than the newest sound one are `UNSEEN`.
    """
    there = frozenset(checkpoints.names())
    sealed = {save.id.directory: save for save in state.saving.sealed.values()}
    found: list[Candidate] = []
    settled = False
    for name in sorted(there | sealed.keys(), key=_step, reverse=True):
        save = sealed.get(name)
        if save is None:
            claim = checkpoints.claimed(name)
            if claim is not None:
                detail = claim.problem or "the journal has no record of it"
                found.append(Candidate(name=name, step=_step(name), standing=Standing.UNRECORDED, detail=detail))
            continue
        lost = state.retention.lost(save.id.step)
        if lost is Part.CHECKPOINT and name not in there:
            continue
        one = Candidate(name=name, step=save.id.step, standing=Standing.UNSEEN, save=save.id)
        if every or not settled:
            problem = checkpoints.examine(save, lost=lost) if name in there else "the directory is gone"
            one = replaced(one, standing=Standing.DAMAGED if problem else Standing.SOUND, detail=problem)
        if lost is not None and one.standing is not Standing.DAMAGED:
            one = replaced(one, standing=Standing.RELEASED, detail=_LOST[lost])
        settled = settled or one.standing is Standing.SOUND
        found.append(one)
    return tuple(reversed(found))


_LOST = {
    Part.OPTIMIZER: "retention released its optimizer",
    Part.CHECKPOINT: "retention is removing it",
}


def _step(name: str) -> int:
    step = parse_iteration(name)
    assert step is not None, name
    return step
