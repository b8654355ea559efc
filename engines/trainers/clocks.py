"""The update clocks in trainer.pt.

1. Gradients are not saved, so a checkpoint stands between accumulation windows: `accum` is 0 and every attempt
   was applied or skipped (INV-12). Saving and restoring both insist on it.
2. `iter` is the legacy alias of `optimizer_step`. Where both are written they agree.
3. A legacy checkpoint (no `format`) may lack `attempt_id`, which is then the optimizer step, and the two skip
   counters, which are then zero. What it does have is checked like any other.

Source: the checkpointing contract, "What is (and isn't) saved", update-control state.
"""

from __future__ import annotations

from milepost.engines.trainers.protocols import Tree
from milepost.engines.trainers.saved import Saved, malformed
from milepost.transitions.errors import Corrupt, Refused
from milepost.transitions.values import Clocks


def require_quiescent(clocks: Clocks) -> None:
    """`Refused` for clocks inside an attempt, whatever of the state is to be saved."""
    if fault := _contradiction(clocks):
        raise Refused(f"cannot save inside an accumulation window: {fault}; save after the optimizer step")


def save_clocks(clocks: Clocks) -> Tree:
    """The fields of trainer.pt for clocks that are quiescent."""
    return {
        "optimizer_step": clocks.optimizer_step,
        "iter": clocks.optimizer_step,
        "attempt_id": clocks.attempt_id,
        "accum": 0,
        "skipped_total": clocks.skipped_total,
        "skipped_consecutive": clocks.skipped_consecutive,
    }


def read_clocks(trainer: Saved, *, legacy: bool) -> Clocks:
    """The clocks that trainer.pt holds, or `Corrupt`."""
    step = trainer.count("iter" if legacy and "optimizer_step" not in trainer else "optimizer_step")
    if "iter" in trainer and trainer.count("iter") != step:
        raise malformed(f"{trainer.where}.iter", expected=f"optimizer_step, {step}", found=trainer.count("iter"))
    if not (legacy and "accum" not in trainer) and trainer.count("accum") != 0:
        raise malformed(f"{trainer.where}.accum", expected="0, a quiescent boundary", found=trainer.count("accum"))

    def counter(name: str, default: int) -> int:
        return default if legacy and name not in trainer else trainer.count(name)

    clocks = Clocks(
        optimizer_step=step,
        attempt_id=counter("attempt_id", step),
        skipped_total=counter("skipped_total", 0),
        skipped_consecutive=counter("skipped_consecutive", 0),
    )
    if fault := _contradiction(clocks):
        raise Corrupt(f"{trainer.where}: the update clocks contradict each other: {fault}")
    return clocks


def _contradiction(clocks: Clocks) -> str | None:
    closed = clocks.optimizer_step + clocks.skipped_total
    if clocks.attempt_id != closed:
        return (
            f"attempt_id is {clocks.attempt_id}, applied and skipped updates are "
            f"{clocks.optimizer_step} + {clocks.skipped_total} = {closed}"
        )
    if clocks.skipped_consecutive > clocks.skipped_total:
        return f"{clocks.skipped_consecutive} consecutive skips of {clocks.skipped_total} in total"
    return None
