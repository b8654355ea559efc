"""A random rank is killed at a random moment, again and again: the survivor ends by itself and says who was lost.

After each kill nothing is visible that is not whole, and nothing acknowledged is gone; the start after it goes on
from the newest checkpoint. Every loss of every life, on both ranks, and the state at the end are bit by bit those of
a run in peace. A seed decides the moments, as far as a clock can; `MILEPOST_KILLS_SEED` sets it.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from attrs import define, field

from milepost.journal import Journal
from tests.crew.spawn import Ended
from tests.kills.trials import seeded
from tests.ranks.saying import visible
from tests.ranks.training import STEPS, State, Training, require_equal, settings
from tests.ranks.worlds import World, run

pytestmark = pytest.mark.kills

KILLS = (16, pytest.param(160, marks=[pytest.mark.fuzz, pytest.mark.timeout(1800)]))
_TIMEOUT_S, _BOUND_S = 12, 60.0
"""A rank that dies while torch makes a process group is missed only when the time is over: torch waits for it."""

UNMET = "cannot meet the other ranks, one of them may be gone"
"""What a rank says that lost another one before they knew each other."""


def live(root: Path, form: str) -> State | str:
    """Train to the end, from wherever the run is: the state there, or the text of what ended it before.

    A rank notes what it has come to in a file of its own: `begun`, `opened <step>`, `loss <step> <loss>`, `closed`,
    and `saved <step>` for a save that is acknowledged.
    """
    training = Training.begin()
    with (root / f"notes of {dist.get_rank()}").open("w", buffering=1) as notes:
        print("begun", file=notes)
        try:
            with Journal.open(settings(root, form=form, timeout_s=_TIMEOUT_S), trainer=training.trainer()) as journal:
                print(f"opened {journal.resumption.step}", file=notes)
                for step in journal.steps(until=STEPS):
                    if dist.get_rank() == 0 and (latest := journal.state.pointer.at) is not None:
                        print(f"saved {latest.step}", file=notes)
                    print(f"loss {step} {training.step().hex()}", file=notes)
            print("closed", file=notes)
            return training.state()
        except Exception as error:  # noqa: BLE001 -- torch may be the one to notice, and knows no ranks
            return "\n".join((f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())))


@define
class Notes:
    """What the two ranks of a life have noted so far."""

    root: Path

    def lines(self, rank: int, word: str) -> list[str]:
        path = self.root / f"notes of {rank}"
        written = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [line.split() for line in written if line.endswith("\n")]
        return [" ".join(line[1:]) for line in whole if line[0] == word]

    def losses(self, rank: int) -> dict[int, str]:
        return {int(step): loss for step, loss in (line.split() for line in self.lines(rank, "loss"))}

    def forget(self) -> None:
        for path in self.root.glob("notes of *"):
            path.unlink()


@define
class Trial:
    """One run that is killed a few times. `peace` are the losses by rank and step of one that is not."""

    root: Path
    form: str
    peace: list[dict[int, str]]
    notes: Notes
    newest: int = 0
    struck: list[str] = field(factory=list)

    def strike(self, rng: random.Random) -> None:
        """One life and its end; where it was struck is put down in `struck`."""
        victim, aim = rng.randrange(2), rng.choice(("opening", "step", "step", "step"))
        with World(live, 2, self.root, self.form) as world:
            self._await(world, rng.randint(self.newest + 1, STEPS) if aim == "step" else 0)
            time.sleep(rng.uniform(0, 0.12))
            world.kill(victim)
            answers = world.answers(limit_s=_BOUND_S)
        survivor = answers[1 - victim]
        if self.notes.lines(1 - victim, "closed"):
            self.struck.append("after the end")
        else:
            self.struck.append("training" if self.notes.lines(1 - victim, "opened") else "opening")
            assert answers[victim] == Ended(-signal.SIGKILL)
            assert isinstance(survivor, str)
            unmet = survivor.startswith("Unavailable: ") and UNMET in survivor
            assert unmet or f"rank {victim}" in survivor, survivor
        self.look()

    def _await(self, world: World, step: int) -> None:
        """Both ranks have begun to open the run, or, with a step, rank 0 is within it."""
        while not world.answered():
            begun = all(self.notes.lines(rank, "begun") for rank in range(2))
            before = step - 1 in self.notes.losses(0) or (step - 1 == self.newest and self.notes.lines(0, "opened"))
            if begun and (before or not step):
                return
            time.sleep(0.002)

    def look(self) -> None:
        """The dead run is as it has to be."""
        for rank in range(2):
            assert set(self.notes.lines(rank, "opened")) <= {str(self.newest)}
            assert self.notes.losses(rank).items() <= self.peace[rank].items()
        acknowledged = max(map(int, self.notes.lines(0, "saved")), default=0)
        self.newest = max(visible(self.root), default=0)
        assert self.newest >= acknowledged
        self.notes.forget()


@pytest.mark.parametrize("kills", KILLS)
@pytest.mark.parametrize("form", ["dcp", "consolidated"])
def test_a_run_of_which_ranks_are_killed_continues_to_the_same_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, kills: int
) -> None:
    seed, rng = seeded()
    print(f"MILEPOST_KILLS_SEED={seed}")
    (tmp_path / "peace").mkdir()
    peaceful = run(live, 2, tmp_path / "peace", form)[0]
    assert isinstance(peaceful, State), peaceful
    peace = [Notes(tmp_path / "peace").losses(rank) for rank in range(2)]
    assert [sorted(losses) for losses in peace] == [list(range(1, STEPS + 1))] * 2
    struck: list[str] = []
    while len(struck) < kills:
        root = tmp_path / f"after {len(struck)}"
        root.mkdir()
        trial = Trial(root, form, peace, Notes(root))
        most = min(rng.randint(3, 6), kills - len(struck))
        while len(trial.struck) < most and trial.newest < STEPS:
            trial.strike(rng)
        for state in run(live, 2, root, form):
            assert isinstance(state, State), state
            require_equal(state.full, peaceful.full)
        trial.look()
        assert trial.newest == STEPS
        struck += trial.struck
    tally = {where: struck.count(where) for where in sorted(set(struck))}
    with capsys.disabled():
        print(f"\n  SIGKILL of a rank, {form}, seed {seed}: {tally} ")
    assert struck.count("training") >= kills // 4, "too few kills landed in the training"
