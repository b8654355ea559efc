"""The manifest's bytes: what is written reads back, and nothing else does."""

from __future__ import annotations

import pytest
from attrs import evolve
from blake3 import blake3

from milepost.engines.checkpoints.manifest import (
    ARTIFACT,
    MANIFEST,
    Manifest,
    decode,
    digest_of,
    encode,
    manifest_name,
)
from milepost.transitions.errors import Corrupt, NewerVersion
from milepost.transitions.values import FULL, Component, FileDigest, Plan, SaveId, StoredComponent, Witness


def manifest(path: str = "model.pt") -> Manifest:
    file = FileDigest(path=path, size=3, digest="blake3:00")
    return Manifest(
        save=SaveId(100, 2, 1),
        run_ts="20260102030405",
        plan=FULL,
        checkpoint_format="consolidated",
        world_size=1,
        components=(StoredComponent(component=Component.MODEL, files=(file,)),),
        witness=Witness(seq=9, sum="ab"),
        milepost="0.1.0",
    )


def signed(body: bytes) -> bytes:
    return body + b',"sum":"blake3:' + blake3(body).hexdigest().encode() + b'"}\n'


def test_a_manifest_is_one_line_that_reads_back() -> None:
    data = encode(manifest())
    assert data.startswith(b'{"format":"milepost.manifest.v1","save":') and data.count(b"\n") == 1
    assert decode(data, where="here") == manifest()
    assert digest_of(data) == FileDigest(path=MANIFEST, size=len(data), digest=f"blake3:{blake3(data).hexdigest()}")


def test_every_flipped_byte_and_every_shorter_length_is_corrupt() -> None:
    data = encode(manifest())
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        with pytest.raises(Corrupt, match="here"):
            decode(bytes(flipped), where="here")
        with pytest.raises(Corrupt, match="here"):
            decode(data[:at], where="here")


def test_a_later_format_is_newer_and_another_one_corrupt() -> None:
    body = encode(manifest()).rpartition(b',"sum"')[0]
    with pytest.raises(NewerVersion, match=r"milepost\.manifest\.v2"):
        decode(signed(body.replace(b"manifest.v1", b"manifest.v2")), where="here")
    with pytest.raises(Corrupt, match="expected the format"):
        decode(signed(body.replace(b"milepost.manifest.v1", b"somebody.else.v1")), where="here")


@pytest.mark.parametrize("path", ["", "../model.pt", "/etc/passwd", "a//b", "./model.pt", "a\0b"])
def test_a_path_that_leads_out_of_the_checkpoint_is_corrupt(path: str) -> None:
    with pytest.raises(Corrupt, match="inside the checkpoint"):
        decode(encode(manifest(path)), where="here")


def test_a_field_too_many_or_of_another_type_is_corrupt() -> None:
    body = encode(manifest()).rpartition(b',"sum"')[0]
    for bad in (body + b',"more":1', body.replace(b'"world_size":1', b'"world_size":true')):
        with pytest.raises(Corrupt, match="here"):
            decode(signed(bad), where="here")


# --- two kinds ------------------------------------------------------------------------------------------------


def artifact(plan: Plan = (Component.MODEL,)) -> Manifest:
    return evolve(manifest(), plan=plan)


def test_an_artifact_has_a_manifest_of_its_own_format_and_name() -> None:
    data = encode(artifact())
    assert data.startswith(b'{"format":"milepost.artifact.v1","save":') and data.count(b"\n") == 1
    assert decode(data, where="here") == artifact()
    assert (manifest_name(FULL), manifest_name((Component.MODEL,))) == (MANIFEST, ARTIFACT)
    assert digest_of(data, name=ARTIFACT).path == ARTIFACT


def test_every_flipped_byte_of_an_artifacts_manifest_is_corrupt() -> None:
    data = encode(artifact())
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        for bad in (bytes(flipped), data[:at]):
            with pytest.raises(Corrupt, match="here"):
                decode(bad, where="here")


def test_a_later_format_of_an_artifact_is_newer() -> None:
    body = encode(artifact()).rpartition(b',"sum"')[0]
    with pytest.raises(NewerVersion, match=r"milepost\.artifact\.v2"):
        decode(signed(body.replace(b"artifact.v1", b"artifact.v2")), where="here")


@pytest.mark.parametrize(
    ("kind", "plan"),
    [
        ("manifest", '"model"'),
        ("manifest", ""),
        ("artifact", '"model","optimizer","training_state"'),
        ("artifact", ""),
        ("artifact", '"optimizer","model"'),
        ("artifact", '"model","model"'),
    ],
)
def test_a_manifest_of_the_wrong_plan_for_its_kind_is_corrupt(kind: str, plan: str) -> None:
    body = encode(artifact()).rpartition(b',"sum"')[0]
    bad = body.replace(b"milepost.artifact", f"milepost.{kind}".encode())
    bad = bad.replace(b'"plan":["model"]', f'"plan":[{plan}]'.encode())
    assert bad != body
    with pytest.raises(Corrupt, match="to plan"):
        decode(signed(bad), where="here")
