"""Two ranks with an FSDP2 state: how long until a save is durable, and until a saved state is in the live tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from benchmarks.measuring import Bar, Case, Figure, Options
from benchmarks.world import World

RANKS = 2
OURS_DCP = "milepost save, dcp, digests on"
OURS_CONSOLIDATED = "milepost save, consolidated, digests on"
PEER_DCP = "DCP save"
PEER_GATHERED = "gather + torch.save + fsync"
LOAD_PEER = "DCP load"
LOAD = "milepost load, dcp"
LOAD_CHECKED = "milepost load, dcp, digests checked"


@contextmanager
def ranks(options: Options) -> Iterator[Figure]:
    """See the bars. A time is that of the slowest rank, between two barriers."""
    folder = options.scratch / "ranks"
    folder.mkdir()
    with World(RANKS, mib=options.mib, folder=folder) as world:
        for form in ("dcp", "consolidated"):  # what is allocated and planned once is there
            world.run("save", form)
        world.run("clear", "consolidated/**/iter_*")
        world.run("peer", "dcp")
        size = world.facts["state_bytes"]
        yield Figure(
            name="ranks",
            title="Two ranks, FSDP2: saving and loading",
            facts={"ranks": RANKS, "state_bytes": size, "digest": "blake3; the peers compute none"},
            cases=[
                Case(
                    name=OURS_DCP,
                    run=partial(world.run, "save", "dcp"),
                    before=partial(world.run, "clear", "dcp/**/iter_*"),
                ),
                Case(
                    name=PEER_DCP,
                    run=partial(world.run, "peer", "dcp"),
                    before=partial(world.run, "clear", "peer-dcp"),
                ),
                Case(
                    name=OURS_CONSOLIDATED,
                    run=partial(world.run, "save", "consolidated"),
                    after=partial(world.run, "clear", "consolidated/**/iter_*"),
                ),
                Case(
                    name=PEER_GATHERED,
                    run=partial(world.run, "peer", "gathered"),
                    after=partial(world.run, "clear", "peer-gathered"),
                ),
                *(
                    Case(name=f"{where}: {name}", run=partial(world.run, "load", who, where))
                    for where in ("cold", "warm")
                    for name, who in ((LOAD, "dcp"), (LOAD_CHECKED, "dcp checked"), (LOAD_PEER, "peer"))
                ),
            ],
            bars=[
                _faster("dcp", OURS_DCP, PEER_DCP),
                _faster("consolidated", OURS_CONSOLIDATED, PEER_GATHERED),
                *(
                    Bar(
                        says=f"{where}: not slower than DCP load",
                        case=f"{where}: {name}",
                        measure="load_s",
                        against=(f"{where}: {LOAD_PEER}",),
                        at_most=1.0,
                    )
                    for where in ("cold", "warm")
                    for name in (LOAD, LOAD_CHECKED)
                ),
                Bar(says="the journal's share of a save", case=OURS_DCP, measure="journal_share", at_most=0.02),
            ],
            warm_bytes=2 * int(size),
            profiled=False,
        )


def _faster(form: str, case: str, peer: str) -> Bar:
    says = f"{form}: durable at least 1.5 x faster than {peer}"
    return Bar(says=says, case=case, measure="durable_s", against=(peer,), at_most=1 / 1.5)
