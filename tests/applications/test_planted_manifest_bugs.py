"""Every rule of an application's manifest has a check that notices when it is broken: one planted mistake each.

By hand, and by machine: each durability call dropped or done one statement late (`tests/crash/planting.py`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from milepost.engines.applications import MANIFEST as NAME
from milepost.engines.applications import CheckpointManifest
from milepost.engines.simulated import SimulatedDisk
from milepost.transitions.errors import MilepostError
from tests.applications import crashing
from tests.applications import test_loading_manifests as loading
from tests.applications import test_publishing_manifests as publishing
from tests.applications.conftest import Bench
from tests.applications.crashing import NAMES
from tests.crash.bugs import Bug, require_caught, require_sound
from tests.crash.planting import mutants, planted

PUBLISHING = "engines.applications.publishing"
MANIFEST = "engines.applications.manifest"
FILES = "engines.applications.files"


def bench() -> Bench:
    disk = SimulatedDisk()
    crashing.saved(disk)
    return Bench(disk=disk, plant_symlink=disk.plant_symlink)


def in_a_directory(check: Callable[[Path], None]) -> Callable[[], None]:
    """A check of a published checkpoint, as one without arguments."""

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name in NAMES:
                Path(folder, name).write_bytes(name.encode())
            compatibility = loading.COMPATIBILITY
            CheckpointManifest.publish(folder, artifacts=NAMES, metadata={"epoch": 3}, compatibility=compatibility)
            check(Path(folder))

    return run


def refused(**given: object) -> Callable[[], None]:
    """Loading with these other arguments fails."""

    def check(directory: Path) -> None:
        with pytest.raises(MilepostError):
            loading.reload(directory, **given)

    return in_a_directory(check)


def damaged(damage: Callable[[Path], None]) -> Callable[[], None]:
    """Loading after this was done to an artifact fails."""

    def check(directory: Path) -> None:
        damage(directory / NAMES[0])
        with pytest.raises(MilepostError):
            loading.reload(directory)

    return in_a_directory(check)


def edited(**change: object) -> Callable[[], None]:
    """Loading with this in the manifest, under a right sum, fails."""

    def check(directory: Path) -> None:
        loading.edit(directory, lambda document: document.update(change))
        with pytest.raises(MilepostError):
            loading.reload(directory)

    return in_a_directory(check)


def a_flipped_bit_of_the_metadata_is_corrupt(directory: Path) -> None:
    path = directory / NAME
    path.write_bytes(path.read_bytes().replace(b'"epoch":3', b'"epoch":2'))
    with pytest.raises(MilepostError):
        loading.reload(directory)


def a_missing_file_is_refused() -> None:
    publishing.test_an_artifact_that_is_no_regular_file_is_refused(bench(), "missing", "no such file")


def a_swapped_file_is_refused() -> None:
    publishing.test_a_file_that_is_swapped_while_it_is_hashed_is_refused("sync_file")


def a_second_publish_is_refused() -> None:
    publishing.test_a_second_publish_is_refused_and_changes_nothing(bench())


def a_leftover_of_other_content_settles_nothing() -> None:
    publishing.test_beside_a_leftover_of_other_content_nothing_is_published_again(bench())


def a_wrong_name_is_refused() -> None:
    publishing.test_a_name_that_is_not_flat_is_refused(bench(), ["a/b"], "another directory")


def a_name_given_twice_is_refused() -> None:
    publishing.test_a_name_that_is_not_flat_is_refused(bench(), [*NAMES, NAMES[0]], "more than once")


def a_symlinked_directory_is_refused() -> None:
    publishing.test_a_directory_that_is_none_is_refused(bench(), "symlink")


def bug(name: str, where: str, old: str, new: str, by: Callable[[], None]) -> Bug:
    return Bug(name, where, ((old, new),), by)


FOLLOWED = "import pathlib, hashlib; data = pathlib.Path(disk.where(path)).read_bytes()"
HASHED = "size=len(data), sha256=hashlib.sha256(data).hexdigest()"

BUGS = (
    bug(
        "an artifact is not synced",
        f"{PUBLISHING}:_secured",
        "disk.sync_file(path)",
        "pass",
        crashing.crash_everywhere,
    ),
    bug(
        "the names of the artifacts are not synced",
        f"{PUBLISHING}:publish",
        'disk.sync_dir(directory)\ndisk.sync_dir(directory.rpartition("/")[0])',
        'disk.sync_dir(directory.rpartition("/")[0])',
        crashing.crash_everywhere,
    ),
    bug(
        "the name of the directory is not synced",
        f"{PUBLISHING}:publish",
        'disk.sync_dir(directory.rpartition("/")[0])',
        "pass",
        crashing.crash_everywhere,
    ),
    bug(
        "the manifest is linked before it is synced",
        f"{PUBLISHING}:_write",
        "sink.sync()",
        "pass",
        crashing.crash_everywhere,
    ),
    bug(
        "the directory is not synced behind the link",
        f"{PUBLISHING}:publish",
        "_give_name(disk, directory, temporary, data)\ndisk.sync_dir(directory)",
        "_give_name(disk, directory, temporary, data)",
        crashing.crash_everywhere,
    ),
    bug(
        "the manifest is renamed to its name",
        f"{PUBLISHING}:_give_name",
        "disk.link(temporary, final)",
        "disk.rename(temporary, final)",
        crashing.race_everywhere,
    ),
    bug(
        "an unsettled manifest is only synced again",
        f"{PUBLISHING}:_give_name",
        "disk.rename(temporary, final)",
        "pass",
        crashing.fail_everywhere,
    ),
    bug(
        "the temporaries go before the sync",
        f"{PUBLISHING}:publish",
        "_give_name(disk, directory, temporary, data)\ndisk.sync_dir(directory)",
        "_give_name(disk, directory, temporary, data)\n_sweep(disk, directory)\ndisk.sync_dir(directory)",
        crashing.fail_everywhere,
    ),
    bug(
        "the temporary stays", f"{PUBLISHING}:publish", "_sweep(disk, directory)", "pass", a_second_publish_is_refused
    ),
    bug(
        "a failing sweep fails the publish",
        f"{PUBLISHING}:_sweep",
        "with suppress(OSError):",
        "if True:",
        crashing.fail_everywhere,
    ),
    bug(
        "the temporary of a failed write stays",
        f"{PUBLISHING}:_write",
        "with suppress(OSError):\ndisk.unlink(path)",
        "pass",
        crashing.fail_everywhere,
    ),
    bug(
        "any content settles",
        f"{PUBLISHING}:_is_unsettled",
        'if disk.read(f"{directory}/{MANIFEST}", limit=LIMIT_BYTES) != data:',
        "if False:",
        a_leftover_of_other_content_settles_nothing,
    ),
    bug(
        "any leftover means unsettled",
        f"{PUBLISHING}:_is_unsettled",
        "other != temporary and disk.read(other, limit=LIMIT_BYTES) == data",
        "other != temporary",
        a_leftover_of_other_content_settles_nothing,
    ),
    bug(
        "its own temporary means unsettled",
        f"{PUBLISHING}:_is_unsettled",
        "other != temporary and disk.read",
        "disk.read",
        a_leftover_of_other_content_settles_nothing,
    ),
    bug(
        "a lost answer of link is a second publish",
        f"{PUBLISHING}:_give_name",
        "if _is_one_file(disk, temporary, final):",
        "if False:",
        publishing.test_an_answer_of_link_that_was_lost_is_no_second_publish,
    ),
    bug(
        "a failing link was not applied",
        f"{PUBLISHING}:_give_name",
        "if error.errno not in _NO_LINKS:",
        "if False:",
        crashing.fail_everywhere,
    ),
    bug(
        "a temporary that another one swept is an unknown outcome",
        f"{PUBLISHING}:_swept",
        "if disk.stat(final) is None:",
        "if True:",
        crashing.race_everywhere,
    ),
    bug(
        "a file that changes meanwhile is published",
        f"{PUBLISHING}:_secured",
        "if before != disk.stat(path):",
        "if False:",
        a_swapped_file_is_refused,
    ),
    bug(
        "a symlink to the directory is followed",
        f"{PUBLISHING}:_require_directory",
        'if found is None or found.kind != "dir":',
        "if found is None:",
        a_symlinked_directory_is_refused,
    ),
    bug(
        "a missing artifact is left out",
        f"{PUBLISHING}:publish",
        '{name: _secured(disk, f"{directory}/{name}") for name in names}',
        '{name: _secured(disk, f"{directory}/{name}") for name in names if disk.stat(f"{directory}/{name}")}',
        a_missing_file_is_refused,
    ),
    bug("a name may have a separator", f"{FILES}:fault_of", "if above:", "if False:", a_wrong_name_is_refused),
    bug(
        "a name may be there twice",
        f"{FILES}:flat_names",
        "if times > 1",
        "if times > 2",
        a_name_given_twice_is_refused,
    ),
    Bug(
        "a symlink is followed",
        f"{FILES}:size_of",
        (
            ("return source.size", "pass"),
            ("with disk.open(path) as source:", FOLLOWED + "\nreturn len(data)\nif True:"),
        ),
        damaged(loading._link),
        beside=Bug(
            "and hashed",
            f"{FILES}:measure",
            (
                ("with disk.open(path, bulk=True) as source:", FOLLOWED + "\nif True:"),
                ('size=source.size, sha256=digest_of(source, algorithm="sha256").removeprefix("sha256:")', HASHED),
            ),
        ),
    ),
    bug(
        "the set is compared as a subset",
        f"{MANIFEST}:_require_set",
        "if missing or unexpected:",
        "if missing:",
        refused(artifacts=NAMES[:1]),
    ),
    bug(
        "an artifact more than was published may be asked for",
        f"{MANIFEST}:_require_set",
        "if missing or unexpected:",
        "if unexpected:",
        refused(artifacts=(*NAMES, "optim.pt")),
    ),
    bug(
        "the compatibility is compared as a subset",
        f"{MANIFEST}:_require_compatible",
        "for name in sorted(found.keys() | expected.keys())",
        "for name in sorted(expected.keys())",
        refused(compatibility={"ranks": 2}),
    ),
    bug(
        "no compatibility is any",
        f"{MANIFEST}:_require_compatible",
        "if differing:",
        "if differing and expected:",
        refused(compatibility=None),
    ),
    bug(
        "2 and 2.0 are compatible",
        f"{MANIFEST}:_require_compatible",
        "not plainjson.same(found[name], expected[name])",
        "found[name] != expected[name]",
        refused(compatibility={**loading.COMPATIBILITY, "ranks": 2.0}),
    ),
    bug(
        "the digest is not compared",
        f"{MANIFEST}:_fault",
        'return "" if found == artifact else',
        'return "" if True else',
        damaged(loading._other),
    ),
    bug(
        "the artifacts are not looked at",
        f"{MANIFEST}:_require_whole",
        "if wrong:",
        "if False:",
        damaged(Path.unlink),
    ),
    bug(
        "the sum is not compared",
        f"{MANIFEST}:CheckpointManifest._decode",
        "without_sum(data, where=where, called=_CALLED)",
        "pass",
        in_a_directory(a_flipped_bit_of_the_metadata_is_corrupt),
    ),
    bug(
        "an unknown field is ignored",
        f"{MANIFEST}:CheckpointManifest._decode",
        "if document.keys() != _FIELDS:",
        "if not document.keys() >= _FIELDS:",
        edited(more=1),
    ),
    bug(
        "true is a version",
        f"{MANIFEST}:CheckpointManifest._decode",
        "if type(version) is not int or version != SCHEMA_VERSION:",
        "if version != SCHEMA_VERSION:",
        edited(schema_version=True),
    ),
    bug(
        "a later schema is read",
        f"{MANIFEST}:CheckpointManifest._decode",
        "if type(version) is int and version > SCHEMA_VERSION:",
        "if False:",
        in_a_directory(loading.test_a_later_schema_is_told_as_such_whatever_else_it_holds),
    ),
    bug(
        "what was never settled is believed",
        f"{MANIFEST}:_read",
        "disk.sync_dir(directory)",
        "pass",
        crashing.crash_everywhere,
    ),
    bug(
        "a name that is there twice is taken once",
        "engines.plainjson:_object",
        "if len(made) < len(pairs):",
        "if False:",
        in_a_directory(loading.test_a_name_that_is_there_twice_is_corrupt_even_under_a_right_sum),
    ),
)


MUTANTS = {str(mutant): mutant for mutant in mutants((PUBLISHING, MANIFEST))}

EQUIVALENT = {
    f"{PUBLISHING}:publish:sync_dir:1 late": "both are synced before the manifest is written, in either order",
    f"{PUBLISHING}:_secured:sync_file:1 late": (
        "a file that changes behind the last look at it is one that changes behind the publish, which nobody can keep"
    ),
}
"""Mutants that no check can tell from the product, each with its proof."""


def of_a_crash_a_failure_or_a_race() -> None:
    crashing.crash_everywhere()
    crashing.fail_everywhere()
    crashing.race_everywhere()
    publishing.test_a_file_system_without_links_is_told_of_and_nothing_is_left()


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_of_an_applications_manifest_is_caught(bug: Bug) -> None:
    require_caught(bug)


@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in EQUIVALENT])
def test_a_durability_call_of_a_manifest_is_missed(name: str) -> None:
    with planted(MUTANTS[name]), pytest.raises((Exception, pytest.fail.Exception)):
        of_a_crash_a_failure_or_a_race()


@pytest.mark.parametrize("name", EQUIVALENT)
def test_an_equivalent_mutant_of_a_manifest_is_equivalent(name: str) -> None:
    with planted(MUTANTS[name]):
        of_a_crash_a_failure_or_a_race()


def test_without_a_bug_every_check_of_a_manifest_passes() -> None:
    of_a_crash_a_failure_or_a_race()
    require_sound(BUGS)
