"""Every promise of the example's controller has a test that notices when it is broken: a mistake for each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import frozen

from tests.controller_example import serving
from tests.controller_example import test_controller_example as checks

pytestmark = [pytest.mark.services, pytest.mark.slow]

IDENTITY = {**checks.RESUMED, "checkpoint_identity": "sha256:bb"}


@frozen
class Mistake:
    """In `app.py`: what is there, what somebody wrote instead, and the check that notices, in an empty folder."""

    name: str
    old: str
    new: str
    by: Callable[[Path], None]

    def __str__(self) -> str:
        return self.name


def stale(verb: str, **pinned: object) -> Callable[[Path], None]:
    def check(folder: Path) -> None:
        with checks.at_work() as served:
            checks.test_a_stale_report_is_gone_and_touches_nothing(served, verb, "w0", pinned)

    return check


def wrong_body(body: bytes, why: str) -> Callable[[Path], None]:
    def check(folder: Path) -> None:
        with checks.at_work() as served:
            checks.test_a_body_that_is_no_report_is_refused_with_the_reason(served, "register", body, why)

    return check


def disagreeing(folder: Path) -> None:
    checks.test_a_worker_that_disagrees_hears_the_names_and_then_the_controller_ends(
        folder, IDENTITY, ["checkpoint_identity"]
    )


def ending(folder: Path) -> None:
    checks.test_what_an_ending_worker_left_is_the_head_of_the_queue_again_and_the_next_one_does_it()


TOO_LARGE = b" " * (checks.LARGEST_BODY + 1)

MISTAKES = (
    Mistake("nothing is stale", "if stale is not None:", "if False:", stale("completion")),
    Mistake(
        "who has no id is let through",
        'said.get("execution_id")',
        'said.get("execution_id", self.recovery.execution_id)',
        stale("rollout"),
    ),
    Mistake(
        "the queue is touched before the fence",
        "        owned = self._owned_by(said)\n        if not self.queue:",
        "        self.queue.rotate()\n        owned = self._owned_by(said)\n        if not self.queue:",
        stale("rollout", execution_id="of an earlier start"),
    ),
    Mistake(
        "ownership is touched before the fence",
        "        left = self._owned_by(said)\n",
        '        self.owned.get(said["worker"], []).clear()\n        left = self._owned_by(said)\n',
        stale("end", execution_id="of an earlier start"),
    ),
    Mistake(
        "the counter is touched before the fence",
        '        owned, item = self._owned_by(said), text(said, "item")\n',
        '        self.completions += 1\n        owned, item = self._owned_by(said), text(said, "item")\n',
        stale("completion", execution_id="of an earlier start"),
    ),
    Mistake(
        "every start has the same id",
        "execution_id or SystemAmbient().execution_id()",
        'execution_id or "the-controller"',
        checks.test_a_worker_of_an_earlier_start_is_refused_by_the_next,
    ),
    Mistake(
        "left work goes to the end of the queue",
        "self.queue.extendleft(reversed(left))",
        "self.queue += left",
        ending,
    ),
    Mistake(
        "left work is turned round",
        "self.queue.extendleft(reversed(left))",
        "self.queue.extendleft(left)",
        ending,
    ),
    Mistake("a worker that disagrees joins", "raise Disagrees(names)", "pass", disagreeing),
    Mistake(
        "a worker hears the values",
        "raise Disagrees(names)",
        'raise Disagrees(tuple(f"{name} is {metadata.get(name)}" for name in names))',
        disagreeing,
    ),
    Mistake(
        "the controller ends before it answers", "self.disagreed = True", "__import__('os')._exit(3)", disagreeing
    ),
    Mistake("the controller goes on", ", background=BackgroundTask(stop)", "", disagreeing),
    Mistake("the controller ends as if all were well", "return DISAGREED", "return 0", disagreeing),
    Mistake(
        "nobody asks what a worker without metadata restored",
        "if self.recovery is not None and (names :=",
        "if metadata and self.recovery is not None and (names :=",
        lambda folder: checks.test_a_worker_that_disagrees_hears_the_names_and_then_the_controller_ends(
            folder, None, sorted(checks.RESUMED)
        ),
    ),
    Mistake(
        "a body of any size is read",
        "if size > LARGEST_BODY:",
        "if False:",
        wrong_body(TOO_LARGE, "the body is larger than "),
    ),
    Mistake(
        "what is no JSON is an error of the controller",
        "except ValueError as error:",
        "except TypeError as error:",
        wrong_body(b"[" * 200_000, "the body is no JSON: "),
    ),
    Mistake(
        "an id is asked for where there is none",
        '        if self.recovery is not None:\n            stale = admit(said.get("execution_id"), '
        "execution_id=self.recovery.execution_id)",
        '        if True:\n            stale = admit(said.get("execution_id"), execution_id="legacy")',
        checks.test_without_recovery_no_id_is_told_and_none_is_asked_for,
    ),
)


def changed(folder: Path, mistake: Mistake) -> Path:
    """A copy of the example with the mistake in it."""
    shutil.copytree(serving.EXAMPLES / "controller", folder / "controller")
    app = folder / "controller" / "app.py"
    source = app.read_text(encoding="utf-8")
    assert source.count(mistake.old) == 1, f"{mistake.name}: app.py does not hold it once any more: adapt the mistake"
    app.write_text(source.replace(mistake.old, mistake.new), encoding="utf-8")
    return folder


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_in_the_controller_is_noticed(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "EXAMPLES", changed(tmp_path, mistake))
    monkeypatch.setattr(serving, "LIMIT_S", 3.0)  # one of them never ends
    with pytest.raises((Exception, pytest.fail.Exception)):
        mistake.by(tmp_path)


def test_without_a_mistake_every_check_of_the_controller_passes(tmp_path: Path) -> None:
    for check in {mistake.by for mistake in MISTAKES}:
        check(tmp_path)
