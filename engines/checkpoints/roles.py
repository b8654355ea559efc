"""The roles of a checkpoint: each has a directory of its own below it, and nothing else tells of them.

    policy/model.pt   policy/optim/__0_0.distcp   critic/trainer.pt      the roles critic and policy
    model.pt          optim/__0_0.distcp          trainer.pt             one trainer, which has no name

A role is therefore never called as a part of a trainer's own state is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from milepost.engines.checkpoints.parts import STATES
from milepost.transitions.errors import Misconfigured
from milepost.transitions.values import FileDigest

_NAME = re.compile(r"[a-z][a-z0-9_-]*")


def roles_of(files: Iterable[FileDigest]) -> tuple[str, ...]:
    """The roles whose files these are, sorted; none for those of one trainer."""
    first = {file.path.partition("/")[0] for file in files if "/" in file.path}
    return tuple(sorted(first - set(STATES)))


def require_role(name: str) -> str:
    """The name, where a role may be called so; `Misconfigured` where it may not."""
    if _NAME.fullmatch(name) is None or name in STATES:
        raise Misconfigured(
            (
                f"a role called {name!r}: expected a lower-case letter and then letters, digits, - or _, and none of "
                f"{', '.join(STATES)}; rename the role",
            )
        )
    return name
