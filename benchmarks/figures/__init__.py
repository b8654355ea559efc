"""One module a figure; `FIGURES` names them in the order of the report."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.figures.append import append
from benchmarks.figures.buckets import buckets
from benchmarks.figures.cost import cost
from benchmarks.figures.durable import durable
from benchmarks.figures.ledger import ledger
from benchmarks.figures.load import load
from benchmarks.figures.memory import memory
from benchmarks.figures.ranks import ranks
from benchmarks.figures.replay import replay
from benchmarks.figures.stall import stall
from benchmarks.measuring import Prepare

FIGURES: Mapping[str, Prepare] = {
    "stall": stall,
    "cost": cost,
    "durable": durable,
    "memory": memory,
    "load": load,
    "ranks": ranks,
    "buckets": buckets,
    "append": append,
    "ledger": ledger,
    "replay": replay,
}
