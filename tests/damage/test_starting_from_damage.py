"""`Journal.open(resume=auto)` on damaged runs: one typed error, or the newest checkpoint, whole. Nothing is touched.

An entry's sum covers every byte of its line, so one flip stands for all in a line: each line is bent at its
beginning, in the middle, at its end and in its newline, and each file at a stride besides. `make fuzz` takes every
byte.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from milepost.transitions.errors import Corrupt, NewerVersion
from tests.damage.images import CACHE, POINTER, Small, cached, ended, governed, killed, start
from tests.damage.test_every_byte_is_verified import flipped

RUNS = {"ended": ended, "killed": killed}

pytestmark = pytest.mark.slow


def bent(run: Small, name: str, *, offset: int) -> Iterator[Small]:
    data = run.read(name)
    yield run.but({name: flipped(data, offset)})
    yield run.but({name: data[:offset]})


def places(run: Small, name: str) -> list[int]:
    """Where a file is bent: by lines for a segment, at a stride in any case."""
    data = run.read(name)
    found = set(range(0, len(data), 97))
    begin = 0
    for line in data.splitlines(keepends=True) if name in run.segments else ():
        end = begin + len(line)
        found |= {begin, begin + len(line) // 2, end - 2, end - 1}
        begin = end
    return sorted(found)


@pytest.mark.parametrize("which", RUNS)
def test_a_start_on_an_undamaged_image_resumes_from_the_newest(which: str) -> None:
    assert start(RUNS[which]()) is None


@pytest.mark.parametrize("which", RUNS)
def test_a_bent_file_ends_in_one_typed_error_or_in_the_newest_checkpoint(which: str) -> None:
    run = RUNS[which]()
    for name in run.names:
        for offset in places(run, name):
            for damaged in bent(run, name, offset=offset):
                error = start(damaged)
                assert error is None or isinstance(error, Corrupt), f"{name} at {offset}: {error}"
                assert not isinstance(error, NewerVersion), f"{name} at {offset}: {error}"


def test_the_pointer_is_never_believed_and_is_written_again() -> None:
    run = ended()
    data = run.read(POINTER)
    for offset in range(len(data)):
        for damaged in bent(run, POINTER, offset=offset):
            assert start(damaged) is None
    for nonsense in (b"iter_000000123\n", b"iter_000000001\n", b"../../elsewhere\n", bytes(5000)):
        assert start(run.but({POINTER: nonsense})) is None


def test_damage_to_the_newest_checkpoint_is_never_answered_with_an_older_one() -> None:
    run = ended()
    for name in run.names:
        if name.startswith("checkpoints/iter_000000003/"):
            for offset in places(run, name):
                for damaged in bent(run, name, offset=offset):
                    assert isinstance(start(damaged), Corrupt), f"{name} at {offset}"


def test_damage_to_an_older_checkpoint_is_no_hindrance() -> None:
    run = ended()
    for name in run.names:
        if name.startswith("checkpoints/iter_000000001/"):
            for damaged in bent(run, name, offset=len(run.read(name)) // 2):
                assert start(damaged) is None, name


@pytest.mark.fuzz
@pytest.mark.parametrize("which", RUNS)
def test_every_byte_of_every_file_ends_in_one_typed_error_or_in_the_newest_checkpoint(which: str) -> None:
    run = RUNS[which]()
    for name in run.names:
        for offset in range(len(run.read(name))):
            for damaged in bent(run, name, offset=offset):
                error = start(damaged)
                assert error is None or isinstance(error, Corrupt), f"{name} at {offset}: {error}"


def test_a_bent_fold_cache_is_passed_over_in_silence() -> None:
    run = cached()
    for offset in range(0, len(run.read(CACHE)), 41):
        for damaged in bent(run, CACHE, offset=offset):
            assert start(damaged) is None


def test_a_bent_generation_of_the_newest_checkpoint_is_refused_and_any_other_small_file_is_not_needed() -> None:
    """What an older checkpoint or an artifact says of itself is for who looks at it; the journal knows better."""
    run = governed()
    assert start(run) is None
    for name in run.names:
        if ".posttrain-validation" in name or ".posttrain-released" in name or "checkpoint_artifacts" in name:
            newest = name.startswith("checkpoints/iter_000000006/")
            for offset in range(0, len(run.read(name)), 97):
                for damaged in bent(run, name, offset=offset):
                    assert isinstance(start(damaged), Corrupt) is newest, f"{name} at {offset}"


# --- whole files --------------------------------------------------------------------------------------------


def test_an_empty_file_in_the_place_of_any_file_is_typed() -> None:
    run = ended()
    for name in run.names:
        error = start(run.but({name: b""}))
        assert error is None or isinstance(error, Corrupt), name


def test_a_directory_in_the_place_of_a_file_is_typed_and_refused_where_the_file_is_needed() -> None:
    run = ended()
    for name in run.names:
        error = start(run.but({name: None}))
        assert error is not None or not (needed(name) or name == POINTER), name


def test_a_symlink_in_the_place_of_a_file_or_a_directory_is_never_followed() -> None:
    run = ended()
    places = (*run.names, "journal", "checkpoints", "checkpoints/iter_000000003", "checkpoints/.staging")
    for name in places:
        error = start(run.but({}, without=(name,)), links=(name,))
        if error is None:
            assert not needed(name), name
        else:
            assert "symlink" in str(error) or "symbolic" in str(error) or needed(name), f"{name}: {error}"


def test_names_that_nobody_recorded_are_passed_over() -> None:
    run = ended()
    foreign = {
        f"checkpoints/iter_000000009{rest}": data
        for rest, data in (("", None), ("/model.pt", run.read("checkpoints/iter_000000003/model.pt")))
    }
    assert start(run.but(foreign)) is None
    assert start(run.but({"checkpoints/notes.txt": b"mine", "journal/notes.txt": b"mine"})) is None


def needed(name: str) -> bool:
    """Whether a start that takes checkpoint 3 has to read it."""
    return name.startswith(("journal/", "checkpoints/iter_000000003"))


def test_any_file_may_be_missing_and_a_start_says_so_or_does_not_need_it() -> None:
    run = ended()
    for name in run.names:
        assert (start(run.but({}, without=(name,))) is not None) == needed(name), name


@pytest.mark.parametrize("file", ["model.pt", "trainer.pt", ".posttrain-manifest.json"])
def test_files_swapped_between_two_checkpoints_are_not_restored(file: str) -> None:
    run = ended()
    older, newer = (f"checkpoints/{name}/{file}" for name in ("iter_000000002", "iter_000000003"))
    assert run.read(older) != run.read(newer)
    assert isinstance(start(run.but({older: run.read(newer), newer: run.read(older)})), Corrupt)
