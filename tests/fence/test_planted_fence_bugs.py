"""Every rule of the fence and of the agreement has a check that notices when it is broken: a mistake for each."""

from __future__ import annotations

import pytest

from tests.crash.bugs import Bug, require_caught, require_sound
from tests.transitions import test_fence_and_agreement as checks

FENCING = "transitions.fencing"


def a_number_of_a_text() -> None:
    checks.test_what_is_no_text_is_no_id(True)


def a_part_of_the_id() -> None:
    checks.test_a_report_with_another_id_is_stale(checks.HERE[:-1])


def true_is_one() -> None:
    checks.test_values_that_are_not_exactly_equal_differ(1, True)


def deeply() -> None:
    checks.test_values_that_are_not_exactly_equal_differ({"a": 1}, {"a": True})


def in_a_list() -> None:
    checks.test_values_that_are_not_exactly_equal_differ([1, [2]], [1, [2.0]])


def a_longer_list() -> None:
    checks.test_values_that_are_not_exactly_equal_differ([1], [1, 2])


def a_longer_mapping() -> None:
    checks.test_values_that_are_not_exactly_equal_differ({"a": 1}, {"a": 1, "b": None})


ADMIT = f"{FENCING}:admit"
DISAGREEMENT = f"{FENCING}:disagreement"
SAME = f"{FENCING}:_is_same"

BUGS = (
    Bug(
        "a report without an id is let through, as before there were ids",
        ADMIT,
        (
            (
                "if type(reported) is str and reported == execution_id:",
                "if reported is None or reported == execution_id:",
            ),
        ),
        checks.test_a_report_without_an_id_is_stale,
    ),
    Bug(
        "an id is admitted by its beginning",
        ADMIT,
        (("reported == execution_id", "execution_id.startswith(reported)"),),
        a_part_of_the_id,
    ),
    Bug(
        "an id that is equal in its own eyes is admitted",
        ADMIT,
        (("type(reported) is str and ", ""),),
        checks.test_a_text_of_another_class_is_no_id,
    ),
    Bug(
        "a fence without an id admits who has none",
        ADMIT,
        (("if not execution_id:", "if False:"),),
        checks.test_a_fence_without_an_id_of_its_own_admits_nobody,
    ),
    Bug(
        "a stale worker is told the id of this start",
        ADMIT,
        (("str(reported)[:SHOWN]", "execution_id"),),
        checks.test_a_stale_report_is_told_what_it_carried_and_never_what_runs,
    ),
    Bug(
        "a message repeats whatever arrived",
        ADMIT,
        (("[:SHOWN]", ""),),
        checks.test_a_stale_report_is_told_what_it_carried_and_never_what_runs,
    ),
    Bug("True is 1", SAME, (("if type(one) is not type(other):", "if False:"),), true_is_one),
    Bug(
        "True is 1 below the top",
        SAME,
        (("all(_is_same(one[key], other[key]) for key in one)", "one == other"),),
        deeply,
    ),
    Bug("2 is 2.0 in a list", SAME, (("all(map(_is_same, one, other))", "list(one) == list(other)"),), in_a_list),
    Bug("a list is like its beginning", SAME, (("len(one) == len(other) and ", ""),), a_longer_list),
    Bug("a mapping is like a part of it", SAME, (("one.keys() == other.keys() and ", ""),), a_longer_mapping),
    Bug(
        "what a worker adds is not looked at",
        DISAGREEMENT,
        (("{*controller, *worker}", "{*controller}"),),
        checks.test_each_key_that_one_side_lacks_differs_on_either_side,
    ),
    Bug(
        "what a worker lacks is not looked at",
        DISAGREEMENT,
        (("{*controller, *worker}", "{*worker}"),),
        checks.test_each_key_that_one_side_lacks_differs_on_either_side,
    ),
    Bug(
        "a missing key is like one that is None",
        DISAGREEMENT,
        (
            (
                "for name in controller if name in worker and _is_same(controller[name], worker[name])",
                "for name in {*controller, *worker} if _is_same(controller.get(name), worker.get(name))",
            ),
        ),
        checks.test_a_key_without_a_value_is_not_a_key_that_is_missing,
    ),
    Bug(
        "names come as they were found",
        DISAGREEMENT,
        (("tuple(sorted(", "tuple(reversed(sorted("), ("- shared))", "- shared)))")),
        checks.test_names_come_back_sorted_and_no_value_does,
    ),
    Bug(
        "the identity of the checkpoint is nobody's business",
        DISAGREEMENT,
        (("- shared", '- shared - {"checkpoint_identity"}'),),
        checks.test_two_checkpoints_with_equal_counters_are_two_checkpoints,
    ),
)


@pytest.mark.parametrize("planted", BUGS, ids=str)
def test_a_bug_of_the_fence_is_caught(planted: Bug) -> None:
    require_caught(planted)


def test_without_a_bug_every_check_of_the_fence_passes() -> None:
    require_sound(BUGS)
