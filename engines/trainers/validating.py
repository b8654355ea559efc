"""The identity of the validation in trainer.pt: whether the run validates, on which data, and how.

1. The caller gives it: names to plain values, nested where it likes. It is saved under a version.
2. A restore compares it before anything live is touched, values by their exact text: True is not 1. A changed
   identity is refused.
3. Where one side has none there is nothing to compare, and a note says so: an older checkpoint goes on.

Source: the checkpointing contract, "Model-validation identity and transaction state".
"""

from __future__ import annotations

from collections.abc import Mapping

from milepost.engines.trainers.inventory import differences
from milepost.engines.trainers.protocols import Tree
from milepost.engines.trainers.saved import Saved, require_format
from milepost.transitions.errors import NotResumable

FORMAT = "milepost.validation-identity.v1"

_UNSAVED = "the identity of the validation was not saved (older checkpoint): it was not compared"
_UNKNOWN = "the identity of the validation was not given: the saved one was not compared"


def save_validation(identity: Mapping[str, object]) -> Tree:
    return {"format": FORMAT, "identity": dict(identity)}


def compare_validation(trainer: Saved, *, here: Mapping[str, object] | None) -> str | None:
    """None where both sides say the same; else the reason why they were not compared."""
    if "validation" not in trainer:
        return None if here is None else _UNSAVED
    saved = trainer.inner("validation")
    require_format(saved, expected=FORMAT)
    there = saved.inner("identity").tree
    if here is None:
        return _UNKNOWN
    before, now = _told(there), _told(here)
    absent = dict.fromkeys(before | now, "nothing")
    if changed := differences(saved=absent | before, here=absent | now):
        raise NotResumable(
            f"{saved.where}: the validation has changed: {changed}. Set its knobs back, or start a new attempt with "
            "resume=off; nothing was changed"
        )
    return None


def _told(value: object, path: str = "") -> dict[str, str]:
    """Path to text of every value below the mapping."""
    if not isinstance(value, Mapping):
        return {path: repr(value)}
    told: dict[str, str] = {}
    for name, inner in value.items():
        told |= _told(inner, f"{path}.{name}" if path else str(name))
    return told
