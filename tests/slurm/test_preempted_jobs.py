"""Jobs under a real Slurm that are told to stop: they save, end well, and go on when they are started again.

The batch script is what `milepost slurm` prints, unchanged.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
from attrs import field, frozen

from milepost.engines.checkpoints.manifest import MANIFEST, decode
from milepost.journal.forensics.reading import locate
from milepost.journal.forensics.verifying import verify
from milepost.journal.log.replay import replay
from milepost.transitions.emergency import EmergencyCovered, TerminationObserved
from milepost.transitions.run import RunEnded, RunResumed
from milepost.transitions.saving import SaveOpened
from milepost.transitions.updates import StepReported
from milepost.transitions.values import Metric, Outcome, Reason, ResumeKind, iteration_name
from tests.slurm import training
from tests.slurm.cluster import Cluster
from tests.slurm.training import STEPS

pytestmark = pytest.mark.services

Record = TypeVar("Record")

_PACE_S = 0.05
_SIGNALLED_AT = 5
"""The step that a run has to reach before it is told to stop."""


@frozen(kw_only=True)
class Training:
    """One run that is trained by jobs of a script in `folder`."""

    cluster: Cluster
    folder: Path
    pace_s: float
    script: Path = field(init=False)

    @script.default
    def _made(self) -> Path:
        milepost = str(Path(sys.executable).with_name("milepost"))
        command = ("srun", sys.executable, training.__file__, str(self.folder), "run", str(self.pace_s))
        script = self.folder / "job.sh"
        script.write_text(
            subprocess.run((milepost, "slurm", "--", *command), check=True, capture_output=True, text=True).stdout,
            encoding="utf-8",
        )
        return script

    @property
    def run(self) -> str:
        return str(self.folder / "milepost" / "default" / "run")

    def submit(self) -> str:
        return self.cluster.submit("--ntasks=1", "--open-mode=append", "--output=out", self.script, cwd=self.folder)

    def out(self) -> str:
        return (self.folder / "out").read_text(encoding="utf-8")

    def records(self, kind: type[Record]) -> list[Record]:
        found = (record for entry, _ in replay(locate(self.run).log) for record in entry.records)
        return [record for record in found if isinstance(record, kind)]

    def await_step(self, step: int) -> None:
        """Wait until the journal tells that the step is done."""
        until_s = time.monotonic() + 60
        while not self._began() or all(done.step < step for done in self.records(StepReported)):
            assert time.monotonic() < until_s, f"step {step} was not reached: {self.out()}"
            time.sleep(0.05)

    def _began(self) -> bool:
        return any(self.folder.glob("milepost/default/run/*/journal/*.jsonl"))

    def losses(self) -> Mapping[int, tuple[Metric, ...]]:
        """What each step reported; no step did so twice."""
        told = [(step.step, step.metrics) for step in self.records(StepReported)]
        assert [step for step, _ in told] == list(range(1, STEPS + 1))
        return dict(told)

    def digests(self) -> Mapping[str, str]:
        """Those of the files of the last checkpoint, once all of the run is verified."""
        place = locate(self.run)
        verified = verify(place)
        assert verified.exit_code == 0, verified.findings
        path = f"{place.checkpoints}/{iteration_name(STEPS)}/{MANIFEST}"
        manifest = decode(place.disk.read(path, limit=1 << 20), where=path)
        return {file.path: file.digest for file in manifest.files}


@pytest.fixture(scope="session")
def peace(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Training:
    """The same run in a job that nobody disturbs."""
    peace = Training(cluster=cluster, folder=tmp_path_factory.mktemp("peace"), pace_s=0)
    _require_good_end(peace, peace.submit(), restarts=0)
    return peace


def signal_the_script(cluster: Cluster, job: str, cwd: Path) -> None:
    """What an operator's drill does."""
    cluster.call("scancel", "--signal=USR1", "--batch", job)


def take_the_node(cluster: Cluster, job: str, cwd: Path) -> None:
    """A job of higher priority needs the whole node. It has run when this returns: the other one gave way."""
    assert cluster.job(job)["JobState"] == "RUNNING"
    urgent = cluster.submit("--partition=urgent", "--ntasks=2", "--output=urgent", "--wrap=true", cwd=cwd)
    assert cluster.ended(urgent)["ExitCode"] == "0:0"


@pytest.mark.parametrize("tell", [signal_the_script, take_the_node])
def test_a_job_that_is_told_to_stop_saves_and_goes_on_in_its_next_start(
    cluster: Cluster, peace: Training, tmp_path: Path, tell: Callable[[Cluster, str, Path], None]
) -> None:
    disturbed = Training(cluster=cluster, folder=tmp_path, pace_s=_PACE_S)
    job = disturbed.submit()
    disturbed.await_step(_SIGNALLED_AT)
    tell(cluster, job, tmp_path)
    _require_good_end(disturbed, job, restarts=1)
    _require_continued(disturbed, peace, _require_emergency(disturbed))


def _require_good_end(training: Training, job: str, *, restarts: int) -> None:
    ended = training.cluster.ended(job)
    found = (ended["JobState"], ended["ExitCode"], ended["Restarts"])
    assert found == ("COMPLETED", "0:0", str(restarts)), f"{found}: {training.out()}"


def _require_emergency(training: Training) -> int:
    """The step at which the run was stopped by the sentinel, all of it saved."""
    (observed,) = training.records(TerminationObserved)
    assert _SIGNALLED_AT <= observed.step < STEPS
    assert observed.reason == "sentinel" and "SIGUSR1_RECEIVED" in observed.detail
    opened = training.records(SaveOpened)[0]
    assert (opened.save.step, opened.reason) == (observed.step, Reason.EMERGENCY)
    (covered,) = training.records(EmergencyCovered)
    assert (covered.step, covered.save) == (observed.step, opened.save)
    ended = training.records(RunEnded)[0]
    assert (ended.outcome, ended.step, ended.detail) == (Outcome.STOPPED, observed.step, "sentinel")
    return observed.step


def _require_continued(training: Training, peace: Training, stopped_at: int) -> None:
    """The second start went on from the emergency checkpoint, to what the run in peace came to, in every bit."""
    told = [line for line in training.out().splitlines() if line.startswith("restart ")]
    assert told == ["restart 0 goes on from step 0", f"restart 1 goes on from step {stopped_at}"]
    _, resumed = training.records(RunResumed)
    (covered,) = training.records(EmergencyCovered)
    assert (resumed.resume, resumed.step, resumed.save) == (ResumeKind.EXACT, stopped_at, covered.save)
    assert training.records(RunEnded)[-1].outcome is Outcome.COMPLETED
    assert training.losses() == peace.losses()
    assert training.digests() == peace.digests()
