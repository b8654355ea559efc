"""What the batch jobs run: a small deterministic training that takes its time.

    python training.py ROOT NAME PACE_S         # to the end; the same line again goes on

A start says first with which restart count Slurm made it, and from which step it goes on.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from milepost.engines.trainers import PlainTrainer, ShuffledBatches
from milepost.journal import Config, Journal

STEPS = 100
_WIDTH, _EXAMPLES, _SEED = 32, 64, 7


def train(root: str, name: str, *, pace_s: float) -> None:
    """Train to the end or until told to stop. The only regular save is that of the last step."""
    torch.set_num_threads(1)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(_SEED)
    examples = torch.randn(_EXAMPLES, _WIDTH)
    model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Dropout(0.2), nn.GELU(), nn.Linear(_WIDTH, _WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data: ShuffledBatches[int] = ShuffledBatches(_EXAMPLES, batch_size=12, seed=_SEED)
    trainer = PlainTrainer(model=model, optimizer=optimizer, data=data)
    config = Config.load({"run": {"output_root": root, "name": name}, "rl": {"save_every": STEPS}})
    with Journal.open(config, trainer=trainer) as journal:
        restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
        print(f"restart {restarts} goes on from step {journal.resumption.step}", flush=True)
        for _ in journal.steps(until=STEPS):
            batch = examples[next(data)]
            loss = functional.mse_loss(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()
            journal.report(loss=loss.item(), draw=random.random())
            time.sleep(pace_s)


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # only installed packages are imported by name
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    train(sys.argv[1], sys.argv[2], pace_s=float(sys.argv[3]))
