"""The one way in which an object is put under a condition, with its three answers.

1. A 2xx is Committed.
2. Everything else but a final refusal is followed by a look: equal bytes are one's own, other bytes are a Conflict.
   For `create`, nothing there means that the identical request is made again; for `swap`, the expected version
   still being there means so, and nothing there is a Conflict.
3. When the deadline is over, or a look is refused, the answer is Unknown.
4. A final refusal is raised only if no earlier attempt can have been applied; otherwise it is looked at like the
   rest, and ends as Unknown.
"""

from __future__ import annotations

import itertools

from milepost.engines.buckets import SMALL_BYTES, Answer, Committed, Conflict, Gate, Unknown
from milepost.engines.buckets.patience import Clock
from milepost.engines.buckets.wire import Condition, Setback, Wire


def put_if(
    wire: Wire,
    key: str,
    data: bytes,
    *,
    condition: Condition,
    deadline_s: float,
    clock: Clock,
    gate: Gate | None = None,
) -> Answer:
    """Rules 1 to 4. Raises the error of a setback that is final at the first attempt."""
    until_s = clock.now_s() + deadline_s
    for attempt in itertools.count(1):
        try:
            return Committed(version=wire.put(key, data, condition=condition, gate=gate))
        except Setback as setback:
            refused = setback.kind == "final" or (setback.kind == "absent" and condition == "absent")
            if refused and attempt == 1:
                raise setback.error from None
            why = setback.why
        try:
            answer = _look(wire, key, data, condition=condition)
        except Setback as setback:
            why = f"{why}; read back: {setback.why}"
            refused = refused or setback.kind == "final"
            answer = None
        if answer is not None:
            return answer
        if refused or clock.now_s() >= until_s:
            return Unknown(why=f"{wire.where(key)}: {why}; {attempt} attempts")
        clock.pause(attempt, until_s=until_s)
    raise AssertionError("unreachable")


def _look(wire: Wire, key: str, data: bytes, *, condition: Condition) -> Answer | None:
    """What the object at the key says about the attempt; None where it says nothing."""
    try:
        found, version = wire.fetch(key, limit=SMALL_BYTES)
    except Setback as setback:
        if setback.kind != "absent":
            raise
        return None if condition == "absent" else Conflict(found=None, version=None)
    if found == data:
        return Committed(version=version)
    if version == condition:
        return None
    return Conflict(found=found, version=version)
