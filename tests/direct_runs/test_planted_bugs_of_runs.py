"""The blows on whole runs notice what is broken for good: a few planted mistakes, and none without them.

What only a single request at the right moment shows is found below the runs (`tests/direct`).
"""

from __future__ import annotations

import pytest

from tests.crash.bugs import Bug, written
from tests.direct_runs.test_crashes_of_runs import Blow, explore

DIRECT = "engines.checkpoints.direct:DirectCheckpoints"
UNFENCED = Bug("nobody looks at the fence", f"{DIRECT}._place", (("self.fence()", "pass"),))
LOST = Bug(
    "payload is not committed",
    "engines.checkpoints.direct_names:_UploadSink.sync",
    (("self._upload.commit()", "pass"),),
)

BUGS = (
    Bug(
        "a save is told of whose manifest is nowhere",
        f"{DIRECT}.seal",
        (
            (
                'with _given_up("writing the manifest"):',
                'return digest_of(data, name=manifest_name(manifest.plan))\nwith _given_up("writing the manifest"):',
            ),
        ),
    ),
    Bug(
        "the pointer goes where whoever wakes up sends it",
        f"{DIRECT}.point",
        (("_step_of(found) <= save.step", "True"),),
        beside=UNFENCED,
    ),
    Bug(
        "a manifest names payload that is not there",
        f"{DIRECT}._lacking",
        (("if stat is None or stat.size != file.size:", "if False:"),),
        beside=LOST,
    ),
)


def strike() -> None:
    """A run pauses or dies before each request that changes something, from the end back."""
    for at in reversed(range(30)):
        for kind in ("pause", "death"):
            explore([Blow(at=at, kind=kind, changes=True)])


@pytest.mark.slow
def test_a_run_that_is_struck_before_any_of_its_changes_is_continued() -> None:
    strike()


@pytest.mark.slow
@pytest.mark.parametrize("planted", BUGS, ids=str)
def test_a_bug_of_a_run_in_a_bucket_is_caught(planted: Bug) -> None:
    with written(planted), pytest.raises((AssertionError, OSError)):
        strike()
