"""Every rule of a controller's resume has a check that notices when it is broken: one planted mistake each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.controller import test_restore_order as order
from tests.controller import test_resumable_samplers as samplers
from tests.controller import test_resume_metadata as metadata
from tests.controller.application import Application
from tests.crash.bugs import Bug, require_caught, require_sound

METADATA = "journal.controller.metadata"
ADAPTER = "journal.controller.adapter:ControllerResume"
SAMPLERS = "journal.controller.samplers"
RESUMABLE = f"{SAMPLERS}:_Resumable"


def of(check: Callable[..., None], *given: Any) -> Callable[[], None]:
    """A check of a new application, with these arguments."""

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            check(Application(Path(folder)), *given)

    return run


def with_these(check: Callable[..., None], *given: Any) -> Callable[[], None]:
    return lambda: check(*given)


def bug(name: str, where: str, old: str, new: str, by: Callable[[], None]) -> Bug:
    return Bug(name, where, ((old, new),), by)


transcript = of(order.test_every_call_comes_in_the_order_of_the_table)
corrupt = of(order.test_a_selected_checkpoint_that_is_corrupt_fails_and_nothing_else_is_tried, "auto")
ordered = of(order.test_each_step_is_taken_once_and_in_order, 2)
loading = of(order.test_a_restored_controller_goes_on_with_exactly_the_rest_of_the_epoch, "random", "sampler")
ahead = with_these(samplers.test_what_a_loader_fetched_ahead_is_not_consumed, "random", "sampler", 2)
no_state = with_these(samplers.test_what_is_no_state_is_corrupt, {"position": True})

BUGS = (
    bug(
        "true is a count",
        f"{METADATA}:_require_integer",
        "type(value) is not int",
        "not isinstance(value, int)",
        with_these(metadata.test_a_value_of_another_type_or_range_is_refused_by_its_name, "training_commands", True),
    ),
    bug(
        "unknown fields are ignored",
        f"{METADATA}:ResumeMetadata.from_json",
        "if missing or unknown:",
        "document = {name: document[name] for name in _NAMES if name in document}\nif missing:",
        metadata.test_one_unknown_field_is_enough,
    ),
    bug(
        "a missing version is this one",
        f"{METADATA}:ResumeMetadata.from_json",
        "missing = sorted(set(_NAMES) - document.keys())",
        "missing = sorted(set(_NAMES) - document.keys() - {'schema_version'})",
        metadata.test_a_missing_version_is_not_taken_for_this_one,
    ),
    bug(
        "a later version is a wrong one",
        f"{METADATA}:ResumeMetadata.from_json",
        "if type(version) is int and version > SCHEMA_VERSION:",
        "if False:",
        metadata.test_a_later_version_is_told_as_such_whatever_else_it_holds,
    ),
    bug(
        "the state is the caller's own",
        f"{METADATA}:_state",
        'return plainjson.copied(value, where="sampler_state")',
        "return value",
        metadata.test_the_state_is_a_copy_on_the_way_in_and_on_the_way_out,
    ),
    bug(
        "off is a fresh start that asks first",
        f"{ADAPTER}._selected",
        'if self._adapter is None or self._resume == "off":',
        'if self._adapter is None or (self._resume == "off" and self._adapter.discover() is not self):',
        of(order.test_resume_off_calls_no_method_of_the_adapter),
    ),
    bug(
        "a path is discovered",
        f"{ADAPTER}._selected",
        'if self._resume != "auto":',
        "if False:",
        of(order.test_a_path_is_taken_as_it_is_and_nothing_is_discovered),
    ),
    bug(
        "what is corrupt is a fresh start",
        f"{ADAPTER}.select",
        "metadata = self._adapter.load_metadata(selected)",
        "try:\n    metadata = self._adapter.load_metadata(selected)\nexcept MilepostError:\n    return None",
        corrupt,
    ),
    bug(
        "metadata is loaded twice",
        f"{ADAPTER}.select",
        "metadata = self._adapter.load_metadata(selected)",
        "metadata = self._adapter.load_metadata(selected) and self._adapter.load_metadata(selected)",
        transcript,
    ),
    bug(
        "metadata is not checked",
        f"{ADAPTER}.select",
        "self._check(metadata, selected)",
        "pass",
        of(order.test_metadata_that_is_not_typed_is_refused),
    ),
    bug(
        "either owner will do",
        f"{ADAPTER}._check",
        "if metadata.sampling_owner != self._samplers.owner:",
        "if False:",
        of(order.test_a_state_of_the_other_owner_is_refused, "sampler", "batch_sampler"),
    ),
    bug(
        "any identity will do",
        f"{ADAPTER}._check",
        "if self._identity not in (None, metadata.checkpoint_identity):",
        "if False:",
        of(order.test_another_identity_than_was_agreed_upon_is_refused),
    ),
    bug(
        "any epoch will do",
        f"{ADAPTER}.restore",
        "!= epoch:",
        "is None:",
        of(order.test_a_state_of_another_epoch_than_the_metadata_is_refused),
    ),
    bug("the epoch is not set", f"{ADAPTER}.restore", "sampler.set_epoch(epoch)", "pass", transcript),
    bug(
        "the epoch is set behind the state",
        f"{ADAPTER}.restore",
        "self._adapter.restore(effective, self._metadata)",
        "self._adapter.restore(effective, self._metadata)\neffective.set_epoch(epoch)",
        transcript,
    ),
    bug(
        "a fresh start sets no epoch",
        f"{ADAPTER}.restore",
        "if self._adapter is None:",
        "if self._metadata is None:",
        of(order.test_a_fresh_start_sets_the_epoch_that_a_restored_one_would_set),
    ),
    bug(
        "an epoch is set without an adapter",
        f"{ADAPTER}.restore",
        "if self._adapter is None:",
        "if False:",
        order.test_without_an_adapter_nothing_is_asked_and_nothing_is_set,
    ),
    bug(
        "the state is restored twice",
        f"{ADAPTER}.restore",
        "self._adapter.restore(effective, self._metadata)",
        "self._adapter.restore(effective, self._metadata)\nself._adapter.restore(effective, self._metadata)",
        transcript,
    ),
    bug(
        "the sampler below is restored",
        "journal.controller.adapter:Samplers.effective",
        "self.sampler if self.batch_sampler is None else self.batch_sampler",
        "self.batch_sampler if self.sampler is None else self.sampler",
        of(order.test_a_restored_controller_goes_on_with_exactly_the_rest_of_the_epoch, "random", "batch_sampler"),
    ),
    bug(
        "the iterator is made with the loader",
        f"{ADAPTER}.build_loader",
        "self._loader = loader",
        "self._loader = iter(loader)",
        of(order.test_every_call_comes_in_the_order_of_the_table),
    ),
    bug("steps go in any order", f"{ADAPTER}._step", "if self._left[0] != step:", "if False:", ordered),
    bug("a step goes twice", f"{ADAPTER}._step", "self._left = left", "self._left = [step, *left]", ordered),
    bug(
        "a step that failed may be tried again",
        f"{ADAPTER}._step",
        "left, self._left = self._left[1:], []",
        "left = self._left[1:]",
        corrupt,
    ),
    bug(
        "an error of the adapter's own is anybody's",
        f"{ADAPTER}._asking",
        "except MilepostError:",
        "except Exception:",
        of(order.test_an_error_of_the_adapters_own_fails_the_start, "restore"),
    ),
    bug(
        "what was fetched is consumed",
        f"{RESUMABLE}.__iter__",
        "return islice(iter(self._bound(self._sampler)), self._position, None)",
        "return (self.advance() or one for one in islice(iter(self._bound(self._sampler)), self._position, None))",
        ahead,
    ),
    bug("the position is forgotten", f"{RESUMABLE}.__iter__", "self._position, None", "0, None", loading),
    bug(
        "setting the same epoch goes to its start",
        f"{RESUMABLE}.set_epoch",
        "if epoch != self._epoch:",
        "if True:",
        samplers.test_a_loop_that_sets_the_epoch_at_its_top_keeps_what_was_restored,
    ),
    bug(
        "the next epoch begins in the middle",
        f"{RESUMABLE}.set_epoch",
        "self._epoch, self._position = epoch, 0",
        "self._epoch = epoch",
        samplers.test_a_loop_that_sets_the_epoch_at_its_top_keeps_what_was_restored,
    ),
    bug(
        "every epoch has the same order",
        f"{RESUMABLE}._bound",
        "+ self._epoch",
        "+ 0",
        with_these(samplers.test_epochs_of_a_sampler_that_draws_differ_and_each_is_the_same_every_time, "random"),
    ),
    bug(
        "the wrapped sampler is told the epoch",
        f"{RESUMABLE}._bound",
        "bound = copy.copy(sampler)",
        "bound = sampler",
        samplers.test_epochs_may_overlap_and_nothing_of_the_wrapped_sampler_changes,
    ),
    bug(
        "the sampler inside draws from its own generator",
        f"{RESUMABLE}._bound",
        "if _holds_another(sampler):",
        "if False:",
        with_these(samplers.test_a_restored_batch_sampler_yields_exactly_the_rest, "random"),
    ),
    bug(
        "a state is loaded into an epoch under way",
        f"{RESUMABLE}.load_state_dict",
        "if self._iterated:",
        "if False:",
        samplers.test_a_state_is_loaded_before_the_first_iterator,
    ),
    bug(
        "a state of any sampler will do",
        f"{RESUMABLE}.load_state_dict",
        'self._require_same(state["of"])',
        "pass",
        samplers.test_a_state_of_another_batch_size_or_number_of_ranks_is_refused,
    ),
    bug(
        "true is a position",
        f"{RESUMABLE}.load_state_dict",
        "type(position) is not int",
        "not isinstance(position, int)",
        no_state,
    ),
    bug(
        "more is consumed than there is",
        f"{RESUMABLE}.advance",
        "not 0 <= count <= self.remaining",
        "not 0 <= count",
        samplers.test_nobody_consumes_more_than_an_epoch_has,
    ),
    bug(
        "two positions in one another",
        f"{RESUMABLE}.__init__",
        "if any(isinstance(one, _Resumable) for one in layers):",
        "if False:",
        samplers.test_a_sampler_is_made_resumable_once,
    ),
    bug(
        "the global generator will do",
        f"{SAMPLERS}:_seed_of",
        "if sampler.generator is None:",
        "if sampler.generator is None:\n    return 0\nif False:",
        samplers.test_a_sampler_that_draws_from_the_global_generator_needs_a_seed,
    ),
)


@pytest.mark.parametrize("planted", BUGS, ids=str)
def test_a_bug_of_a_controllers_resume_is_caught(planted: Bug) -> None:
    require_caught(planted)


def test_without_a_bug_every_check_of_a_controller_passes() -> None:
    require_sound(BUGS)
