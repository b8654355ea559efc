"""Which save falls due at the boundary of a step, of which plan, and on which side of the evaluation.

What a boundary asks for is joined into one plan, and one save is made of it:

    validation   a save is asked for by        the plan together   the save                      the evaluation
    not due      the cadence                   any                 it                            none
    due          nobody                        -                   none                          ephemeral
    due          the cadence, or validation    full                first, pending                durable
    due          the cadence, at least         partial             first: it survives (INV-06)   ephemeral, behind it
    due          validation alone              partial             behind the evaluation         ephemeral, first
    due          anybody, already published    any                 none                          ephemeral

The cadence asks at each multiple of `save_every`; at the final boundary it asks as well, where `save_every` is not 0;
never at step 0, of which nothing was trained. A boundary at which the run is told to stop is an emergency instead:

    validation   emergency plan   what is published of the step        the save
    due          any              no checkpoint                        full, pending: the resumed run evaluates it
    not due      full             no checkpoint                        full
    not due      run              nothing                              the regular plan and the model
    not due      run              an artifact that covers that plan    none: it stands in for the emergency
    not due      run              an artifact that lacks some of it    full: an artifact is never written again
    any          any              a checkpoint                         none
"""

from __future__ import annotations

from enum import Enum

from attrs import frozen

from milepost.transitions.saving import Saving
from milepost.transitions.values import FULL, Component, Plan, Reason, covers, union


@frozen(kw_only=True)
class Policy:
    """What the configuration asks for. `validation` is None where validation does not ask for saves."""

    save_every: int
    regular: Plan = FULL
    validation: Plan | None = None
    emergency_full: bool = True

    @property
    def emergency(self) -> Plan:
        """What an emergency has to keep when no validation is due."""
        return FULL if self.emergency_full else union(self.regular, (Component.MODEL,))


class Evaluation(Enum):
    """Where the evaluation of a boundary stands to its save."""

    NONE = "none"
    BEFORE_SAVE = "before-save"
    AFTER_SAVE = "after-save"
    OF_PENDING = "of-pending"


@frozen(kw_only=True)
class Work:
    """One save of `plan` (empty: none), and the evaluation beside it. `note` is for the log."""

    plan: Plan
    reason: Reason
    evaluation: Evaluation
    note: str = ""

    @property
    def pending(self) -> bool:
        """Whether the save is the first half of a durable validation."""
        return bool(self.plan) and self.evaluation is Evaluation.OF_PENDING


def at_boundary(policy: Policy, *, step: int, final: bool, validating: bool, saving: Saving) -> Work:
    """What to do behind a step. `final` is the last boundary; `validating` says that validation is due."""
    on_cadence = policy.save_every > 0 and step > 0 and step % policy.save_every == 0
    finishing = policy.save_every > 0 and step > 0 and final
    regular = policy.regular if on_cadence or finishing else ()
    wanted = policy.validation if validating and policy.validation is not None else ()
    reason = Reason.FINAL if finishing and not on_cadence else Reason.CADENCE if regular else Reason.VALIDATION
    plan = union(regular, wanted)
    evaluation = Evaluation.AFTER_SAVE if validating else Evaluation.NONE
    if saving.holds(step, plan) is not None:
        return Work(plan=(), reason=reason, evaluation=evaluation)
    if validating and plan == FULL:
        evaluation = Evaluation.OF_PENDING
    elif validating and plan and not regular:
        evaluation = Evaluation.BEFORE_SAVE
    return Work(plan=plan, reason=reason, evaluation=evaluation)


def at_stop(policy: Policy, *, step: int, validating: bool, saving: Saving) -> Work:
    """What to save of the step at whose boundary the run is told to stop."""
    pending = Evaluation.OF_PENDING if validating else Evaluation.NONE
    plan = FULL if validating else policy.emergency
    if saving.holds(step, plan) is not None:
        return Work(plan=(), reason=Reason.EMERGENCY, evaluation=Evaluation.NONE)
    artifact = saving.artifacts.get(step)
    if plan == FULL or artifact is None:
        return Work(plan=plan, reason=Reason.EMERGENCY, evaluation=pending)
    lacking = ", ".join(part.value for part in plan if not covers(artifact.plan, (part,)))
    return Work(
        plan=FULL,
        reason=Reason.EMERGENCY,
        evaluation=pending,
        note=f"the artifact of step {step} lacks {lacking} and is never written again: the emergency save is full",
    )
