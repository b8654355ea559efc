"""A run of two roles on a disk: checkpoints 2 and 4, made by a driver and the verbs of checkpoints alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from milepost.engines.attempts import Attempt
from milepost.engines.disks.local import LocalDisk
from milepost.journal.opening import Opened, open_attempt
from milepost.transitions.boundary import ReportRole
from milepost.transitions.run import AdoptResume, EndRun
from milepost.transitions.saving import OpenSave, ReportStored, SaveOpened
from milepost.transitions.values import (
    FULL,
    Clocks,
    Component,
    LoopValue,
    Mode,
    Outcome,
    Reason,
    ResumeKind,
    RoleClocks,
    StoredComponent,
)
from tests.journal.runs import StillAmbient, config

ROLES = ("critic", "policy")
FILES: Mapping[Component, tuple[str, ...]] = {
    Component.MODEL: ("policy/model.pt", "critic/model.pt"),
    Component.OPTIMIZER: ("policy/optim/.metadata", "policy/optim/__0_0.distcp", "critic/optim.pt"),
    Component.TRAINING_STATE: ("policy/trainer.pt", "critic/trainer.pt"),
}
WARMUP = (LoopValue(name="critic_warmup_iterations", value="2"),)


def train_two_roles(run: Path, *, ends: bool = True) -> None:
    """The critic steps at every iteration, the policy from the third on. Without `ends` it is killed in step 5."""
    run.mkdir(parents=True)
    opened = open_attempt(
        config(run.parent),
        Attempt(path=run.name, run_ts=run.name, minted=True),
        disk=LocalDisk(run.parent),
        ambient=StillAmbient(),
        world_size=1,
    )
    zero = tuple(RoleClocks(role=role, clocks=Clocks()) for role in ROLES)
    opened.driver.submit(
        AdoptResume(
            resume=ResumeKind.FRESH, step=0, source="", save=None, clocks=Clocks(), passed_over=(), roles=zero
        )
    )
    for step in range(1, 5):
        opened.driver.submit(ReportRole(role="critic", applied=1))
        if step > 2:
            opened.driver.submit(
                ReportRole(role="policy", skipped=1) if step == 3 else ReportRole(role="policy", applied=1)
            )
        if step % 2 == 0:
            _save(opened, step)
    if ends:
        opened.driver.submit(EndRun(outcome=Outcome.COMPLETED, step=4))
    else:
        _open(opened, 5)
    opened.driver.barrier()
    opened.close()


def _open(opened: Opened, step: int) -> SaveOpened:
    asked = OpenSave(step=step, plan=FULL, reason=Reason.CADENCE, mode=Mode.SYNCHRONOUS, loop_state=WARMUP)
    record = opened.driver.submit(asked)[0]
    assert isinstance(record, SaveOpened)
    return record


def _save(opened: Opened, step: int) -> None:
    save = _open(opened, step).save
    opened.checkpoints.stage(save, size=1, folders=("policy", "policy/optim", "critic"))
    components = tuple(
        StoredComponent(
            component=component,
            files=tuple(opened.checkpoints.put_bytes(save, name, f"{name} at {step}".encode()) for name in names),
        )
        for component, names in FILES.items()
    )
    opened.driver.submit(ReportStored(save=save, components=components, roles=ROLES))
    opened.driver.drain()
