"""Histories of ranks and of roles that nobody thought of: those of one process, in which members are lost as well."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from milepost.transitions.values import FULL
from tests.crash.puppets import ROLES_APART, TWO_RANKS, TWO_ROLES, Cast
from tests.crash.ranks import every_checkpoint_reads_back
from tests.crash.test_random_histories import PICK, Histories
from tests.crash.world import Form

_MAY_BE_PARTIAL = ("plan", "validation")


class CrewHistories(Histories):
    """Every rule of one process, with other members."""

    @precondition(lambda self: self.run is not None and bool(self.run.others))
    @rule(ahead=st.integers(0, 60))
    def lose_a_member_later(self, ahead: int) -> None:
        self._running().others[0].kill_at = len(self.disk.trace) + ahead

    @precondition(lambda self: self.run is not None)
    @rule(pick=PICK)
    def read_back(self, pick: int) -> None:
        """By every rank of every role."""
        assert self.cast is not None
        every_checkpoint_reads_back(self.disk, self.cast)


class RankHistories(CrewHistories):
    cast: ClassVar[Cast | None] = TWO_RANKS
    form: ClassVar[Form] = "dcp"


class RoleHistories(CrewHistories):
    """Several roles are saved whole, and one of them may rest."""

    cast: ClassVar[Cast | None] = TWO_ROLES

    @precondition(lambda self: self._may_train())
    @rule(role=st.sampled_from(["critic", "policy", ""]))
    def rest(self, role: str) -> None:
        self._running().resting = frozenset((role,))

    def allowed(self, knobs: Mapping[str, Any]) -> Mapping[str, Any]:
        whole = {name: FULL if name in _MAY_BE_PARTIAL else value for name, value in knobs.items()}
        return {name: value for name, value in whole.items() if name != "emergency"}


class ApartHistories(RoleHistories):
    cast: ClassVar[Cast | None] = ROLES_APART
    form: ClassVar[Form] = "dcp"


TestRandomRanks = pytest.mark.slow(RankHistories.TestCase)
TestRandomRoles = pytest.mark.slow(RoleHistories.TestCase)
TestRandomRolesApart = pytest.mark.slow(ApartHistories.TestCase)
if os.environ.get("HYPOTHESIS_PROFILE", "ci") == "ci":
    _FEW = settings(max_examples=12, stateful_step_count=20)
    TestRandomRanks.settings = TestRandomRoles.settings = TestRandomRolesApart.settings = _FEW
