"""The canary lives, and dies of each mistake that would lose work, mix checkpoints, or restore half of one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import frozen

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = [pytest.mark.services, pytest.mark.kills, pytest.mark.slow]


def canary(examples: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "controller.canary", "--folder", str(folder))
    return subprocess.run(command, cwd=examples, capture_output=True, text=True, timeout=200)


TOLD = """\
first start
  controller begins with 6 completions in epoch 1
  controller fetched A, B, C
  rank 0     generated and trained A
  rank 0     generated and trained C
  rank 0     saved update 2 while B is out
  rank 1     generated and trained A
  rank 1     generated and trained C
  rank 1     saved update 2 while B is out
killed: the controller, rank 0 and rank 1
second start
  controller goes on from update 2 with 5 completions in epoch 1
  controller fetched B, C, D
  rank 0     model, momentum, schedule, rng are as they were saved
  rank 0     generated and trained B
  rank 0     generated and trained C
  rank 0     ends behind update 4
  rank 1     model, momentum, schedule, rng are as they were saved
  rank 1     generated and trained B
  rank 1     generated and trained C
  rank 1     ends behind update 4
  remaining completions: 3
  the state of the controller: {'completions': 2, 'queue': ['D'], 'owned': {'rank-1': []}}
  a late report of the first start: (410, ())
  the state behind it: {'completions': 2, 'queue': ['D'], 'owned': {'rank-1': []}}
  another checkpoint with equal counters: (409, ('checkpoint_identity',))
  the controller ended behind its answer
everything holds
"""


def test_the_canary_goes_on_before_the_work_that_was_out_with_everything_as_it_was_saved(tmp_path: Path) -> None:
    done = canary(EXAMPLES, tmp_path)
    assert (done.returncode, done.stdout) == (0, TOLD), done.stderr
    assert {path.name for path in (tmp_path / "update-000002").iterdir()} == {
        "application-manifest.json",
        "trainer-00000-of-00002.pt",
        "trainer-00001-of-00002.pt",
    }


@frozen
class Mistake:
    """In `file` of the example: what is there, what somebody wrote instead, and a part of what the canary says."""

    name: str
    file: str
    old: str
    new: str
    died: str


SAVED = "    torch.save(trainer.state(), checkpoint / SHARDS[rank])\n"
RESTORED = "        trainer.restore("

MISTAKES = (
    Mistake(
        "the fetched cursor is saved in place of the safe boundary",
        "recovering.py",
        "asdict(ledger.boundary)",
        "asdict(fetched)",
        "controller said 'goes on from update 2 with 3 completions in epoch 1'",
    ),
    Mistake(
        "what was fetched counts as settled",
        "recovering.py",
        "tokens[item] = ledger.issue(fetched)",
        "ledger.settle(tokens.setdefault(item, ledger.issue(fetched)))",
        "controller said 'goes on from update 2 with 3 completions in epoch 1'",
    ),
    Mistake(
        "the sampler is not restored",
        "recovering.py",
        "sampler.load_state_dict(metadata.sampler_state)",
        "pass",
        "controller said 'fetched A, B, C', and it has to be 'fetched B, C, D'",
    ),
    Mistake(
        "every start has the same execution id",
        "recovering.py",
        "execution_id=ledger.execution_id",
        'execution_id="canary"',
        "a late report of the first start: found (400, ()), and it has to be (410, ())",
    ),
    Mistake(
        "one rank alone restores",
        "training.py",
        RESTORED,
        f"        if rank == 0:\n    {RESTORED}",
        "not what was saved: model, momentum, schedule, rng, updates\n",
    ),
    Mistake(
        "both ranks restore the file of the first",
        "training.py",
        "torch.load(checkpoint / SHARDS[rank]",
        "torch.load(checkpoint / SHARDS[0]",
        "not what was saved: rng\n",
    ),
    Mistake(
        "momentum is not restored",
        "training.py",
        'self.optimizer.load_state_dict(state["momentum"])',
        "pass",
        "not what was saved: momentum\n",
    ),
    Mistake(
        "the schedule is not restored",
        "training.py",
        'self.schedule.load_state_dict(state["schedule"])',
        "pass",
        "not what was saved: schedule\n",
    ),
    Mistake(
        "the manifest is published before the second rank saved",
        "training.py",
        SAVED,
        f"    if rank == 0:\n    {SAVED}",
        "trainer-00001-of-00002.pt: expected an artifact, found no such file",
    ),
    Mistake(
        "the manifest is of the files of one rank",
        "training.py",
        "artifacts=SHARDS, metadata=said",
        "artifacts=SHARDS[:1], metadata=said",
        "missing ['trainer-00001-of-00002.pt'], unexpected []",
    ),
)


DEEP = {
    "what was fetched counts as settled",
    "the sampler is not restored",
    "momentum is not restored",
    "the schedule is not restored",
}
"""A canary takes its time, and the others die of nearly the same: these are for the deep exploration."""


@pytest.mark.parametrize(
    "mistake",
    [pytest.param(one, marks=[pytest.mark.fuzz] if one.name in DEEP else [], id=one.name) for one in MISTAKES],
)
def test_the_canary_dies_of_a_mistake(mistake: Mistake, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "controller", tmp_path / "controller")
    file = tmp_path / "controller" / mistake.file
    source = file.read_text(encoding="utf-8")
    assert source.count(mistake.old) == 1, f"{mistake.file} does not hold it once any more: adapt the mistake"
    file.write_text(source.replace(mistake.old, mistake.new), encoding="utf-8")
    done = canary(tmp_path, tmp_path / "saved")
    assert done.returncode == 1
    assert "everything holds" not in done.stdout
    assert mistake.died in done.stdout + done.stderr, done.stdout + done.stderr
