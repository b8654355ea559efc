"""What fails or dies on one rank is raised on all, names it, and leaves nothing visible; the next start goes on.

Every case strikes at the save of step 4, when step 2 is published. The limit of time is far longer than a test may
take: what is found by it alone fails the test, but for the rank that never arrives.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch.distributed as dist
from attrs import frozen

from milepost.engines.disks import Sink
from milepost.engines.disks.local import LocalDisk
from milepost.engines.trainers import CursorResume, ShardedTrainer, Snapshot
from milepost.journal import Journal
from milepost.transitions.values import Clocks, Plan
from tests.crew.spawn import Ended
from tests.ranks.saying import Saying, saying, visible
from tests.ranks.training import STEPS, State, Training, require_equal, settings
from tests.ranks.worlds import run

pytestmark = pytest.mark.kills

FORMS = ("dcp", "consolidated")
STRUCK, LATEST = 4, 2
_TIMEOUT_S, _BOUND_S = 120, 25
_GONE = "is gone: its process has ended or cannot be reached"


@frozen
class Doomed:
    """Kills this process. `where`: `write` of its shards, `capture`, `body` of the step, or nowhere."""

    rank: int
    where: str

    def strike(self, where: str) -> None:
        if (dist.get_rank(), where) == (self.rank, self.where):
            os.kill(os.getpid(), signal.SIGKILL)


class DoomedDisk(LocalDisk):
    """On which a rank dies when the shards of step `STRUCK` are to be made."""

    def __init__(self, root: Path, doomed: Doomed) -> None:
        root.mkdir(exist_ok=True)
        super().__init__(root)
        self._doomed = doomed

    def create(self, path: str, *, bulk: bool = False) -> Sink:
        if path.endswith(f"__{self._doomed.rank}_0.distcp") and f"/{STRUCK}." in path:
            self._doomed.strike("write")
        return super().create(path, bulk=bulk)


class Troubled(ShardedTrainer):
    """Whose capture after step `STRUCK` fails, or kills, on one rank."""

    def __init__(self, training: Training, *, fails_on: int, doomed: Doomed) -> None:
        super().__init__(
            model=training.model, optimizer=training.optimizer, scheduler=training.scheduler, data=training.data
        )
        self._fails_on = fails_on
        self._doomed = doomed

    def capture(
        self,
        components: Plan,
        *,
        clocks: Clocks,
        cursor_resume: CursorResume = "auto",
        validation: Mapping[str, object] | None = None,
    ) -> Snapshot:
        if clocks.optimizer_step == STRUCK:
            self._doomed.strike("capture")
            if dist.get_rank() == self._fails_on:
                raise RuntimeError("a parameter is nowhere")
        return super().capture(components, clocks=clocks, cursor_resume=cursor_resume, validation=validation)


def train(
    root: Path,
    form: str,
    *,
    fails_on: int = -1,
    doomed: Doomed | None = None,
    full_on: int = -1,
    late: int = -1,
    timeout_s: int = _TIMEOUT_S,
) -> tuple[Saying, State | None]:
    """To the end, or into trouble; what it said, and the state where it came through."""
    rank, training, doomed = dist.get_rank(), Training.begin(), doomed or Doomed(-1, "")
    trainer = Troubled(training, fails_on=fails_on, doomed=doomed)
    config = settings(root, form=form, timeout_s=timeout_s)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def loop() -> int:
        disk = DoomedDisk(root, doomed) if doomed.where == "write" else None
        with Journal.open(config, trainer=trainer, disk=disk) as journal:
            for step in journal.steps(until=STEPS):
                training.step()
                if step == STRUCK:
                    journal.finalize()
                    everybody_is_done(root)
                    doomed.strike("body")
                    if rank == full_on:
                        resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
                    if rank == late:
                        wait_for(root / "given up")
        return journal.resumption.step

    began_s = time.monotonic()
    said = saying(loop)
    assert time.monotonic() - began_s < _BOUND_S
    (root / "given up").touch()
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return said, training.state() if said[0] == "value" else None


def everybody_is_done(root: Path) -> None:
    """A barrier that leaves nothing in the sockets of torch, so that a kill behind it strikes between the steps."""
    (root / f"done {dist.get_rank()}").touch()
    for rank in range(dist.get_world_size()):
        wait_for(root / f"done {rank}")


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.005)


def peace(root: Path, form: str) -> State:
    state = train(root / "peace", form)[1]
    assert state is not None
    return state


def require_rerun(root: Path, form: str, peaceful: State) -> None:
    """Only step 2 is visible; a start of two new processes goes on from it, to where the run in peace came."""
    assert visible(root) == (LATEST,)
    for said, state in run(train, 2, root, form):
        assert said == ("value", str(LATEST))
        require_equal(state.full, peaceful.full)
    assert visible(root) == (2, 4, 6, 8)


# --- failures that all ranks live through ---------------------------------------------------------------


def failing(root: Path, form: str, fails_on: int, full_on: int) -> Saying:
    return train(root, form, fails_on=fails_on, full_on=full_on)[0]


@pytest.fixture(scope="module", params=FORMS)
def peaceful(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, State]:
    """A format, and the end of a run of two ranks that saved in it and that nothing disturbed."""
    state = run(peace, 2, tmp_path_factory.mktemp("peace"), request.param)[0]
    assert isinstance(state, State)
    return request.param, state


def test_a_rank_that_cannot_write_fails_the_save_on_every_rank(tmp_path: Path, peaceful: tuple[str, State]) -> None:
    form, state = peaceful
    first, second = run(failing, 2, tmp_path, form, -1, 1)
    assert first == second
    assert first[0] == "Unavailable"
    assert "was given up" in first[1] and "rank 1: writing " in first[1] and "File too large" in first[1]
    assert "rank 0" not in first[1]
    require_rerun(tmp_path, form, state)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_capture_that_fails_on_one_rank_is_raised_on_every_rank(
    tmp_path: Path, peaceful: tuple[str, State], rank: int
) -> None:
    form, state = peaceful
    said = run(failing, 2, tmp_path, form, rank, -1)
    assert said == [("Unavailable", f"rank {rank}: RuntimeError: a parameter is nowhere")] * 2
    require_rerun(tmp_path, form, state)


# --- ranks that are gone --------------------------------------------------------------------------------


def dying(root: Path, form: str, rank: int, where: str) -> Saying:
    return train(root, form, doomed=Doomed(rank, where))[0]


@pytest.mark.parametrize(("rank", "where"), [(1, "write"), (1, "capture"), (1, "body"), (0, "write"), (0, "body")])
def test_the_survivor_of_a_killed_rank_names_it_and_the_next_start_goes_on(
    tmp_path: Path, peaceful: tuple[str, State], rank: int, where: str
) -> None:
    form, state = peaceful
    answers = run(dying, 2, tmp_path, form, rank, where)
    assert answers.pop(rank) == Ended(-signal.SIGKILL)
    kind, text = answers[0]
    assert kind == "Unavailable"
    assert f"rank {rank} {_GONE}" in text or f"rank {rank}: {_GONE}" in text
    require_rerun(tmp_path, form, state)


def dawdling(root: Path) -> Saying:
    return train(root, "dcp", late=1, timeout_s=2)[0]


def test_a_rank_that_never_arrives_is_named_on_every_rank(tmp_path: Path) -> None:
    first, second = run(dawdling, 2, tmp_path)
    assert first == second
    assert first[0] == "Unavailable"
    assert first[1].startswith("rank 1 did not arrive at step(step=4,") and first[1].endswith(" within 2 s")
    assert visible(tmp_path) == (LATEST,)
