"""The facts that choosing a resume needs: what the journal sealed, and what a look at the disk found of it."""

from __future__ import annotations

from milepost.engines.checkpoints import Checkpoints
from milepost.transitions.machine import State
from milepost.transitions.resuming import Candidate, Standing
from milepost.transitions.values import parse_iteration


def candidates_of(state: State, checkpoints: Checkpoints) -> tuple[Candidate, ...]:
    """Every checkpoint that the journal sealed, and every name beside them that it does not know."""
    seen = {one.name: one for one in checkpoints.published()}
    sealed = {save.id.directory: save for save in state.saving.sealed.values()}
    found = []
    for name in sorted(seen.keys() | sealed.keys()):
        save = sealed.get(name)
        if save is None:
            detail = seen[name].problem or "the journal has no record of it"
            found.append(Candidate(name=name, step=_step(name), standing=Standing.UNRECORDED, detail=detail))
            continue
        problem = checkpoints.examine(save) if name in seen else "the directory is gone"
        standing = Standing.DAMAGED if problem else Standing.SOUND
        found.append(Candidate(name=name, step=save.id.step, standing=standing, save=save.id, detail=problem))
    return tuple(found)


def _step(name: str) -> int:
    step = parse_iteration(name)
    assert step is not None, name
    return step
