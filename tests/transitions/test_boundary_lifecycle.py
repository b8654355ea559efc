"""Several roles, one save: all of them are in it or it is not (INV-15), each at its own clocks."""

from __future__ import annotations

import pytest
from attrs import evolve as replaced

from milepost.transitions.boundary import (
    Boundary,
    BoundaryOpened,
    BoundaryStage,
    ReportRole,
    RolesResumed,
    RoleStored,
    RoleUpdated,
    disagreement,
)
from milepost.transitions.errors import IllegalTransition, Refused
from milepost.transitions.machine import Command, Record, State, decide, due, evolve, initial
from milepost.transitions.run import AdoptResume, EndRun, RunResumed
from milepost.transitions.saving import (
    ComponentStored,
    ObserveSave,
    OpenSave,
    ReportAbsent,
    ReportFound,
    ReportGivenUp,
    ReportSealed,
    ReportStored,
    SaveAbandoned,
    SaveOpened,
    SaveSealed,
    SaveStage,
    SealSave,
    StorePayload,
)
from milepost.transitions.validation import EvaluationPended
from milepost.transitions.values import FULL, Clocks, Component, LoopValue, Mode, Outcome, Plan, Reason, ResumeKind
from milepost.transitions.values import RoleClocks as Role
from tests.transitions.samples import (
    BOTH_ROLES,
    LOOP_STATE,
    MANIFEST,
    OLDER,
    PARTIAL,
    RESUMED_RUN,
    ROLES,
    SAVE,
    STORED,
    boundary_in,
    open_run_command,
    run_opened,
    saving_in,
)

APART = State(run=RESUMED_RUN, boundary=boundary_in(BoundaryStage.APART))


def under_way(*, components: int = len(FULL), roles: tuple[str, ...] = BOTH_ROLES) -> State:
    """A save of both roles with the first so many of its components, and with these roles, stored."""
    saving = saving_in(SaveStage.WRITING, stored=components)
    return replaced(APART, saving=saving, boundary=boundary_in(BoundaryStage.JOINED, stored=roles))


def asked(*, plan: Plan = FULL, pending: bool = False, loop_state: tuple[LoopValue, ...] = LOOP_STATE) -> OpenSave:
    return OpenSave(
        step=10,
        plan=plan,
        reason=Reason.CADENCE,
        mode=Mode.SYNCHRONOUS,
        pending=pending,
        loop_state=loop_state,
    )


def adopting(
    *, roles: tuple[Role, ...] = ROLES, loop_state: tuple[LoopValue, ...] | None = LOOP_STATE
) -> AdoptResume:
    return AdoptResume(
        resume=ResumeKind.FRESH,
        step=0,
        source="",
        save=None,
        clocks=Clocks(),
        passed_over=(),
        roles=roles,
        loop_state=loop_state,
    )


def after(state: State, *commands: Command) -> State:
    for command in commands:
        for record in decide(state, command):
            state = evolve(state, record)
    return state


# --- one boundary from end to end -----------------------------------------------------------------------------


def test_a_save_of_several_roles_is_one_entry_with_the_boundary_that_joins_them() -> None:
    opened, joined = decide(APART, asked())
    assert isinstance(opened, SaveOpened) and opened.save == SAVE
    assert joined == BoundaryOpened(save=SAVE, roles=ROLES, loop_state=LOOP_STATE)
    kinds = [type(record) for record in decide(APART, asked(pending=True))]
    assert kinds == [SaveOpened, BoundaryOpened, EvaluationPended]


