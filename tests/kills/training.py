"""A small deterministic run that may die at any moment, and a server that forks one for each request.

The server has everything imported, so that a start costs milliseconds. It reads one JSON object a line:

    {"root": …, "name": …, "asynchronous": …, …}   forks a run, the arguments of `run`, answers with its pid
    {}                                             waits for it, answers with its status

A run appends to `notes`, a file that no kill and no power cut can reach: `opened <step>` when it continues from
there, `evaluated <step>`, `saved <step>` for every save that was acknowledged, `error <type>: …` for the one error it
may end with, and `untyped …` for what it must not.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from milepost.engines.trainers import PlainTrainer, ShuffledBatches
from milepost.journal import Config, Journal
from milepost.transitions import errors
from milepost.transitions.errors import MilepostError

STEPS, SAVE_EVERY, VALIDATE_EVERY = 16, 2, 6
TYPED, UNTYPED = 3, 4
"""Exit codes of a run that ended with an error of milepost, and with any other."""

_WIDTH, _EXAMPLES = 96, 64


def run(*, root: str, name: str, asynchronous: bool, notes: str, policies: bool, pause_in: int | None) -> int:
    """Train to the end, from wherever the run is; its exit code.

    With `policies` every third save is evaluated before it is announced, and old checkpoints are pruned. With
    `pause_in` the run stops itself (SIGSTOP) within that step, when no save is under way.
    """
    log = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(text: str) -> None:
        os.pwrite(log, f"{text}\n".encode(), 0)  # appends, too; and is no write that a test might make fail

    try:
        _train(_config(root, name, asynchronous=asynchronous, policies=policies), note=note, pause_in=pause_in)
    except MilepostError as error:
        public = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
        note(f"error {public.__name__}: {' '.join(str(error).split())}")
        return TYPED
    except BaseException:  # noqa: BLE001 - the test has to hear of it
        note(f"untyped {' | '.join(traceback.format_exc().splitlines())}")
        return UNTYPED
    note("ended")
    return 0


def _config(root: str, name: str, *, asynchronous: bool, policies: bool) -> Config:
    rl: dict[str, object] = {"save_every": SAVE_EVERY, "save_async": asynchronous, "keep_optim_last": 0}
    if policies:
        validation = {"every_steps": VALIDATE_EVERY, "save_checkpoint": True}
        rl |= {"keep_optim_last": 1, "keep_model_last": 3, "validation": validation}
    return Config.load({"run": {"output_root": root, "name": name}, "rl": rl})


def _train(config: Config, *, note: Callable[[str], None], pause_in: int | None) -> None:
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    examples = torch.randn(_EXAMPLES, _WIDTH)
    model = nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), nn.Dropout(0.2), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=STEPS)
    data: ShuffledBatches[int] = ShuffledBatches(_EXAMPLES, batch_size=12, seed=7)
    trainer = PlainTrainer(model=model, optimizer=optimizer, scheduler=scheduler, data=data)
    acknowledged = 0
    with Journal.open(config, trainer=trainer) as journal:
        note(f"opened {journal.resumption.step}")
        for step in journal.steps(until=STEPS, validate=lambda step: note(f"evaluated {step}")):
            batch = examples[next(data)]
            loss = functional.mse_loss(model(batch), batch)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            optimizer.step()
            scheduler.step()
            journal.report(loss=loss.item(), draw=random.random() + np.random.random())
            # The pointer moves behind a barrier: what it names is published, durable and durably recorded.
            latest = journal.state.pointer.at
            if latest is not None and latest.step > acknowledged:
                acknowledged = latest.step
                note(f"saved {acknowledged}")
            if step == pause_in:
                journal.finalize()
                os.kill(os.getpid(), signal.SIGSTOP)
    note(f"saved {STEPS}")


def serve() -> None:
    """Answer requests until the input ends."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:  # a whole run, so that what is imported late is imported here
        run(root=folder, name="warm", asynchronous=True, notes=f"{folder}/notes", policies=True, pause_in=None)
    pid = 0
    for line in sys.stdin:
        request = json.loads(line)
        if request:
            _end(pid)
            pid = os.fork()
            if pid == 0:
                os._exit(run(**request))
            print(pid, flush=True)
        else:
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
            pid = 0
    _end(pid)


def _end(pid: int) -> None:
    """Kill a run that nobody waited for: the test that started it has failed."""
    if pid:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # only installed packages are imported by name
    serve()
