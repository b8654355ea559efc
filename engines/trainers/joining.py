"""What each rank has for itself, put into the trees that one rank saves for all.

    rng         the random streams of the rank      trainer.pt, `rng` (`streams.py`)
    identity    of its data source                  data.pt (`cursors.py`)
    cursor      of its data source                  data.pt

1. `Snapshot.local` holds these, absent where a rank has none. A trainer whose trees are whole has an empty one, and
   its trees stay as they are.
2. For one rank the joined trees are those of a run that never heard of ranks, key by key in the same order.
3. Ranks that contradict each other are `Refused`, each by its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from milepost.engines.trainers.cursors import join_cursors
from milepost.engines.trainers.protocols import Tree
from milepost.engines.trainers.streams import join_streams
from milepost.transitions.errors import Refused


def join(trees: Mapping[str, Tree], locals_: Sequence[Tree]) -> dict[str, Tree]:
    """`trees` of the leading rank with the local state of every rank, in the order of ranks, put in."""
    joined = dict(trees)
    streams = [local.get("rng") for local in locals_]
    if missing := [rank for rank, saved in enumerate(streams) if saved is None]:
        if len(missing) < len(streams):
            raise Refused(
                f"rank {', '.join(map(str, missing))} gave no random streams and the others did: "
                "every rank has to capture with the same kind of trainer"
            )
    elif "trainer" in joined:
        joined["trainer"] = _with_streams(joined["trainer"], join_streams(streams))
    data = join_cursors(locals_)
    return joined if data is None else {**joined, "data": data}


def _with_streams(trainer: Tree, inventory: Tree) -> Tree:
    """Before `extra`, where trainer.pt always had them: equal states give equal bytes."""
    names = list(trainer)
    at = names.index("extra") if "extra" in trainer else len(names)
    before, after = names[:at], names[at:]
    return {
        **{name: trainer[name] for name in before},
        "rng": inventory,
        **{name: trainer[name] for name in after},
    }
