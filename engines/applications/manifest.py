"""The manifest of a checkpoint that an application wrote itself, `application-manifest.json`, and what it proves.

    {"artifacts":{"model.pt":{"sha256":"…","size":1234}},"compatibility":{…},"metadata":{…},"schema_version":1,"sum":"…"}

1. It is visible once every artifact is durable (INV-01), and what it says never changes (INV-02): `publishing.py`.
2. It ends with the sum of its own bytes, as every small file of the house does; equal content has equal bytes. The
   sha256 of these is the checkpoint's identity: whoever has the same one has the same artifacts, metadata and
   compatibility.
3. Whoever loads says what he expects, exactly: the set of artifacts, and each value of the compatibility. What is in
   the directory and in no manifest is not of the checkpoint.
4. No manifest is `NotACheckpoint`. One that is of something else than what was expected is `NotResumable`. Bytes that
   are not what they were are `Corrupt`, and a later schema is `NewerVersion`.

Source: the specification of application checkpoints, "Optional CheckpointManifest".
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Self, cast

from attrs import asdict, frozen

from milepost.engines import plainjson
from milepost.engines.ambient import SystemAmbient
from milepost.engines.applications import publishing
from milepost.engines.applications.files import MANIFEST, Artifact, fault_of, flat_names, measure, size_of
from milepost.engines.checkpoints.manifest import LIMIT_BYTES
from milepost.engines.checkpoints.proven import with_sum, without_sum
from milepost.engines.disks import Disk
from milepost.engines.disks.local import LocalDisk
from milepost.engines.plainjson import Json
from milepost.transitions.errors import Corrupt, NewerVersion, NotACheckpoint, NotResumable, Refused, Unavailable

SCHEMA_VERSION = 1

_CALLED = "an application's manifest"
_FIELDS = frozenset(("artifacts", "compatibility", "metadata", "schema_version", "sum"))
_HEX = re.compile(r"[0-9a-f]{64}")


@frozen(kw_only=True)
class CheckpointManifest:
    """What was published in a directory: `artifacts` by name, and the application's own `metadata`, values of JSON.

    `compatibility` is what has to be equal for the checkpoint to be of use, such as the data set and the topology.
    `identity` is `sha256:<hex>` of the manifest's bytes.
    """

    schema_version: int
    metadata: Mapping[str, Json]
    compatibility: Mapping[str, Json]
    artifacts: Mapping[str, Artifact]
    identity: str

    @classmethod
    def publish(
        cls,
        directory: str | os.PathLike[str],
        *,
        artifacts: Iterable[str],
        metadata: Mapping[str, object] | None = None,
        compatibility: Mapping[str, object] | None = None,
        disk: Disk | None = None,
        nonce: str | None = None,
    ) -> Self:
        """Hash and sync these files of `directory`, all that the checkpoint has, and publish the manifest of them.

        Every rank has to be done with its files; one process publishes. Files that are not named are left alone.

        Raises `Refused` where the directory was published before, where a name is not flat, where a file is missing,
        a symlink or no regular file, and where metadata or compatibility are no JSON: nothing was changed.
        `Unavailable` where the disk fails, and says whether nothing was published or the outcome is unknown. An
        unknown one is settled by calling this again with the same content, also after a crash: the temporary that
        an unsettled publish leaves beside the manifest tells the two apart. Without one the same content is refused
        like any other, and with other content the manifest that is there stays.

        `directory` is a path of this machine, or one on `disk` where that is given. `nonce` makes the temporary's
        name its own (random, where it is not given).
        """
        disk, path = _at(directory, disk)
        names = flat_names(artifacts)
        kept: dict[str, Json] = {
            "compatibility": _given(compatibility, "compatibility"),
            "metadata": _given(metadata, "metadata"),
            "schema_version": SCHEMA_VERSION,
        }
        data = publishing.publish(
            disk,
            path,
            names=names,
            encode=lambda measured: _encode(
                {**kept, "artifacts": {name: asdict(one) for name, one in measured.items()}}
            ),
            nonce=nonce or SystemAmbient().nonce(),
        )
        return cls._decode(data, where=disk.where(f"{path}/{MANIFEST}"))

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        *,
        artifacts: Iterable[str],
        compatibility: Mapping[str, object] | None = None,
        disk: Disk | None = None,
    ) -> Self:
        """The manifest of `directory`, once it is found to be of exactly these artifacts and this compatibility.

        Every artifact is read and hashed. No compatibility is the empty one. Nothing is written; where the publish
        was never settled the directory is synced first, so that what was loaded stays.

        Raises `NotACheckpoint` where there is no manifest; `NotResumable` where compatibility or the set of
        artifacts differ, naming each difference; `Corrupt` where the manifest or an artifact (its path, its size, its
        digest) is not what it was; `NewerVersion` for a later schema; `Refused` for arguments that are none;
        `Unavailable` where the disk fails.
        """
        disk, path = _at(directory, disk)
        names, expected = flat_names(artifacts), _given(compatibility, "compatibility")
        try:
            manifest = cls._decode(_read(disk, path), where=disk.where(f"{path}/{MANIFEST}"))
            where = disk.where(path)
            _require_compatible(manifest.compatibility, expected, where=where)
            _require_set(manifest.artifacts, names, where=where)
            _require_whole(disk, path, manifest.artifacts)
        except OSError as error:
            raise Unavailable(
                f"{disk.where(path)}: reading the checkpoint failed: {error}. Nothing was changed"
            ) from error
        return manifest

    @classmethod
    def _decode(cls, data: bytes, *, where: str) -> Self:
        try:
            document = plainjson.read(data)
        except ValueError as error:
            raise Corrupt(f"{where}: expected {_CALLED}, found no such JSON: {error}") from error
        if not isinstance(document, dict):
            raise Corrupt(f"{where}: expected {_CALLED}, found {document!r}")
        version = document.get("schema_version")
        if type(version) is int and version > SCHEMA_VERSION:
            raise NewerVersion(f"{where}: {_CALLED} of schema {version}; this milepost reads {SCHEMA_VERSION}")
        without_sum(data, where=where, called=_CALLED)
        if document.keys() != _FIELDS:
            missing, unknown = sorted(_FIELDS - document.keys()), sorted(document.keys() - _FIELDS)
            raise Corrupt(f"{where}: expected exactly its fields; missing {missing}, unknown {unknown}")
        if type(version) is not int or version != SCHEMA_VERSION:
            raise Corrupt(f"{where}: expected schema_version {SCHEMA_VERSION}, found {version!r}")
        return cls(
            schema_version=version,
            metadata=_mapping(document, "metadata", where=where),
            compatibility=_mapping(document, "compatibility", where=where),
            artifacts=_artifacts(_mapping(document, "artifacts", where=where), where=where),
            identity=f"sha256:{hashlib.sha256(data).hexdigest()}",
        )


def _at(directory: str | os.PathLike[str], disk: Disk | None) -> tuple[Disk, str]:
    """The disk and the path on it. A path of the machine is split, so that its last name is no symlink either."""
    path = os.fspath(directory)
    if disk is None:
        above, path = os.path.split(os.path.abspath(path))
        disk = LocalDisk(above)
    if not path:
        raise Refused(f"{os.fspath(directory)!r}: expected a directory of its own for the checkpoint, found a root")
    return disk, path


def _given(value: Mapping[str, object] | None, name: str) -> dict[str, Json]:
    """A copy of what the caller gave; `Refused` for what is no JSON."""
    if value is not None and not isinstance(value, Mapping):
        raise Refused(f"{name}: expected a mapping, found a {type(value).__name__}")
    try:
        copy = plainjson.copied({} if value is None else dict(value), where=name)
    except ValueError as error:
        raise Refused(f"{error}; expected values of JSON") from error
    return cast("dict[str, Json]", copy)


def _encode(document: Mapping[str, Json]) -> bytes:
    data = with_sum(plainjson.write(dict(document)))
    if len(data) > LIMIT_BYTES:
        raise Refused(
            f"a manifest of {len(data)} bytes, expected at most {LIMIT_BYTES}. Nothing was published; save large "
            "metadata as an artifact"
        )
    return data


def _read(disk: Disk, directory: str) -> bytes:
    """The bytes of the manifest; `NotACheckpoint` where there is none."""
    found = disk.stat(directory)
    if found is None or found.kind != "dir":
        what = "nothing" if found is None else f"a {found.kind}"
        raise NotACheckpoint(f"{disk.where(directory)} is not a checkpoint: expected a directory, found {what}")
    final = f"{directory}/{MANIFEST}"
    size = size_of(disk, final)
    if isinstance(size, str):
        if disk.stat(final) is None:
            raise NotACheckpoint(
                f"{disk.where(directory)} is not a checkpoint: it has no {MANIFEST}, so nothing in it was published"
            )
        raise Corrupt(f"{disk.where(final)}: expected {_CALLED}, found {size}")
    if size > LIMIT_BYTES:
        raise Corrupt(f"{disk.where(final)}: expected at most {LIMIT_BYTES} bytes, found {size}")
    if publishing.temporaries(disk, directory):
        disk.sync_dir(directory)
    return disk.read(final, limit=LIMIT_BYTES)


def _mapping(document: Mapping[str, Json], name: str, *, where: str) -> dict[str, Json]:
    value = document[name]
    if not isinstance(value, dict):
        raise Corrupt(f"{where}: expected a mapping as {name}, found {value!r}")
    try:
        plainjson.copied(value, where=name)
    except ValueError as error:
        raise Corrupt(f"{where}: {error}") from error
    return value


def _artifacts(found: Mapping[str, Json], *, where: str) -> dict[str, Artifact]:
    read: dict[str, Artifact] = {}
    for name, value in found.items():
        if wrong := fault_of(name):
            raise Corrupt(f"{where}: expected flat file names, found {name!r}: {wrong}")
        if not isinstance(value, dict) or value.keys() != {"sha256", "size"}:
            raise Corrupt(f"{where}: expected sha256 and size of {name}, found {value!r}")
        size, digest = value["size"], value["sha256"]
        if type(size) is not int or size < 0:
            raise Corrupt(f"{where}: expected the size of {name} in bytes, found {size!r}")
        if not isinstance(digest, str) or not _HEX.fullmatch(digest):
            raise Corrupt(f"{where}: expected the sha256 of {name} in 64 hex digits, found {digest!r}")
        read[name] = Artifact(size=size, sha256=digest)
    if not read:
        raise Corrupt(f"{where}: expected artifacts, found none")
    return read


def _require_compatible(found: Mapping[str, Json], expected: Mapping[str, Json], *, where: str) -> None:
    differing = [
        f"{name}: expected {_told(expected, name)}, found {_told(found, name)}"
        for name in sorted(found.keys() | expected.keys())
        if name not in found or name not in expected or not plainjson.same(found[name], expected[name])
    ]
    if differing:
        raise NotResumable(
            f"{where}: this checkpoint is not compatible with what was asked for: {'; '.join(differing)}. Nothing "
            "was restored; choose a checkpoint of this configuration"
        )


def _told(values: Mapping[str, Json], name: str) -> str:
    return plainjson.write(values[name]).decode() if name in values else "nothing"


def _require_set(found: Mapping[str, Artifact], expected: Iterable[str], *, where: str) -> None:
    missing, unexpected = sorted(set(expected) - found.keys()), sorted(found.keys() - set(expected))
    if missing or unexpected:
        raise NotResumable(
            f"{where}: this checkpoint has other artifacts than were asked for: missing {missing}, unexpected "
            f"{unexpected}. Nothing was restored; ask for exactly what was published"
        )


def _require_whole(disk: Disk, directory: str, artifacts: Mapping[str, Artifact]) -> None:
    wrong = [
        f"{name}: {fault}"
        for name, artifact in sorted(artifacts.items())
        if (fault := _fault(disk, f"{directory}/{name}", artifact))
    ]
    if wrong:
        raise Corrupt(
            f"{disk.where(directory)}: the artifacts are not what was published: {'; '.join(wrong)}. Nothing was "
            "restored; use another checkpoint"
        )


def _fault(disk: Disk, path: str, artifact: Artifact) -> str:
    """What is wrong with the file at `path`, or nothing; one of another size is not hashed."""
    size = size_of(disk, path)
    if isinstance(size, str):
        return f"expected a regular file, found {size}"
    if size != artifact.size:
        return f"expected {artifact.size} bytes, found {size}"
    found = measure(disk, path)
    if isinstance(found, str):
        return f"expected a regular file, found {found}"
    return "" if found == artifact else f"expected sha256 {artifact.sha256}, found {found.sha256}"