def test_roles_are_stored_with_the_last_component_and_sealed_with_their_clocks() -> None:
    state = after(APART, asked())
    assert due(state) == (StorePayload(save=SAVE, plan=FULL),)
    state = after(state, ReportStored(save=SAVE, components=STORED[:2]))
    assert due(state) == (StorePayload(save=SAVE, plan=FULL[2:]),)
    records = decide(state, ReportStored(save=SAVE, components=STORED[2:], roles=BOTH_ROLES))
    assert records == (
        ComponentStored(save=SAVE, component=Component.TRAINING_STATE, files=STORED[2].files),
        RoleStored(save=SAVE, role="critic"),
        RoleStored(save=SAVE, role="policy"),
    )
    for record in records:
        state = evolve(state, record)
    (seal,) = due(state)
    assert seal == SealSave(
        save=SAVE, plan=FULL, components=STORED, pending=False, roles=ROLES, loop_state=LOOP_STATE
    )
    state = after(state, ReportSealed(save=SAVE, manifest=MANIFEST))
    assert state.boundary == Boundary(roles=ROLES, committed=LOOP_STATE)
    assert state.saving.newest == SAVE


def test_the_marker_has_the_clocks_of_the_opening_whatever_was_trained_since() -> None:
    state = after(APART, asked(), ReportRole(role="policy", applied=1))
    state = after(state, ReportStored(save=SAVE, components=STORED, roles=BOTH_ROLES))
    (seal,) = due(state)
    assert isinstance(seal, SealSave) and seal.roles == ROLES
    assert state.boundary.clocks["policy"].optimizer_step == 5


@pytest.mark.parametrize("components", [0, 3])
def test_a_given_up_boundary_leaves_the_roles_and_what_was_committed(components: int) -> None:
    before = replaced(LOOP_STATE[0], value="1")
    state = under_way(components=components, roles=BOTH_ROLES if components else ())
    state = replaced(state, boundary=replaced(state.boundary, committed=(before,)))
    state = after(state, ReportGivenUp(save=SAVE, code="no-space", detail=""))
    assert state.boundary == Boundary(roles=ROLES, committed=(before,))


def test_the_next_writer_looks_first_and_resumes_the_roles_behind_it() -> None:
    state = after(under_way(), open_run_command(segment=2))
    assert due(state)[0] == ObserveSave(save=SAVE, plan=FULL)
    assert state.boundary.roles == () and state.boundary.open is not None
    with pytest.raises(Refused, match=r"several roles while save 10\.1\.1 is unsettled; look at it first"):
        decide(state, adopting())
    files = tuple(file for part in STORED for file in part.files)
    found = after(state, ReportFound(save=SAVE, manifest=MANIFEST, files=files))
    assert found.boundary == Boundary(committed=LOOP_STATE)
    absent = after(state, ReportAbsent(save=SAVE))
    assert absent.boundary == Boundary()
    for settled in (found, absent):
        assert after(settled, adopting()).boundary == Boundary(roles=ROLES, committed=LOOP_STATE)


def test_a_boundary_that_was_not_all_stored_is_never_rolled_forward() -> None:
    state = after(under_way(components=2, roles=()), open_run_command(segment=2))
    files = tuple(file for part in STORED[:2] for file in part.files)
    with pytest.raises(Refused, match="lists other files than the journal recorded"):
        decide(state, ReportFound(save=SAVE, manifest=MANIFEST, files=files))


# --- the roles of an epoch ------------------------------------------------------------------------------------


def test_an_epoch_begins_with_the_roles_that_its_resume_names() -> None:
    opened = after(initial(), open_run_command())
    assert opened.boundary == Boundary()
    resumed, roles = decide(opened, adopting(loop_state=None))
    assert isinstance(resumed, RunResumed) and roles == RolesResumed(roles=ROLES, loop_state=None)
    state = after(opened, adopting(loop_state=None))
    assert state.boundary == Boundary(roles=ROLES)
    assert state.boundary.clocks == {one.role: one.clocks for one in ROLES}
    again = after(after(state, EndRun(outcome=Outcome.STOPPED, step=0)), open_run_command(segment=2))
    assert again.boundary == Boundary()


def test_a_run_of_one_role_has_no_part_in_it() -> None:
    state = State(run=replaced(RESUMED_RUN, resumed=None))
    assert [type(record) for record in decide(state, adopting(roles=(), loop_state=None))] == [RunResumed]
    alone = after(
        State(run=RESUMED_RUN),
        asked(loop_state=()),
        ReportStored(save=SAVE, components=STORED),
        ReportSealed(save=SAVE, manifest=MANIFEST),
    )
    assert alone.boundary == Boundary()


