"""The example's controller and workers, as processes: what is stale touches nothing, and who disagrees ends both."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.controller.app import DISAGREED, LARGEST_BODY, Bad, Controller, Disagrees, Gone, Recovery, Stopping
from examples.controller.client import Refusal, Worker
from tests.controller_example.serving import Served

RESUMED: Mapping[str, object] = {
    "epoch": 2,
    "optimizer_updates": 7,
    "sampler_state": {"position": 4, "secret": "hidden-value"},
    "checkpoint_identity": "sha256:aa",
}


def written(path: Path, metadata: Mapping[str, object]) -> str:
    path.write_text(json.dumps(metadata), encoding="utf-8")
    return str(path)


# --- the fence ------------------------------------------------------------------------------------------------


@contextmanager
def at_work() -> Iterator[Served]:
    """A controller whose worker w0 has completed A and owns B, and whose queue is C and D."""
    with Served("--work", "A,B,C,D", "--recover") as served:
        worker = Worker(served.url, "w0")
        worker.register()
        assert [worker.rollout(), worker.rollout()] == ["A", "B"]
        worker.completion("A")
        yield served


@pytest.fixture(scope="module")
def fenced() -> Iterator[Served]:
    with at_work() as served:
        yield served


@pytest.mark.services
@pytest.mark.parametrize("verb", ["rollout", "completion", "end"])
@pytest.mark.parametrize("worker", ["w0", "nobody"])
@pytest.mark.parametrize(
    "pinned",
    [
        {},
        {"execution_id": None},
        {"execution_id": "of an earlier start"},
        {"execution_id": True},
        {"execution_id": ""},
    ],
    ids=repr,
)
def test_a_stale_report_is_gone_and_touches_nothing(
    fenced: Served, verb: str, worker: str, pinned: Mapping[str, object]
) -> None:
    before = fenced.state()
    answer = fenced.post(verb, worker=worker, item="B", **pinned)
    assert answer.status == 410
    assert answer.told["error"].endswith("nothing was changed: end this worker")
    assert fenced.state() == before == b'{"completions":1,"queue":["C","D"],"owned":{"w0":["B"]}}'


@pytest.mark.services
def test_a_worker_of_an_earlier_start_is_refused_by_the_next(tmp_path: Path) -> None:
    with Served("--recover", "--work", "A") as first:
        old = Worker(first.url, "w0")
        old.register()
        assert old.rollout() == "A"
        first.kill()
    with Served("--recover", "--work", "A") as second:
        new = Worker(second.url, "w0")
        new.register()
        assert new.rollout() == "A"
        assert old.execution_id is not None and new.execution_id != old.execution_id
        before = second.state()
        old.url = second.url
        for report in (old.rollout, lambda: old.completion("A"), old.end):
            with pytest.raises(Refusal, match=f"is of execution '{old.execution_id}'") as refused:
                report()
            assert refused.value.status == 410
        assert second.state() == before
        new.completion("A")
        new.end()
        assert second.state() == b'{"completions":1,"queue":[],"owned":{}}'


@pytest.mark.services
def test_what_an_ending_worker_left_is_the_head_of_the_queue_again_and_the_next_one_does_it() -> None:
    with Served("--recover", "--work", "A,B,C,D") as served:
        first = Worker(served.url, "w0")
        first.register()
        assert [first.rollout(), first.rollout(), first.rollout()] == ["A", "B", "C"]
        first.completion("B")
        first.end()
        assert served.state() == b'{"completions":1,"queue":["A","C","D"],"owned":{}}'
        done = served.worker("w1")
        assert (done.returncode, done.stdout) == (0, "w1 works on A\nw1 works on C\nw1 works on D\n"), done.stderr
        assert served.state() == b'{"completions":4,"queue":[],"owned":{}}'


# --- the agreement --------------------------------------------------------------------------------------------


@pytest.mark.services
def test_a_worker_that_agrees_gets_the_id_of_the_start(tmp_path: Path) -> None:
    metadata = written(tmp_path / "resumed.json", RESUMED)
    with Served("--metadata", metadata, "--work", "A") as served:
        done = served.worker("w0", "--metadata", metadata)
        assert (done.returncode, done.stdout) == (0, "w0 works on A\n"), done.stderr


@pytest.mark.services
@pytest.mark.parametrize(
    ("worker", "differs"),
    [
        ({**RESUMED, "checkpoint_identity": "sha256:bb"}, ["checkpoint_identity"]),
        ({**RESUMED, "optimizer_updates": 7.0, "extra": 1}, ["extra", "optimizer_updates"]),
        (None, sorted(RESUMED)),
    ],
    ids=["another checkpoint with equal counters", "another type and one more", "a worker that restored nothing"],
)
def test_a_worker_that_disagrees_hears_the_names_and_then_the_controller_ends(
    tmp_path: Path, worker: Mapping[str, object] | None, differs: list[str]
) -> None:
    with Served("--metadata", written(tmp_path / "resumed.json", RESUMED)) as served:
        answer = served.post("register", worker="w0", metadata=worker)
        assert (answer.status, answer.told["differs"]) == (409, differs)
        assert b"hidden-value" not in answer.body and b"sha256" not in answer.body
        assert served.ended() == (DISAGREED, "a worker resumed from something else: nobody goes on\n")


@pytest.mark.services
def test_a_worker_that_restored_something_does_not_join_a_first_start(tmp_path: Path) -> None:
    with Served("--recover") as served:
        done = served.worker("w0", "--metadata", written(tmp_path / "resumed.json", RESUMED))
        assert done.returncode == 1
        assert "w0 ends: this worker and the controller resumed from different things: " in done.stderr
        assert served.ended()[0] == DISAGREED


@pytest.mark.services
def test_the_answer_to_a_disagreement_arrives_whole_each_time(tmp_path: Path) -> None:
    metadata = written(tmp_path / "resumed.json", {f"key-{number:05}": number for number in range(20_000)})
    for _ in range(3):
        with Served("--metadata", metadata) as served:
            answer = served.post("register", worker="w0")
            assert (answer.status, len(answer.told["differs"])) == (409, 20_000)
            assert served.ended()[0] == DISAGREED


def test_behind_a_disagreement_nobody_gets_anything() -> None:
    controller = Controller("AB", recovery=Recovery(RESUMED))
    pinned = {"worker": "w0", "execution_id": controller.register({"worker": "w0", "metadata": dict(RESUMED)})}
    assert controller.rollout(pinned) == "A"
    before = json.dumps(controller.state())
    with pytest.raises(Disagrees) as told:
        controller.register({"worker": "w1", "metadata": {**RESUMED, "epoch": True}})
    assert told.value.names == ("epoch",)
    for verb in (controller.register, controller.rollout, controller.completion, controller.end):
        with pytest.raises(Stopping):
            verb({**pinned, "item": "A"})
    with pytest.raises(Gone):
        controller.end({"worker": "w0"})
    assert json.dumps(controller.state()) == before


# --- what is said wrongly -------------------------------------------------------------------------------------


@pytest.mark.services
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "the body is no JSON: "),
        (b'{"worker": "w0"', "the body is no JSON: "),
        (b'{"worker": "\xff"}', "the body is no JSON: 'utf-8' codec"),
        (b'{"worker": NaN}', "the body is no JSON: "),
        (b'{"worker": "w0", "worker": "w1"}', "the body is no JSON: "),
        (b"[" * 200_000, "the body is no JSON: "),
        (b'["w0"]', "the body has to be a JSON object, and it is a list"),
        (b" " * (LARGEST_BODY + 1), f"the body is larger than {LARGEST_BODY} bytes"),
        (b" " * (8 * LARGEST_BODY), f"the body is larger than {LARGEST_BODY} bytes"),
    ],
    ids=["nothing", "cut", "no text", "NaN", "twice", "deep", "list", "one too many", "eight times"],
)
@pytest.mark.parametrize("verb", ["register", "completion"])
def test_a_body_that_is_no_report_is_refused_with_the_reason(
    fenced: Served, verb: str, body: bytes, why: str
) -> None:
    before = fenced.state()
    answer = fenced.ask(verb, body)
    assert answer.status == 400
    assert answer.told["error"].startswith(why)
    assert fenced.state() == before


@pytest.mark.services
def test_a_body_without_a_length_is_bounded_as_well(fenced: Served) -> None:
    before = fenced.state()
    connection = http.client.HTTPConnection(fenced.url.removeprefix("http://"), timeout=30)
    chunks = (b" " * 65_536 for _ in range(2 * LARGEST_BODY // 65_536))
    connection.request(
        "POST", "/register", body=chunks, encode_chunked=True, headers={"transfer-encoding": "chunked"}
    )
    answer = connection.getresponse()
    assert (answer.status, f"larger than {LARGEST_BODY} bytes" in answer.read().decode()) == (400, True)
    connection.close()
    assert fenced.state() == before


@pytest.mark.parametrize(
    ("verb", "said", "why"),
    [
        ("register", {}, "'worker' has to be a text"),
        ("register", {"worker": 1}, "'worker' has to be a text"),
        ("register", {"worker": ""}, "'worker' has to be a text"),
        ("register", {"worker": "w1", "metadata": []}, "'metadata' is an object or null, and this is a list"),
        ("register", {"worker": "w1", "metadata": False}, "'metadata' is an object or null, and this is a bool"),
        ("register", {"worker": "w0"}, "a worker 'w0' is registered already"),
        ("rollout", {}, "'worker' has to be a text"),
        ("rollout", {"worker": "w1"}, "no worker 'w1' is registered"),
        ("completion", {"worker": "w1", "item": "A"}, "no worker 'w1' is registered"),
        ("completion", {"worker": "w0"}, "'item' has to be a text"),
        ("completion", {"worker": "w0", "item": "B"}, "this worker owns no 'B'"),
        ("end", {"worker": "w1"}, "no worker 'w1' is registered"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("recovery", [Recovery({}), None], ids=["recovering", "as before"])
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    verb: str, said: Mapping[str, object], why: str, recovery: Recovery | None
) -> None:
    controller = Controller("AB", recovery=recovery)
    pinned = {"execution_id": controller.register({"worker": "w0"})}
    assert controller.rollout({"worker": "w0", **pinned}) == "A"
    before = json.dumps(controller.state())
    with pytest.raises(Bad) as told:
        getattr(controller, verb)({**said, **pinned})
    assert str(told.value).startswith(why)
    assert json.dumps(controller.state()) == before


def test_a_completion_is_settled_once_and_only_when_it_counts() -> None:
    settled: list[str] = []
    controller = Controller("AB", recovery=Recovery({}, settled=settled.append))
    pinned = {"worker": "w0", "execution_id": controller.register({"worker": "w0"})}
    assert [controller.rollout(pinned), controller.rollout(pinned)] == ["A", "B"]
    controller.completion({**pinned, "item": "B"})
    assert settled == ["B"]
    for wrong in ({**pinned, "item": "B"}, {**pinned, "item": "A", "execution_id": "another"}):
        with pytest.raises((Bad, Gone)):
            controller.completion(wrong)
    controller.end(pinned)
    assert settled == ["B"]


# --- as before there was recovery -----------------------------------------------------------------------------


@pytest.mark.services
def test_without_recovery_no_id_is_told_and_none_is_asked_for(tmp_path: Path) -> None:
    with Served("--work", "A,B,C") as served:
        assert served.post("register", worker="w0").told == {"execution_id": None}
        assert served.post("register", worker="w1", metadata=RESUMED).told == {"execution_id": None}
        assert served.post("rollout", worker="w0").told == {"item": "A"}
        assert served.post("rollout", worker="w1", execution_id="of an earlier start").told == {"item": "B"}
        assert served.post("completion", worker="w1", item="B", execution_id="of an earlier start").status == 200
        assert served.post("end", worker="w0").status == 200
        assert served.state() == b'{"completions":1,"queue":["A","C"],"owned":{"w1":[]}}'
        done = served.worker("w2", "--metadata", written(tmp_path / "resumed.json", RESUMED))
        assert (done.returncode, done.stdout) == (0, "w2 works on A\nw2 works on C\n"), done.stderr
