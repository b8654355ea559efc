"""A model that FSDP2 spreads over the ranks of torchrun: saved by all of them, killed, and continued.

    torchrun --nproc-per-node 2 fsdp2_run.py --output-root /tmp/runs    # train; the same line again goes on
    python fsdp2_run.py --output-root /tmp/runs --drill                 # lose ranks, go on, and compare

1. Every rank runs the same lines. `Journal.open` comes behind `init_process_group` and `fully_shard`; from then on
   each call of the journal is one that all ranks make.
2. `checkpoint_format=dcp`: each rank writes its own shards, and `torch.distributed.checkpoint.load` of any other
   program reads `model/` and `optim/`. With `consolidated` the model is one portable file instead.
3. Each rank draws its own dropout, and the same number of ranks continues all of that to the last bit. Another number
   (try `--nproc-per-node 3`) continues with equal weights and moments, and says what starts anew.
4. The drill ends rank 1 with SIGKILL while it writes its shards, later rank 0 within a step. The other rank ends by
   itself and says whom it lost; what was published stays, and the next start goes on from there.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional

from milepost.engines.disks import Sink
from milepost.engines.disks.local import LocalDisk
from milepost.engines.trainers import ShardedTrainer, ShuffledBatches
from milepost.journal import Config, Journal
from milepost.transitions.errors import MilepostError

STEPS, SAVE_EVERY, BATCH, SEED = 60, 10, 64, 1
DEATHS = {"writing": 1, "step": 0}
"""Where `--die-in` ends a rank, and which: while it writes its shards of step 30, or within step 45."""


def waves(count: int) -> tuple[Tensor, Tensor]:
    """Points float32[count, 8], and float32[count, 1]: a wave through each."""
    points = torch.randn(count, 8, generator=torch.Generator().manual_seed(SEED))
    return points, points.sum(dim=1, keepdim=True).sin()


def network() -> nn.Sequential:
    """Spread over all ranks, layer by layer."""
    hidden = (nn.Linear(8, 64), nn.GELU(), nn.Dropout(0.05), nn.Linear(64, 64), nn.GELU())
    model = nn.Sequential(*hidden, nn.Linear(64, 1))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model


class DoomedDisk(LocalDisk):
    """A disk on which this rank dies just before it writes its shards of step 30."""

    def create(self, path: str, *, bulk: bool = False) -> Sink:
        if "/30." in path and path.endswith(f"__{DEATHS['writing']}_0.distcp"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().create(path, bulk=bulk)


def train(output_root: str, *, form: str, die_in: str) -> None:
    """One rank's part, to the end or to where a rank is told to die."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)  # the same first weights everywhere
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(SEED + rank)  # and each rank its own dropout
    points, heights = waves(2048)
    batches: ShuffledBatches[int] = ShuffledBatches(len(points), batch_size=BATCH, seed=SEED)

    def train_one_step() -> float:
        mine = next(batches)[rank::ranks]
        loss = functional.mse_loss(model(points[mine]), heights[mine])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        return loss.item()

    trainer = ShardedTrainer(model=model, optimizer=optimizer, data=batches)
    config = Config.load(
        {
            "run": {"output_root": output_root, "name": "waves"},
            "rl": {"save_every": SAVE_EVERY, "checkpoint_format": form, "rank_timeout_s": 120},
        }
    )
    disk = DoomedDisk(output_root) if die_in == "writing" else None
    with Journal.open(config, trainer=trainer, disk=disk) as journal:
        if rank == 0:
            print(f"start: {journal.resumption.kind} at step {journal.resumption.step}, {ranks} ranks", flush=True)
        for step in journal.steps(until=STEPS):
            if (step, die_in) == (45, "step"):
                journal.finalize()  # so that the drill knows what is published
                if rank == DEATHS["step"]:
                    os.kill(os.getpid(), signal.SIGKILL)
            journal.report(loss=train_one_step())
    parameters = [parameter for parameter in model.parameters() if isinstance(parameter, DTensor)]
    with torch.no_grad():
        total = sum((float(parameter.full_tensor().double().sum()) for parameter in parameters), 0.0)
    if rank == 0:
        print(f"final weights sum to {total.hex()}", flush=True)


def drill(output_root: str, *, form: str) -> int:
    """One run that nothing interrupts, one that loses a rank twice; 0 where both end with the same weights."""
    whole = _start(f"{output_root}/whole", form=form, die_in="")
    print("a run that loses ranks:")
    for death, rank in DEATHS.items():
        print(f"--- rank {rank} is killed in: {death}")
        _start(f"{output_root}/killed", form=form, die_in=death)
    print("--- and let go on")
    last = _start(f"{output_root}/killed", form=form, die_in="")
    same = whole.splitlines()[-1] == last.splitlines()[-1]
    print("the same weights to the last bit" if same else "the runs differ")
    return 0 if same else 1


def _start(output_root: str, *, form: str, die_in: str) -> str:
    """Two ranks, as torchrun starts them; what they said."""
    os.makedirs(output_root, exist_ok=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, __file__, "--output-root", output_root, "--format", form, "--die-in", die_in]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, end="")
    ends = [line for line in done.stderr.splitlines() if re.match(r"rank \d+ ends: ", line)]
    print("".join(f"{line}\n" for line in ends), end="", flush=True)
    if (done.returncode != 0) != bool(die_in):
        raise SystemExit(f"exit status {done.returncode}\n{done.stderr}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on several ranks; run it again to go on.")
    parser.add_argument("--output-root", default="", help="the folder of all runs; by default ./outputs")
    parser.add_argument("--format", default="dcp", choices=("dcp", "consolidated"), help="checkpoint_format")
    parser.add_argument("--die-in", default="", choices=("", *DEATHS), help="where a rank is killed")
    parser.add_argument("--drill", action="store_true", help="lose ranks, go on, and compare")
    args = parser.parse_args()
    if args.drill:
        root = args.output_root or tempfile.mkdtemp(prefix="fsdp2-run-")
        raise SystemExit(drill(str(Path(root).absolute()), form=args.format))
    dist.init_process_group("cuda:nccl,cpu:gloo" if torch.cuda.is_available() else "gloo")
    logging.basicConfig(level=logging.INFO if dist.get_rank() == 0 else logging.WARNING, format="%(message)s")
    try:
        train(args.output_root or "outputs", form=args.format, die_in=args.die_in)
    except (MilepostError, RuntimeError) as error:
        # Where a rank is gone torch may notice it first, within a step; then the journal notes it on that error.
        told = getattr(error, "__notes__", (str(error),))[-1]
        raise SystemExit(f"rank {dist.get_rank()} ends: {told}") from error
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    # gloo's threads outlive the group. One that still holds a gathered tensor of Python while the interpreter is torn
    # down aborts the process (torch 2.13); the journal is closed by now, so nothing is left to be torn down in order.
    os._exit(0)


if __name__ == "__main__":
    main()
