"""An actor and a critic that learn together, each at its own pace: saved as one, killed, and continued.

    python actor_critic.py --output-root /tmp/runs              # train; the same line again goes on
    python actor_critic.py --output-root /tmp/runs --drill      # be killed in three places, go on, and compare
    python actor_critic.py --output-root /tmp/runs --ray        # each of the two in a Ray actor

1. Both are roles of one run: each boundary saves `actor/` and `critic/` in one directory, visible together or not at
   all. What differs between them is told: for the first iterations the critic alone is trained, so its optimizer is
   ahead, and `journal.updated` counts for each.
2. The loop has a word of its own in it: the settings and the entropy bonus, which decays, are its `loop_state`. What
   the resumed boundary had recorded comes back from `committed_loop_state()`. The loop goes on with the bonus that it
   finds there, and refuses to go on with other settings.
3. The task is small enough to learn in seconds: one of four arms is right for each state, a reward of one for pulling
   it. The update is PPO's: a clipped ratio, two passes over each batch.
4. The drill ends the process with SIGKILL in the warm-up of the critic, between the files of the two roles, and
   within an update; then the run goes on to the same weights as one that nothing interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.nn import functional

from milepost.engines.disks import Sink
from milepost.engines.disks.local import LocalDisk
from milepost.engines.trainers import PlainTrainer
from milepost.journal import Config, Journal
from milepost.journal.adapters.ray import Host, RayRole

ITERATIONS, SAVE_EVERY, SEED = 60, 10, 1
STATES, ARMS, BATCH = 6, 4, 64
SETTINGS: Mapping[str, float] = {"warm_up": 8, "passes": 2, "clip": 0.2}
DEATHS = ("warm-up", "between-roles", "update")
"""Where `--die-in` ends the process: in iteration 7, in the save of iteration 20, in iteration 45."""


@frozen(kw_only=True)
class Played:
    """A batch: float32[BATCH, STATES], int64[BATCH], and the log-probabilities and rewards, float32[BATCH]."""

    states: Tensor
    arms: Tensor
    before: Tensor
    rewards: Tensor


class Role:
    """A small network with an optimizer of its own, in this process or in a Ray actor."""

    def __init__(self, outputs: int) -> None:
        torch.use_deterministic_algorithms(True)
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        self.right = torch.randn(STATES, ARMS)
        self.model = nn.Sequential(nn.Linear(STATES, 32), nn.Tanh(), nn.Linear(32, outputs))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.trainer = PlainTrainer(model=self.model, optimizer=self.optimizer)
        self._host = Host(self.trainer)

    def milepost(self, order: object) -> object:
        """What the driver's journal asks of a role that lives in a Ray actor."""
        return self._host.perform(order)

    def update(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.optimizer.step()

    def total(self) -> float:
        return sum(float(parameter.detach().double().sum()) for parameter in self.model.parameters())


class Actor(Role):
    """Pulls arms. All that is random is drawn here, so its streams are saved with this role."""

    def __init__(self) -> None:
        super().__init__(ARMS)

    def play(self) -> Played:
        states = torch.randn(BATCH, STATES)
        with torch.no_grad():
            policy = Categorical(logits=self.model(states))
            arms = policy.sample()  # type: ignore[no-untyped-call]
            before = policy.log_prob(arms)  # type: ignore[no-untyped-call]
        rewards = (arms == (states @ self.right).argmax(dim=1)).float()
        return Played(states=states, arms=arms, before=before, rewards=rewards)

    def learn(self, played: Played, advantages: Tensor, bonus: float) -> None:
        """PPO: nothing is gained by moving further from the policy that played than the clip allows."""
        now = Categorical(logits=self.model(played.states))
        ratio = (now.log_prob(played.arms) - played.before).exp()  # type: ignore[no-untyped-call]
        clipped = ratio.clamp(1 - SETTINGS["clip"], 1 + SETTINGS["clip"])
        gained = torch.minimum(ratio * advantages, clipped * advantages).mean()
        self.update(-gained - bonus * now.entropy().mean())  # type: ignore[no-untyped-call]

    def skill(self) -> float:
        """How often the favourite arm is the right one."""
        states = torch.randn(1000, STATES)
        with torch.no_grad():
            chosen = self.model(states).argmax(dim=1)
        return float((chosen == (states @ self.right).argmax(dim=1)).float().mean())


class Critic(Role):
    """Foresees rewards."""

    def __init__(self) -> None:
        super().__init__(1)

    def learn(self, played: Played) -> Tensor:
        """The rewards above what was foreseen; then foresees better."""
        foreseen: Tensor = self.model(played.states).squeeze(1)
        self.update(functional.mse_loss(foreseen, played.rewards))
        return played.rewards - foreseen.detach()


class Far:
    """A role in a Ray actor, to be called as if it were here."""

    def __init__(self, kind: type[Role]) -> None:
        import ray

        # With two at a time it may take steps while it writes an asynchronous save.
        self.handle = ray.remote(max_concurrency=2)(kind).remote()
        self.trainer = RayRole(self.handle)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        import ray

        return lambda *arguments: ray.get(getattr(self.handle, name).remote(*arguments))


class Learning:
    """Both roles, and the bonus for an actor that still tries things."""

    def __init__(self, *, far: bool) -> None:
        self.actor: Any = Far(Actor) if far else Actor()
        self.critic: Any = Far(Critic) if far else Critic()
        self.bonus = 0.02

    def loop_state(self) -> dict[str, float]:
        """What is recorded with each boundary."""
        return {**SETTINGS, "bonus": self.bonus}

    def go_on_from(self, committed: Mapping[str, object] | None) -> None:
        """Take up what the boundary that was resumed from had recorded."""
        if committed is None:
            return
        if other := {name: committed.get(name) for name in SETTINGS if committed.get(name) != SETTINGS[name]}:
            raise SystemExit(f"the run was trained with {other}, not with {dict(SETTINGS)}: start another run")
        self.bonus = float(str(committed["bonus"]))

    def iterate(self, journal: Journal, iteration: int) -> float:
        """Play one batch and learn from it; the mean reward."""
        played = self.actor.play()
        advantages = self.critic.learn(played)
        journal.updated("critic", applied=1)
        if iteration > SETTINGS["warm_up"]:
            for _ in range(int(SETTINGS["passes"])):
                self.actor.learn(played, advantages, self.bonus)
                journal.updated("actor", applied=1)
            self.bonus *= 0.95
        return float(played.rewards.mean())


class DoomedDisk(LocalDisk):
    """A disk on which the process dies once the actor of iteration 20 is written, and the critic is to be."""

    def create(self, path: str, *, bulk: bool = False) -> Sink:
        if "/20." in path and path.endswith("critic/trainer.pt"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().create(path, bulk=bulk)


def train(output_root: str, *, die_in: str, far: bool) -> None:
    """Train to the end, or to where the process is told to die."""
    learning = Learning(far=far)
    config = Config.load(
        {"run": {"output_root": output_root, "name": "arms"}, "rl": {"save_every": SAVE_EVERY, "keep_optim_last": 2}}
    )
    os.makedirs(output_root, exist_ok=True)
    with Journal.open(
        config,
        roles={"actor": learning.actor.trainer, "critic": learning.critic.trainer},
        loop_state=learning.loop_state,
        disk=DoomedDisk(output_root) if die_in == "between-roles" else None,
    ) as journal:
        print(f"start: {journal.resumption.kind} at iteration {journal.resumption.step}", flush=True)
        learning.go_on_from(journal.committed_loop_state())
        for iteration in journal.steps(until=ITERATIONS):
            reward = learning.iterate(journal, iteration)
            if (die_in, iteration) in (("warm-up", 7), ("update", 45)):
                journal.finalize()  # so that the drill knows what is published
                os.kill(os.getpid(), signal.SIGKILL)
            journal.report(reward=reward)
        counts = {role: clocks.optimizer_step for role, clocks in journal.state.boundary.clocks.items()}
    total = learning.actor.total() + learning.critic.total()
    skill = learning.actor.skill()
    print(f"updates: actor {counts['actor']}, critic {counts['critic']}; {skill:.0%} right", flush=True)
    print(f"final weights sum to {total.hex()}, bonus {learning.bonus.hex()}", flush=True)


def drill(output_root: str, *, far: bool) -> int:
    """One run that nothing interrupts, one that dies at each place; 0 where both end with the same weights."""
    whole = _start(f"{output_root}/whole", die_in="", far=far)
    print("a run that is killed:")
    for death in DEATHS:
        if far and death == "between-roles":
            continue  # the files of far roles are written by their own processes
        print(f"--- killed in: {death}")
        _start(f"{output_root}/killed", die_in=death, far=far)
    print("--- and let go on")
    last = _start(f"{output_root}/killed", die_in="", far=far)
    same = whole.splitlines()[-1] == last.splitlines()[-1]
    print("the same weights to the last bit" if same else "the runs differ")
    return 0 if same else 1


def _start(output_root: str, *, die_in: str, far: bool) -> str:
    command = [sys.executable, __file__, "--output-root", output_root, "--die-in", die_in, *(["--ray"] * far)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, end="", flush=True)
    expected = -signal.SIGKILL if die_in else 0
    if done.returncode != expected:
        raise SystemExit(f"exit status {done.returncode}, expected {expected}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Train an actor and a critic; run it again to go on.")
    parser.add_argument("--output-root", default="", help="the folder of all runs; by default a new temporary one")
    parser.add_argument("--die-in", default="", choices=("", *DEATHS), help="where to be killed")
    parser.add_argument("--drill", action="store_true", help="be killed in these places, go on, and compare")
    parser.add_argument("--ray", action="store_true", help="each role in a Ray actor")
    args = parser.parse_args()
    root = args.output_root or tempfile.mkdtemp(prefix="actor-critic-")
    if args.drill:
        raise SystemExit(drill(str(Path(root).absolute()), far=args.ray))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    if args.ray:
        import ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    train(str(Path(root).absolute()), die_in=args.die_in, far=args.ray)


if __name__ == "__main__":
    main()
