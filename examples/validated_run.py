"""Training with a held-out set under every save policy, killed in each pending state and continued.

    python validated_run.py --output-root /tmp/runs                     # train; the same line again goes on
    python validated_run.py --output-root /tmp/runs --drill             # be killed everywhere, and compare

1. Every 20 steps a full checkpoint is published, then evaluated, then announced: `validation.save_checkpoint`. Every
   15 steps the regular plan is due; at step 60 both are, and one save serves them.
2. The held-out points are classified in evaluation mode, so that no random number is drawn: evaluating once or twice
   leaves training the same to the last bit.
3. Only the newest two checkpoints keep their optimizer, and four are kept at all; beside them what the process
   resumed from.
4. The drill ends processes with SIGKILL in four places: while a pending checkpoint is published, inside its
   evaluation, and before each of the two steps of its publication. Every start says what it found pending; the one
   that is to announce dies before it can, while it is opened.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from milepost.engines.disks.local import LocalDisk
from milepost.engines.trainers import PlainTrainer, ShuffledBatches
from milepost.journal import Config, Journal

STEPS, BATCH, SEED = 80, 128, 1
DEATHS = ("publishing", "evaluation", "marking", "announcing")
"""Where `--die-in` ends the process: the first time that it gets there."""


def two_spirals(count: int) -> tuple[Tensor, Tensor]:
    """Points float32[2 * count, 2] on two noisy spirals, and int64[2 * count], which spiral each is on."""
    noise = torch.randn(2 * count, 2, generator=torch.Generator().manual_seed(SEED)) * 0.05
    turn = torch.linspace(0.3, 1.0, count).repeat(2) * 2 * math.pi
    which = torch.arange(2).repeat_interleave(count)
    angle = turn + which * math.pi
    return torch.stack((angle.cos(), angle.sin()), dim=1) * (turn / (2 * math.pi)).unsqueeze(1) + noise, which


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(2, 64),
        nn.Tanh(),
        nn.Dropout(0.05),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Dropout(0.05),
        nn.Linear(64, 2),
    )


class DoomedDisk(LocalDisk):
    """A disk on which the process dies just before something gets a name that ends like this."""

    def __init__(self, root: str, *, before: str) -> None:
        super().__init__(root)
        self._before = before

    def publish(self, source: str, target: str) -> None:
        self._die_before(target)
        super().publish(source, target)

    def link(self, source: str, target: str) -> None:
        self._die_before(target)
        super().link(source, target)

    def _die_before(self, name: str) -> None:
        if name.endswith(self._before):
            os.kill(os.getpid(), signal.SIGKILL)


def settings(output_root: str) -> Config:
    policy = {
        "save_every": 15,
        "keep_optim_last": 2,
        "keep_model_last": 4,
        "validation": {"every_steps": 20, "save_checkpoint": True, "source": "two-spirals-held-out"},
    }
    return Config.load({"run": {"output_root": output_root, "name": "spirals"}, "rl": policy})


def train(output_root: str, *, die_in: str) -> None:
    """Train to the end, or to where the process is told to die."""
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    points, labels = two_spirals(600)
    held_out = torch.arange(len(points)) % 5 == 0
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rows = torch.nonzero(~held_out).flatten()
    batches: ShuffledBatches[int] = ShuffledBatches(len(rows), batch_size=BATCH, seed=SEED)

    def train_one_step() -> float:
        batch = rows[next(batches)]
        loss = functional.cross_entropy(model(points[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        return loss.item()

    def evaluate(step: int) -> None:
        if die_in == "evaluation":
            os.kill(os.getpid(), signal.SIGKILL)
        model.eval()
        with torch.no_grad():
            logits = model(points[held_out])
        model.train()
        right = (logits.argmax(dim=1) == labels[held_out]).float().mean().item()
        print(f"step {step:3}  held out: {right:.1%} right", flush=True)

    trainer = PlainTrainer(model=model, optimizer=optimizer, data=batches)
    with Journal.open(settings(output_root), trainer=trainer, disk=_disk(output_root, die_in)) as journal:
        print(f"start: {journal.resumption.kind} at step {journal.resumption.step}", end="")
        print(f", its {journal.resumption.pending} is pending" if journal.resumption.pending else "", flush=True)
        for _ in journal.steps(until=STEPS, validate=evaluate):
            journal.report(loss=train_one_step())
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    print(f"final weights sum to {float(weights.double().sum()).hex()}", flush=True)


def _disk(output_root: str, die_in: str) -> LocalDisk:
    os.makedirs(output_root, exist_ok=True)
    before = {
        "publishing": "iter_000000020",
        "marking": ".posttrain-validation.1.json",
        "announcing": ".posttrain-validation.2.json",
    }
    return DoomedDisk(output_root, before=before[die_in]) if die_in in before else LocalDisk(output_root)


def drill(output_root: str) -> int:
    """One run that nothing interrupts, one that dies four times; 0 where both end with the same weights."""
    whole = _start(f"{output_root}/whole", die_in="")
    print("a run that is killed in each pending state:")
    for death in DEATHS:
        print(f"--- killed in: {death}")
        _start(f"{output_root}/killed", die_in=death)
    print("--- and let go on")
    last = _start(f"{output_root}/killed", die_in="")
    same = whole.splitlines()[-1] == last.splitlines()[-1]
    print("the same weights to the last bit" if same else "the runs differ")
    return 0 if same else 1


def _start(output_root: str, *, die_in: str) -> str:
    command = [sys.executable, __file__, "--output-root", output_root, "--die-in", die_in]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="")
    expected = -signal.SIGKILL if die_in else 0
    if done.returncode != expected:
        raise SystemExit(f"exit status {done.returncode}, expected {expected}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with a held-out set; run it again to go on.")
    parser.add_argument("--output-root", default="", help="the folder of all runs; by default a new temporary one")
    parser.add_argument("--die-in", default="", choices=("", *DEATHS), help="where to be killed, the first time")
    parser.add_argument("--drill", action="store_true", help="be killed in every pending state, go on, and compare")
    args = parser.parse_args()
    root = args.output_root or tempfile.mkdtemp(prefix="validated-run-")
    if args.drill:
        raise SystemExit(drill(str(Path(root).absolute())))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    train(root, die_in=args.die_in)


if __name__ == "__main__":
    main()
