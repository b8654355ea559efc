"""The order of a controller's resume: each step once, and nothing falls back once something was selected."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milepost.journal.controller import ControllerResume, Samplers
from milepost.journal.controller.adapter import ORDER
from milepost.journal.controller.metadata import SamplingOwner
from milepost.transitions.errors import Corrupt, NotACheckpoint, NotResumable, Refused
from tests.controller.application import (
    ARTIFACTS,
    KINDS,
    Application,
    loader_of,
    numbers,
    sampler_of,
    samplers_of,
    started,
    taken,
)

TAKE: dict[str, Callable[[ControllerResume], object]] = {
    "build_samplers": lambda resume: resume.build_samplers(lambda: samplers_of("random", "sampler")),
    "select": ControllerResume.select,
    "restore": ControllerResume.restore,
    "build_loader": lambda resume: resume.build_loader(loader_of),
    "iterate": ControllerResume.iterate,
}


@pytest.fixture
def application(tmp_path: Path) -> Application:
    return Application(tmp_path)


def state_after(batches: int, owner: SamplingOwner = "sampler", kind: str = "random", epoch: int = 1) -> object:
    samplers = samplers_of(kind, owner)
    samplers.effective.set_epoch(epoch)
    iterator = iter(loader_of(samplers))
    for _ in range(batches):
        taken(samplers, next(iterator))
    return samplers.effective.state_dict()


def batches_of(resume: ControllerResume) -> list[list[int]]:
    return [numbers(batch) for batch in resume.iterate()]


def whole(kind: str, owner: SamplingOwner, *, epoch: int) -> list[list[int]]:
    samplers = samplers_of(kind, owner)
    samplers.effective.set_epoch(epoch)
    return [numbers(batch) for batch in loader_of(samplers)]


@pytest.mark.parametrize("owner", ["sampler", "batch_sampler"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_controller_goes_on_with_exactly_the_rest_of_the_epoch(
    application: Application, kind: str, owner: SamplingOwner
) -> None:
    path = application.save(7, owner=owner, epoch=2, state=state_after(2, owner, kind, epoch=2))
    resume = ControllerResume(application)
    started(resume, kind, owner)
    assert application.asked == ["discover", "load step-7", "restore at epoch 2"]
    assert resume.path == str(path)
    assert resume.metadata is not None
    assert (resume.metadata.training_commands, resume.metadata.optimizer_updates) == (8, 7)
    assert batches_of(resume) == whole(kind, owner, epoch=2)[2:]


def test_every_call_comes_in_the_order_of_the_table(application: Application) -> None:
    """A transcript of builders, adapter, sampler and loader."""
    application.save(7, epoch=3, state="there")
    said = application.asked

    class Spoken:
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            said.append(f"set_epoch {epoch}")
            self.epoch = epoch

        def load_state_dict(self, state: object) -> None:
            said.append(f"state {state}")

        def __iter__(self) -> Any:
            said.append("iterator")
            return iter(())

    resume = ControllerResume(application)
    resume.build_samplers(lambda: said.append("samplers") or Samplers(sampler=Spoken()))  # type: ignore[func-returns-value]
    resume.select()
    resume.restore()
    resume.build_loader(lambda samplers: said.append("loader") or samplers.effective)  # type: ignore[func-returns-value]
    order = ["samplers", "discover", "load step-7", "set_epoch 3", "restore at epoch 3", "state there", "loader"]
    assert said == order
    resume.iterate()
    assert said == [*order, "iterator"]


def test_step_zero_is_a_checkpoint_like_any_other(application: Application) -> None:
    application.save(0, state=state_after(0))
    resume = ControllerResume(application)
    started(resume)
    assert resume.metadata is not None
    assert resume.metadata.optimizer_updates == 0
    assert application.asked == ["discover", "load step-0", "restore at epoch 1"]


def test_an_automatic_miss_is_a_fresh_start_at_epoch_one(application: Application) -> None:
    (application.root / "step-9").mkdir()
    (application.root / "step-9" / ARTIFACTS[0]).touch()
    resume = ControllerResume(application)
    samplers = started(resume)
    assert application.asked == ["discover"]
    assert (resume.path, resume.metadata, samplers.effective.epoch) == (None, None, 1)
    assert batches_of(resume) == whole("random", "sampler", epoch=1)


def test_a_fresh_start_sets_the_epoch_that_a_restored_one_would_set(application: Application) -> None:
    """DistributedSampler alone would begin with epoch 0."""
    resume = ControllerResume(application)
    inner = resume.build_samplers(lambda: Samplers(sampler=sampler_of("distributed"))).sampler
    resume.select()
    resume.restore()
    assert inner.epoch == 1


def test_resume_off_calls_no_method_of_the_adapter(application: Application) -> None:
    application.save(7, state=state_after(2))
    resume = ControllerResume(application, resume="off")
    samplers = started(resume)
    assert application.asked == []
    assert (resume.path, resume.metadata, samplers.effective.epoch) == (None, None, 1)
    assert batches_of(resume) == whole("random", "sampler", epoch=1)


def test_without_an_adapter_nothing_is_asked_and_nothing_is_set() -> None:
    for mode in ("auto", "off"):
        resume = ControllerResume(None, resume=mode)
        inner = resume.build_samplers(lambda: Samplers(sampler=sampler_of("distributed"))).sampler
        assert resume.select() is None
        resume.restore()
        assert inner.epoch == 0
        resume.build_loader(loader_of)
        assert len(batches_of(resume)) == 3
    with pytest.raises(Refused, match="a path is restored by an adapter"):
        ControllerResume(None, resume="/checkpoints/step-7")


def test_a_path_is_taken_as_it_is_and_nothing_is_discovered(application: Application) -> None:
    application.save(7, state=state_after(1))
    path = application.root / "step-7"
    application.save(9, state=state_after(2))
    resume = ControllerResume(application, resume=path)
    started(resume)
    assert application.asked == ["load step-7", "restore at epoch 1"]
    assert resume.path == str(path)


@pytest.mark.parametrize("mode", ["auto", "path"])
def test_a_selected_checkpoint_that_is_corrupt_fails_and_nothing_else_is_tried(
    application: Application, mode: str
) -> None:
    application.save(7, state=state_after(1))
    newest = application.save(9, state=state_after(2))
    (newest / ARTIFACTS[0]).write_bytes(b"8")
    application.discover = lambda: newest  # type: ignore[method-assign] # by its name, and not by a look at its bytes
    resume = ControllerResume(application, resume="auto" if mode == "auto" else newest)
    resume.build_samplers(lambda: samplers_of("random", "sampler"))
    with pytest.raises(Corrupt, match="step-9"):
        resume.select()
    for step in ORDER:
        with pytest.raises(Refused, match="failed or came to its end"):
            TAKE[step](resume)
    assert (resume.path, resume.metadata) == (None, None)
    assert application.asked == ["load step-9"]


def test_a_path_that_is_missing_fails(application: Application) -> None:
    application.save(7, state=state_after(1))
    resume = ControllerResume(application, resume=application.root / "step-8")
    resume.build_samplers(lambda: samplers_of("random", "sampler"))
    with pytest.raises(NotACheckpoint, match="step-8"):
        resume.select()


@pytest.mark.parametrize("method", ["discover", "load_metadata", "restore"])
def test_an_error_of_the_adapters_own_fails_the_start(application: Application, method: str) -> None:
    application.save(7, state=state_after(1))

    def fail(*_given: object) -> None:
        raise FileNotFoundError("gone")

    setattr(application, method, fail)
    with pytest.raises(NotResumable, match=rf"{method}\(\) of the adapter failed: FileNotFoundError"):
        started(ControllerResume(application))


@pytest.mark.parametrize("answer", [7, "", b"/checkpoints", {"path": "x"}])
def test_a_discovery_of_no_path_is_refused(application: Application, answer: object) -> None:
    application.discover = lambda: answer  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(Refused, match=r"discover\(\): expected a path or None"):
        started(ControllerResume(application))


def test_metadata_that_is_not_typed_is_refused(application: Application) -> None:
    application.save(7, state=state_after(1))
    application.load_metadata = lambda _path: {"epoch": 1}  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(Refused, match=r"load_metadata\(\): expected ResumeMetadata, found a dict"):
        started(ControllerResume(application))


@pytest.mark.parametrize(("saved", "built"), [("sampler", "batch_sampler"), ("batch_sampler", "sampler")])
def test_a_state_of_the_other_owner_is_refused(
    application: Application, saved: SamplingOwner, built: SamplingOwner
) -> None:
    application.save(7, owner=saved, state=state_after(1, saved))
    with pytest.raises(NotResumable, match=f"of the {saved}, here the {built} is restored"):
        started(ControllerResume(application), owner=built)
    assert application.asked == ["discover", "load step-7"]


def test_another_identity_than_was_agreed_upon_is_refused(application: Application) -> None:
    path = application.save(7, state=state_after(1))
    identity = application.load_metadata(str(path)).checkpoint_identity
    started(ControllerResume(application, identity=identity))
    with pytest.raises(NotResumable, match=f"expected the checkpoint sha256:0, found {identity}"):
        started(ControllerResume(application, identity="sha256:0"))


def test_a_state_of_another_epoch_than_the_metadata_is_refused(application: Application) -> None:
    application.save(7, epoch=3, state=state_after(1, epoch=2))
    with pytest.raises(NotResumable, match="the metadata is of epoch 3, the sampler's state of epoch 2"):
        started(ControllerResume(application))


def test_a_sampler_that_was_iterated_too_early_cannot_be_restored(application: Application) -> None:
    application.save(7, state=state_after(1))
    resume = ControllerResume(application)
    samplers = resume.build_samplers(lambda: samplers_of("random", "sampler"))
    resume.select()
    next(iter(samplers.effective))
    with pytest.raises(Refused, match="before its iterator is made"):
        resume.restore()


@pytest.mark.parametrize("done", range(len(ORDER) + 1))
def test_each_step_is_taken_once_and_in_order(application: Application, done: int) -> None:
    """After every number of steps, each step but the next one is refused, and the next one still goes."""
    application.save(7, state=state_after(1))
    resume = ControllerResume(application)
    for step in ORDER[:done]:
        TAKE[step](resume)
    asked = list(application.asked)
    for step in (step for step in ORDER if step not in ORDER[done : done + 1]):
        with pytest.raises(Refused, match=rf"^{step}\(\): "):
            TAKE[step](resume)
    assert application.asked == asked
    for step in ORDER[done:]:
        TAKE[step](resume)
    assert application.asked == ["discover", "load step-7", "restore at epoch 1"]


def test_a_step_inside_another_is_refused(application: Application) -> None:
    application.save(7, state=state_after(1))
    resume = ControllerResume(application)
    application.restore = lambda *_given: resume.restore()  # type: ignore[method-assign]
    with pytest.raises(Refused, match=r"restore\(\): this resume is under way"):
        started(resume)


@pytest.mark.parametrize("built", [None, Samplers(), "samplers"])
def test_samplers_that_are_none_are_refused(application: Application, built: Any) -> None:
    with pytest.raises(Refused, match="expected Samplers"):
        ControllerResume(application).build_samplers(lambda: built)


def test_a_resume_that_is_no_word_and_no_path_is_refused(application: Application) -> None:
    for resume in ("", b"/checkpoints"):
        with pytest.raises(Refused, match="expected off, auto or a path"):
            ControllerResume(application, resume=resume)  # type: ignore[arg-type]


def test_importing_the_controller_loads_no_torch() -> None:
    code = "import sys, milepost.journal.controller; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
