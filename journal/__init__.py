"""The log, the facade, replay and forensics: what a trainer embeds and what tells what happened.

Names are imported when they are first asked for: the command line reads journals without loading torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from milepost.engines.applications import CheckpointManifest, shard_names
    from milepost.journal.boundaries import Verdict
    from milepost.journal.config import Config
    from milepost.journal.facade import Journal
    from milepost.journal.restoring import Resumption
    from milepost.journal.sampling.boundaries import SamplingBoundary
    from milepost.journal.sampling.ledger import SamplingReplayLedger
    from milepost.transitions.errors import (
        Busy,
        Corrupt,
        Fenced,
        IllegalTransition,
        MilepostError,
        Misconfigured,
        NewerVersion,
        NotACheckpoint,
        NotResumable,
        Refused,
        Unavailable,
    )
    from milepost.transitions.sampling import SamplingToken

__all__ = [
    "Busy",
    "CheckpointManifest",
    "Config",
    "Corrupt",
    "Fenced",
    "IllegalTransition",
    "Journal",
    "MilepostError",
    "Misconfigured",
    "NewerVersion",
    "NotACheckpoint",
    "NotResumable",
    "Refused",
    "Resumption",
    "SamplingBoundary",
    "SamplingReplayLedger",
    "SamplingToken",
    "Unavailable",
    "Verdict",
    "shard_names",
]

_ELSEWHERE = {
    "CheckpointManifest": "milepost.engines.applications",
    "shard_names": "milepost.engines.applications",
    "Config": "milepost.journal.config",
    "Journal": "milepost.journal.facade",
    "Verdict": "milepost.journal.boundaries",
    "Resumption": "milepost.journal.restoring",
    "SamplingBoundary": "milepost.journal.sampling.boundaries",
    "SamplingReplayLedger": "milepost.journal.sampling.ledger",
    "SamplingToken": "milepost.transitions.sampling",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_ELSEWHERE.get(name, "milepost.transitions.errors")), name)
    globals()[name] = value
    return value
