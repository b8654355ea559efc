"""Generations and release markers: their bytes read back, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from blake3 import blake3

from milepost.engines.checkpoints import generations, released
from milepost.transitions.errors import Corrupt, NewerVersion
from milepost.transitions.validation import Generation
from milepost.transitions.values import SaveId
from tests.checkpoints.places import FULL_TREE, SAVE, Place, read, sealed, write

Decode = Callable[[bytes], object]

PATH = f"{FULL_TREE}/{SAVE.directory}"
MARKER = released.encode(SAVE, ("optim.pt",))
FILES: list[tuple[bytes, Decode]] = [
    (generations.encode(SAVE, Generation.PUBLISHED), lambda data: generations.decode(data, where="here")),
    (MARKER, lambda data: released.decode(data, where="here")),
]


def signed(body: bytes) -> bytes:
    return body + b',"sum":"blake3:' + blake3(body).hexdigest().encode() + b'"}\n'


def test_the_names_are_in_the_order_of_the_generations() -> None:
    assert [generations.name_of(generation) for generation in Generation] == list(generations.names)
    assert generations.names[0] == ".posttrain-validation.0.json"


def test_what_is_written_reads_back() -> None:
    for generation in Generation:
        data = generations.encode(SAVE, generation)
        assert data.startswith(b'{"format":"milepost.validation.v1",') and data.count(b"\n") == 1
        said = generations.decode(data, where="here")
        assert (said.save, said.generation) == (SAVE, generation)
    assert MARKER.startswith(b'{"format":"milepost.released.v1",') and MARKER.count(b"\n") == 1
    release = released.decode(MARKER, where="here")
    assert (release.save, release.files) == (SAVE, ("optim.pt",))


@pytest.mark.parametrize(("data", "decode"), FILES)
def test_every_flipped_byte_and_every_shorter_length_is_corrupt(data: bytes, decode: Decode) -> None:
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        for bad in (bytes(flipped), data[:at]):
            with pytest.raises(Corrupt, match="here"):
                decode(bad)


@pytest.mark.parametrize(("data", "decode"), FILES)
def test_a_later_format_is_newer_and_another_one_corrupt(data: bytes, decode: Decode) -> None:
    body = data.rpartition(b',"sum"')[0]
    with pytest.raises(NewerVersion, match=r"\.v2"):
        decode(signed(body.replace(b".v1", b".v2")))
    for bad in (body.replace(b'"milepost.', b'"another.'), body.replace(b'"step":7', b'"step":"7"')):
        with pytest.raises(Corrupt, match="here") as refusal:
            decode(signed(bad))
        assert not isinstance(refusal.value, NewerVersion)


@pytest.mark.parametrize("path", ["", "../optim.pt", "/etc/passwd", "a//b"])
def test_a_marker_that_leads_out_of_its_checkpoint_is_corrupt(path: str) -> None:
    with pytest.raises(Corrupt, match="inside the checkpoint"):
        released.decode(released.encode(SAVE, (path,)), where="here")


# --- in a directory -------------------------------------------------------------------------------------------


def test_a_checkpoint_without_them_never_had_a_validation_and_lacks_nothing(place: Place) -> None:
    sealed(place)
    assert generations.read(place.disk, PATH) is None
    assert released.read(place.disk, PATH) == ()


def test_the_newest_generation_counts(place: Place) -> None:
    sealed(place, pending=True)
    for generation in Generation:
        place.checkpoints.mark(SAVE, generation)
        assert generations.read(place.disk, PATH) is generation


@pytest.mark.parametrize("missing", [0, 1])
def test_a_generation_without_an_earlier_one_is_corrupt(place: Place, missing: int) -> None:
    known = sealed(place, pending=True)
    for generation in Generation:
        place.checkpoints.mark(SAVE, generation)
    place.disk.unlink(f"{PATH}/{generations.names[missing]}")
    with pytest.raises(Corrupt, match="found nothing beside"):
        generations.read(place.disk, PATH)
    assert "found nothing beside" in place.checkpoints.examine(known, lost=None)


def test_a_generation_under_another_ones_name_is_corrupt(place: Place) -> None:
    sealed(place, pending=True)
    write(place.disk, f"{PATH}/{generations.names[1]}", generations.encode(SAVE, Generation.PUBLISHED))
    with pytest.raises(Corrupt, match="expected publication-pending"):
        generations.read(place.disk, PATH)


def test_generations_of_two_saves_are_corrupt(place: Place) -> None:
    sealed(place, pending=True)
    other = generations.encode(SaveId(7, 1, 2), Generation.PUBLICATION_PENDING)
    write(place.disk, f"{PATH}/{generations.names[1]}", other)
    with pytest.raises(Corrupt, match=r"of save 7\.1\.1, found"):
        generations.read(place.disk, PATH)


@pytest.mark.parametrize("name", [generations.names[0], released.RELEASED])
def test_what_another_save_says_is_a_problem_of_the_checkpoint(place: Place, name: str) -> None:
    known, other = sealed(place), SaveId(7, 1, 2)
    data = generations.encode(other, Generation.EVALUATION_PENDING)
    write(place.disk, f"{PATH}/{name}", released.encode(other, ()) if name == released.RELEASED else data)
    assert "is of save 7.1.2" in place.checkpoints.examine(known, lost=None)


@pytest.mark.parametrize("name", [generations.names[0], released.RELEASED])
def test_every_damaged_byte_of_them_is_a_problem_of_the_checkpoint(place: Place, name: str) -> None:
    known, path = sealed(place, pending=True), f"{PATH}/{name}"
    data = MARKER if name == released.RELEASED else read(place.disk, path)
    for at in range(0, len(data), 7):
        flipped = bytearray(data)
        flipped[at] ^= 1
        for bad in (bytes(flipped), data[:at]):
            write(place.disk, path, bad)
            (seen,) = place.checkpoints.published()
            assert seen.found is not None and name in seen.problem
            assert name in place.checkpoints.examine(known, lost=None)
    assert [name for name, _ in place.checkpoints.witnesses()] == [SAVE.directory]  # the manifest is sound
