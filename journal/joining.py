"""Who takes part in a run: this process alone, the ranks of torch.distributed, or roles in other processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from milepost.engines.checkpoints.roles import require_role
from milepost.engines.crew import Alone, Crew
from milepost.engines.crew.member import Member
from milepost.engines.trainers import Trainer
from milepost.journal.config import Config
from milepost.journal.saves import LoopState
from milepost.transitions.errors import Misconfigured
from milepost.transitions.values import FULL

if TYPE_CHECKING:
    from milepost.engines.crew.remote import Submit


@runtime_checkable
class Away(Protocol):
    """A role whose trainer lives in another process, such as `milepost.journal.adapters.ray.RayRole`."""

    def reach(self, role: str) -> Submit:
        """What gives orders to the member there."""
        ...


def require_roles(
    config: Config,
    *,
    trainer: Trainer | None,
    roles: Mapping[str, Trainer | Away] | None,
    loop_state: LoopState | None,
) -> tuple[dict[str, Trainer], dict[str, Away]]:
    """The trainers of this process by role (`""` for one without a name), and the roles that live elsewhere.

    `Misconfigured` for both or none, for a name that no role may have, and for what several roles cannot be saved by.
    """
    if (trainer is None) == (roles is None):
        found = "neither" if trainer is None else "both"
        raise Misconfigured((f"Journal.open: expected trainer= or roles=, found {found}",))
    if trainer is not None:
        if loop_state is not None:
            raise Misconfigured(
                ("loop_state= is recorded with the boundary of several roles=; this run has trainer=",)
            )
        return {"": trainer}, {}
    assert roles is not None
    problems = []
    if config.checkpoint_components != FULL:
        problems.append(
            "rl.checkpoint_components: several roles are saved whole at every boundary; set all components"
        )
    if config.emergency_checkpoint_components != "full":
        problems.append("rl.emergency_checkpoint_components: several roles are saved whole; set it to full")
    if config.validation.save_checkpoint and config.validation.checkpoint_components != FULL:
        problems.append("rl.validation.checkpoint_components: several roles are saved whole; set all components")
    if config.checkpoint_store.backend != "local":
        problems.append("rl.checkpoint_store.backend: several roles need the local primary store; set it to local")
    if problems:
        raise Misconfigured(tuple(problems))
    here: dict[str, Trainer] = {}
    away: dict[str, Away] = {}
    for name in sorted(roles):
        role = roles[require_role(name)]
        if isinstance(role, Away):
            away[name] = role
        else:
            here[name] = role
    return here, away


def crew_of(config: Config, member: Member, *, away: Mapping[str, Away], environ: Mapping[str, str]) -> Crew:
    """The crew that this process is a member of. `Misconfigured` where a launcher started ranks that did not join."""
    from torch import distributed

    joined = distributed.is_available() and distributed.is_initialized()
    size = distributed.get_world_size() if joined else int(environ.get("WORLD_SIZE", "1"))
    if away:
        from milepost.engines.crew.remote import Remote

        if size > 1:
            raise Misconfigured(
                (f"roles in other processes are led by one driver, and this is a world of {size}; start it alone",)
            )
        return Remote(
            member.perform,
            roles={name: one.reach(name) for name, one in away.items()},
            timeout_s=config.rank_timeout_s,
        )
    if size == 1:
        return Alone(member.perform)
    if not joined:
        raise Misconfigured(
            (
                f"WORLD_SIZE={size} and torch.distributed is not initialised: call "
                "torch.distributed.init_process_group before Journal.open",
            )
        )
    from milepost.engines.crew.processes import Processes

    return Processes.connect(member.perform, timeout_s=config.rank_timeout_s)
