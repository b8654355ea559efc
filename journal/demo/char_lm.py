"""A small character-level language model of the Python standard library, in training that may be killed at any time.

    python char_lm.py --output-root /tmp/runs --steps 200 --save-every 20
    python char_lm.py --output-root /tmp/runs --steps 200 --save-every 20    # after a crash: the same line again

1. Everything that decides the next number is either fixed in this file or in the checkpoint: weights, moments, the
   schedule, the place in the shuffled text, the random stream that dropout draws from.
2. The lines between the `milepost` marks are all that makes it crash-proof; the rest is ordinary PyTorch.
3. A run that was interrupted ends with the same loss as one that was not, to the last bit.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

# >>> milepost
from milepost.engines.trainers import PlainTrainer, ShuffledBatches
from milepost.journal import Config, Journal

# <<< milepost

TEXT = (
    "_pydecimal argparse ast calendar configparser dataclasses difflib doctest enum fractions functools heapq "
    "inspect ipaddress locale mailbox optparse pdb pickle pickletools plistlib pydoc random shutil smtplib "
    "socket ssl statistics subprocess tarfile tempfile textwrap threading tokenize traceback typing uuid weakref"
)
"""Modules whose source is the text: about 2.2 million characters, on every machine that has Python."""

CONTEXT, BATCH, WIDTH, HEADS, DEPTH, DROPOUT = 48, 8, 128, 4, 3, 0.1
RATE, WARMUP, SEED = 2e-3, 10, 1


def read_text() -> tuple[Tensor, int]:
    """The text as int64[characters] of indices into its alphabet, and the size of that."""
    library = Path(sysconfig.get_paths()["stdlib"])
    text = "".join((library / f"{name}.py").read_text(encoding="utf-8") for name in TEXT.split())
    alphabet = {character: index for index, character in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[character] for character in text]), len(alphabet)


class Block(nn.Module):
    """Causal attention, then a perceptron, each beside a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_perceptron = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.queries_keys_values(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        refined: Tensor = x + self.dropout(self.perceptron(self.before_perceptron(x)))
        return refined


class CharLM(nn.Module):
    """int64[batch, context] of characters to float32[batch, context, alphabet] of logits for the next ones."""

    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(alphabet, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, alphabet)

    def forward(self, characters: Tensor) -> Tensor:
        x = self.characters(characters) + self.places.weight[: characters.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


class WarmupCosine(torch.optim.lr_scheduler.LambdaLR):
    """A linear warm-up, then half a cosine down to a tenth at step `until`."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, until: int) -> None:
        self.until = until
        super().__init__(optimizer, self._factor)

    def _factor(self, step: int) -> float:
        done = min(max(step - WARMUP, 0) / max(self.until - WARMUP, 1), 1.0)
        return min((step + 1) / WARMUP, 0.55 + 0.45 * math.cos(math.pi * done))

    def identity(self) -> dict[str, int]:
        """What the schedule was built from: a checkpoint of another schedule is refused, not bent."""
        return {"warmup": WARMUP, "until": self.until}


def train(args: argparse.Namespace) -> float | None:
    """Train up to step `args.steps`; the loss of the last step, or None where all of them were done before."""
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(SEED)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # any fixed number: how a sum is split over threads decides its last bits
    text, alphabet = read_text()
    model = CharLM(alphabet)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = WarmupCosine(optimizer, until=args.steps)
    windows = text[: len(text) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    batches: ShuffledBatches[int] = ShuffledBatches(len(windows), batch_size=BATCH, seed=SEED)
    loss = None

    def train_one_step() -> float:
        batch = windows[next(batches)]
        logits = model(batch[:, :-1])
        error = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        error.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return error.item()

    # >>> milepost
    trainer = PlainTrainer(model=model, optimizer=optimizer, scheduler=schedule, data=batches)
    run = {"output_root": args.output_root, "name": args.name}
    config = Config.load({"run": run, "rl": {"save_every": args.save_every}}, overrides=args.overrides)
    with Journal.open(config, trainer=trainer) as journal:
        for step in journal.steps(until=args.steps):
            loss = train_one_step()
            journal.report(loss=loss)
            # <<< milepost
            if step % args.print_every == 0:
                print(f"step {step}  loss {loss:.4f}", flush=True)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a character-level language model; run it again to go on.")
    parser.add_argument("--output-root", default="outputs", help="the folder of all runs")
    parser.add_argument("--name", default="char-lm", help="the run's name below it")
    parser.add_argument("--steps", type=int, default=200, help="where training ends")
    parser.add_argument("--save-every", type=int, default=20, help="steps from one checkpoint to the next")
    parser.add_argument("--print-every", type=int, default=10, help="steps from one printed loss to the next")
    parser.add_argument("overrides", nargs="*", metavar="rl.KEY=VALUE", help="any other knob of milepost")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    loss = train(args)
    if loss is None:
        print(f"all {args.steps} steps were done before")
    else:
        print(f"final loss {loss:.6f} = {loss.hex()}")


if __name__ == "__main__":
    main()
