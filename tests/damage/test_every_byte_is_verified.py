"""`verify` against a flip of every byte and a cut at every length of every file of a run.

Bytes that do not matter, and why; every other byte is in some finding:

    a torn tail                  it is a finding as it is, and whatever it holds it is no entry
    behind a valid length        evidence of a killed writer: never read (INV-10); only their number is looked at
    the fold cache               disposable: read by starts only, and only where it fits the log
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from milepost.journal.forensics.findings import Effect
from tests.damage.images import POINTER, TORN, Small, ended, governed, killed, look, news

RUNS = {"ended": ended, "killed": killed, "governed": governed}

pytestmark = pytest.mark.slow


def flipped(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes((data[offset] ^ (1 << offset % 8),)) + data[offset + 1 :]


def meaning(run: Small, name: str) -> int:
    """How many bytes of a segment are entries: the rest is torn, or left behind a valid length."""
    return len(run.read(name).removesuffix(TORN))


@pytest.mark.parametrize("which", RUNS)
def test_an_image_as_it_was_left_holds_no_damage(which: str) -> None:
    found = look(RUNS[which]())
    assert [one.code for one in found.findings] == {
        "ended": [],
        "killed": ["torn-tail", "not-ended", "save-open"],
        "governed": [],
    }[which]


@pytest.mark.parametrize("which", RUNS)
def test_every_flipped_byte_of_a_segment_is_found_in_its_line(which: str) -> None:
    run = RUNS[which]()
    known = look(run, quick=True)
    for name in run.segments:
        data = run.read(name)
        for offset in range(0, meaning(run, name), _STRIDE[which]):
            fresh = news(look(run.but({name: flipped(data, offset)}), quick=True), known)
            line = data.rfind(b"\n", 0, offset) + 1
            at = [one for one in fresh if (one.place, one.offset) == (f"/{run.at(name)}", line)]
            assert at, f"byte {offset} of {name}: {fresh}"
            assert at[0].effect in (Effect.JOURNAL, Effect.TORN)


_STRIDE = {"ended": 1, "killed": 11, "governed": 11}
"""The killed run is looked at for what its torn ends change; its lines are as those of the ended one. So are those of
the governed one, which is looked at for its records.
"""


@pytest.mark.parametrize("which", RUNS)
def test_every_cut_of_a_segment_is_found(which: str) -> None:
    run = RUNS[which]()
    known = look(run, quick=True)
    for name in run.segments:
        data = run.read(name)
        for length in range(0, len(data), _STRIDE[which]):
            found = look(run.but({name: data[:length]}), quick=True)
            assert news(found, known) or _gone(known.findings, found.findings), f"{name} cut to {length} bytes"


def _gone(before: tuple[object, ...], after: tuple[object, ...]) -> bool:
    """The cut took a torn tail away and nothing else: what is left is a whole log."""
    return len(after) < len(before)


def test_every_flipped_byte_of_the_payload_is_found_in_its_file() -> None:
    """One byte of every file at once: findings do not hide each other."""
    run = ended()
    names = [name for name in run.names if name.startswith("checkpoints/iter_") and name.endswith(".pt")]
    for offset in range(max(len(run.read(name)) for name in names)):
        bent = {name: flipped(run.read(name), offset) for name in names if offset < len(run.read(name))}
        found = look(run.but(bent))
        assert [(one.code, one.place) for one in found.findings] == [
            ("file-digest", f"/{run.at(name)}") for name in sorted(bent)
        ]


def test_every_cut_of_the_payload_is_found_in_its_file_at_a_quick_look() -> None:
    run = ended()
    names = [name for name in run.names if name.startswith("checkpoints/iter_") and name.endswith(".pt")]
    for length in range(max(len(run.read(name)) for name in names)):
        bent = {name: run.read(name)[:length] for name in names if length < len(run.read(name))}
        found = look(run.but(bent), quick=True)
        assert sorted((one.code, one.place, one.offset or 0) for one in found.findings) == [
            ("file-size", f"/{run.at(name)}", length) for name in sorted(bent)
        ]


def test_every_flip_and_cut_of_a_manifest_is_found_in_it() -> None:
    run = ended()
    names = [name for name in run.names if name.endswith(".posttrain-manifest.json")]
    for bent in _bent_manifests(run, names):
        found = look(run.but(bent), quick=True)
        places = {one.place for one in found.findings if one.code == "manifest-differs"}
        assert places == {f"/{run.at(name)}" for name in bent}
        unreadable = {one.place for one in found.findings if one.code == "manifest-unreadable"}
        assert unreadable == places, "its own sum says it as well, for whoever has no journal"
        assert found.exit_code == 5


def _bent_manifests(run: Small, names: list[str]) -> Iterator[dict[str, bytes]]:
    for offset in range(max(len(run.read(name)) for name in names)):
        short = [name for name in names if offset < len(run.read(name))]
        yield {name: flipped(run.read(name), offset) for name in short}
        yield {name: run.read(name)[:offset] for name in short}


def test_every_flip_and_cut_of_the_pointer_is_found() -> None:
    run = ended()
    data = run.read(POINTER)
    for offset in range(len(data)):
        for bent in (flipped(data, offset), data[:offset]):
            (one,) = look(run.but({POINTER: bent}), quick=True).findings
            assert one.place == f"/{run.at(POINTER)}"
            assert one.code in ("pointer-malformed", "pointer-dangling", "pointer-behind")


# --- the small files that policies make ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "code"),
    [
        (".posttrain-validation.", "generation-unreadable"),
        (".posttrain-released.", "release-unreadable"),
        (".posttrain-checkpoint-artifact.", "manifest-differs"),
    ],
)
def test_every_flip_and_cut_of_a_small_file_is_found_in_it(part: str, code: str) -> None:
    run = governed()
    names = [name for name in run.names if part in name]
    assert len(names) == {"generation-unreadable": 9, "release-unreadable": 1, "manifest-differs": 3}[code]
    for bent in _bent_manifests(run, names):
        found = look(run.but(bent), quick=True)
        assert {one.place for one in found.findings if one.code == code} == {f"/{run.at(name)}" for name in bent}
        assert found.exit_code == 5


@pytest.mark.parametrize("part", [".posttrain-validation.", ".posttrain-released."])
def test_every_flip_and_cut_of_a_small_file_is_found_without_a_journal(part: str) -> None:
    run = governed()
    segment = run.segments[0]
    run = run.but({segment: flipped(run.read(segment), 30)})
    known = look(run, quick=True)
    names = [name for name in run.names if part in name]
    for bent in _bent_manifests(run, names):
        places = {one.place for one in news(look(run.but(bent), quick=True), known)}
        assert places >= {f"/{run.at(name)}" for name in bent}


def test_every_flip_and_cut_of_an_artifact_is_found_in_its_file() -> None:
    run = governed()
    names = [name for name in run.names if name.startswith("checkpoint_artifacts/") and name.endswith(".pt")]
    assert len(names) == 3
    for offset in range(0, min(len(run.read(name)) for name in names), 11):  # checkpoints are looked at byte by byte
        found = look(run.but({name: flipped(run.read(name), offset) for name in names}))
        assert [(one.code, one.place) for one in found.findings] == [
            ("file-digest", f"/{run.at(name)}") for name in names
        ]
        found = look(run.but({name: run.read(name)[:offset] for name in names}), quick=True)
        assert [(one.code, one.place) for one in found.findings] == [
            ("file-size", f"/{run.at(name)}") for name in names
        ]