@pytest.mark.parametrize(
    ("command", "moved"),
    [
        (ReportRole(role="critic", applied=2), Clocks(attempt_id=11, optimizer_step=10, skipped_total=1)),
        (
            ReportRole(role="critic", skipped=2),
            Clocks(attempt_id=11, optimizer_step=8, skipped_total=3, skipped_consecutive=3),
        ),
    ],
)
@pytest.mark.parametrize("stage", BoundaryStage)
def test_each_role_has_its_own_clocks(stage: BoundaryStage, command: ReportRole, moved: Clocks) -> None:
    before = under_way() if stage is BoundaryStage.JOINED else APART
    state = after(before, command)
    assert state.boundary.clocks == {"critic": moved, "policy": ROLES[1].clocks}
    assert (state.updates, state.boundary.open) == (before.updates, before.boundary.open)


# --- refusals -------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[State, Command, str]] = {
    "in parts": (APART, asked(plan=PARTIAL), r"step 10: several roles are saved together and whole, .* \(INV-15\)"),
    "a loop state of one role": (State(run=RESUMED_RUN), asked(), "several roles, and this run has one"),
    "roles of one role": (
        State(run=RESUMED_RUN, saving=saving_in(SaveStage.WRITING, stored=0)),
        ReportStored(save=SAVE, components=STORED, roles=("policy",)),
        "expected the roles none with the last of its components, found policy",
    ),
    "roles before the last component": (
        under_way(components=0, roles=()),
        ReportStored(save=SAVE, components=STORED[:1], roles=BOTH_ROLES),
        "expected the roles none with some of its components, found critic, policy",
    ),
    "all components and not all roles": (
        under_way(components=0, roles=()),
        ReportStored(save=SAVE, components=STORED, roles=("critic",)),
        "expected the roles critic, policy with the last of its components, found critic",
    ),
    "a role twice": (
        under_way(components=0, roles=()),
        ReportStored(save=SAVE, components=STORED, roles=("critic", "critic", "policy")),
        "found critic, critic, policy",
    ),
    "a stranger": (APART, ReportRole(role="reward", applied=1), "no role 'reward' in this run; its roles are critic"),
    "an update without one": (APART, ReportRole(role="policy"), "at least one, found 0 and 0"),
    "an update of both kinds": (APART, ReportRole(role="policy", applied=1, skipped=1), "found 1 and 1"),
    "an update below zero": (APART, ReportRole(role="policy", applied=1, skipped=-1), "found 1 and -1"),
    "an update before the run": (initial(), ReportRole(role="policy", applied=1), "record an update of 'policy'"),
    "a role that is resumed twice": (
        State(run=replaced(RESUMED_RUN, resumed=None)),
        adopting(roles=(ROLES[0], ROLES[0])),
        "cannot resume the roles critic, critic: one of them is there twice",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_part_the_roles_is_refused(case: str) -> None:
    state, command, message = REFUSED[case]
    before = repr(state)
    with pytest.raises(Refused, match=message):
        decide(state, command)
    assert repr(state) == before


# --- records --------------------------------------------------------------------------------------------------

ILLEGAL: dict[str, tuple[State, Record, str]] = {
    "other roles": (
        APART,
        BoundaryOpened(save=SAVE, roles=ROLES[:1], loop_state=()),
        r"save 10\.1\.1 joins critic; the roles are other ones",
    ),
    "no roles": (
        State(run=RESUMED_RUN),
        BoundaryOpened(save=SAVE, roles=(), loop_state=()),
        "joins none; the roles are other ones",
    ),
    "a role of another save": (
        under_way(roles=()),
        RoleStored(save=OLDER, role="critic"),
        r"save 5\.1\.1 stored 'critic' twice or as a stranger; save 10\.1\.1 joins",
    ),
    "a role twice": (under_way(roles=("critic",)), RoleStored(save=SAVE, role="critic"), "stored 'critic' twice"),
    "a stranger": (under_way(roles=()), RoleStored(save=SAVE, role="reward"), "stored 'reward' twice or as a"),
    "sealed without one": (
        under_way(roles=("critic",)),
        SaveSealed(save=SAVE, manifest=MANIFEST),
        r"save 10\.1\.1 was sealed without policy \(INV-15\)",
    ),
    "an update of a stranger": (
        APART,
        RoleUpdated(role="reward", applied=1, skipped=0),
        "an update of 'reward'; the roles are critic, policy",
    ),
    "an update without one": (APART, RoleUpdated(role="policy", applied=0, skipped=0), "0 applied and 0 skipped"),
    "an update of both kinds": (APART, RoleUpdated(role="policy", applied=1, skipped=2), "1 applied and 2 skipped"),
    "roles on top of roles": (
        APART,
        RolesResumed(roles=ROLES, loop_state=None),
        "the roles critic, policy join critic, policy: each is there once",
    ),
    "a role that is resumed twice": (
        State(run=RESUMED_RUN),
        RolesResumed(roles=(ROLES[0], ROLES[0]), loop_state=None),
        "the roles critic, critic join none",
    ),
    "a boundary beside another one": (
        under_way(),
        BoundaryOpened(save=SAVE, roles=ROLES, loop_state=()),
        "the boundary in stage JOINED has no BoundaryOpened",
    ),
    "a resume beside a boundary": (
        replaced(under_way(), boundary=replaced(boundary_in(BoundaryStage.JOINED), roles=())),
        RolesResumed(roles=ROLES, loop_state=None),
        "the boundary in stage JOINED has no RolesResumed",
    ),
    "a role without a boundary": (APART, RoleStored(save=SAVE, role="critic"), "in stage APART has no RoleStored"),
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_a_record_that_parts_the_roles_is_illegal(case: str) -> None:
    state, record, message = ILLEGAL[case]
    before = repr(state)
    with pytest.raises(IllegalTransition, match=message):
        evolve(state, record)
    assert repr(state) == before


def test_a_new_epoch_keeps_what_is_under_way_and_forgets_the_roles() -> None:
    for state in (APART, under_way()):
        state = replaced(state, boundary=replaced(state.boundary, committed=LOOP_STATE))
        assert evolve(state, run_opened(2)).boundary == replaced(state.boundary, roles=())


def test_the_abandoned_save_of_a_run_of_one_role_passes_by() -> None:
    state = State(run=RESUMED_RUN, saving=saving_in(SaveStage.WRITING))
    assert evolve(state, SaveAbandoned(save=SAVE, code="no-space", detail="")).boundary is state.boundary
    assert evolve(state, SaveSealed(save=SAVE, manifest=MANIFEST)).boundary is state.boundary


# --- what a marker committed ----------------------------------------------------------------------------------


def at(**steps: int) -> tuple[Role, ...]:
    return tuple(Role(role=role, clocks=Clocks(attempt_id=step, optimizer_step=step)) for role, step in steps.items())


def test_each_role_is_held_against_its_own_counter() -> None:
    assert disagreement(at(critic=9, policy=4), counters={"policy": 4, "critic": 9}) == ""
    assert disagreement(at(critic=9, policy=5), counters={"policy": 4, "critic": 9}) == (
        "its marker committed policy at 4, critic at 9, and found are critic at optimizer step 9, "
        "policy at optimizer step 5"
    )
    assert disagreement(at(critic=9), counters={"policy": 4, "critic": 9}) != ""
    assert disagreement(at(critic=9, policy=4), counters={}) != ""


def test_without_counters_the_roles_have_to_agree_with_each_other() -> None:
    assert disagreement(at(critic=4, policy=4), counters=None) == ""
    assert disagreement((), counters=None) == ""
    assert disagreement(at(critic=9, policy=4), counters=None) == (
        "its marker has no counters, so the roles have to agree, and found are critic at optimizer step 9, "
        "policy at optimizer step 4"
    )
