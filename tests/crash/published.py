"""How a published directory has to look, on any image: whole, but for what its release marker says is gone.

1. Whatever is visible under `iter_*` has its manifest, in either tree, and every file that it lists has its digest.
2. Nothing lies beside them but generations of a validation, a release marker and the marker of several roles, of
   this very save, and only where there is a checkpoint: an artifact has none of them.
3. Where roles are, every one of them has files of every component, and the marker names them all (INV-15). What is
   spread over ranks lies in a directory, and what its `.metadata` needs to be read is listed with it.
4. Read from the bytes of the image, with no verb of a disk: what is tested here does not judge itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from attrs import frozen
from blake3 import blake3

from milepost.engines.checkpoints import generations, marker, released
from milepost.engines.checkpoints.manifest import ARTIFACT, MANIFEST, Manifest, decode, digest_of
from milepost.transitions.errors import MilepostError
from milepost.transitions.validation import Generation
from milepost.transitions.values import Component, parse_iteration

CHECKPOINTS, ARTIFACTS = MANIFEST, ARTIFACT

Files = Mapping[str, object]


class Violation(AssertionError):
    """A promise was broken or an invariant does not hold; the message begins with its number."""


def need(holds: bool, number: str, why: str) -> None:
    if not holds:
        raise Violation(f"{number}: {why}")


@frozen(kw_only=True)
class Directory:
    """One published directory: `digest` is that of its manifest, `missing` the files of it that are not there.

    `released` are the files that its marker names, and `mark` is what the marker of its roles says.
    """

    path: str
    manifest: Manifest
    digest: str
    generation: Generation | None
    released: frozenset[str]
    missing: frozenset[str]
    mark: marker.Marker | None


def published(files: Files, root: str, manifest: str) -> dict[int, Directory]:
    """Everything below `root`, by step, each with its `manifest`."""
    found: dict[int, dict[str, object]] = {}
    for path, data in files.items():
        if not path.startswith(root):
            continue
        folder, _, name = path.removeprefix(root).partition("/")
        step = parse_iteration(folder)
        if step is not None:
            inside = found.setdefault(step, {})
            if name:
                inside[name] = data
    return {step: _directory(root, step, inside, manifest) for step, inside in sorted(found.items())}


def _directory(root: str, step: int, files: Files, name: str) -> Directory:
    path = f"{root}iter_{step:09d}"
    data = files.get(name)
    need(isinstance(data, bytes), "INV-01", f"{path} is visible and has no {name}")
    assert isinstance(data, bytes)
    try:
        manifest = decode(data, where=path)
        gone = _released(files, manifest, path)
        generation = _generation(files, manifest, path)
        mark = _mark(files, manifest, path)
    except MilepostError as error:
        raise Violation(f"INV-01: {error}") from error
    need(manifest.save.step == step, "INV-01", f"{path} carries the manifest of {manifest.save}")
    missing = frozenset(file.path for file in manifest.files if file.path not in files)
    need(missing <= gone, "INV-01", f"{path} lists {missing - gone}, which is not there")
    for file in manifest.files:
        content = files.get(file.path)
        if content is not None:
            assert isinstance(content, bytes)
            right = (len(content), _digest(content)) == (file.size, file.digest)
            need(right, "INV-01", f"{path}/{file.path} is not what its manifest says")
    known = {name, *_with_folders(file.path for file in manifest.files)}
    if name == MANIFEST:
        known |= {*generations.names, released.RELEASED} | ({marker.SUCCESS} if mark is not None else set())
    need(files.keys() <= known, "INV-01", f"{path} holds {files.keys() - known} beside what its manifest lists")
    return Directory(
        path=path,
        manifest=manifest,
        digest=digest_of(data, name=name).digest,
        generation=generation,
        released=gone,
        missing=missing,
        mark=mark,
    )


def _with_folders(paths: Iterable[str]) -> set[str]:
    """The paths, and every directory that leads to them."""
    parts = [path.split("/") for path in paths]
    return {"/".join(one[:count]) for one in parts for count in range(1, len(one) + 1)}


def roles_in(paths: Iterable[str]) -> set[str]:
    """The roles whose files these are; `""` for those of one trainer. Where sampling goes on is of all of them."""
    first = [path.partition("/")[0] if "/" in path else "" for path in paths if path != "sampling.json"]
    return {"" if name in ("model", "optim", "old", "ref") else name for name in first}


def _mark(files: Files, manifest: Manifest, path: str) -> marker.Marker | None:
    """INV-15: all roles and their marker, or none."""
    roles = roles_in(file.path for file in manifest.files)
    for part in manifest.components:
        there = roles_in(file.path for file in part.files)
        need(there == roles, "INV-15", f"{path} has the {part.component.value} of {there}, its roles are {roles}")
    folders = {file.path.rpartition("/")[0] for file in manifest.files if file.path.endswith(".distcp")}
    for folder in folders:
        listed = any(file.path == f"{folder}/.metadata" for file in manifest.files)
        need(listed, "INV-01", f"{path}/{folder} has shards, and its manifest has no .metadata of them")
    data = files.get(marker.SUCCESS)
    need((data is not None) is (roles != {""}), "INV-15", f"{path} has the roles {roles}, its marker is {data!r}")
    if data is None:
        return None
    assert isinstance(data, bytes)
    mark = marker.decode(data, where=path)
    need(mark.iteration == manifest.save.step, "INV-15", f"{path} has the marker of iteration {mark.iteration}")
    need(set(mark.counters or ()) == roles, "INV-15", f"{path} has {roles}, its marker names {mark.counters}")
    return mark


def _released(files: Files, manifest: Manifest, path: str) -> frozenset[str]:
    data = files.get(released.RELEASED)
    if data is None:
        return frozenset()
    assert isinstance(data, bytes)
    release = released.decode(data, where=path)
    need(release.save == manifest.save, "INV-01", f"{path} has the release marker of {release.save}")
    optimizer = {
        file.path for part in manifest.components if part.component is Component.OPTIMIZER for file in part.files
    }
    need({*release.files} <= optimizer, "INV-08", f"{path} released {release.files}, its optimizer is {optimizer}")
    return frozenset(release.files)


def _generation(files: Files, manifest: Manifest, path: str) -> Generation | None:
    """The newest generation; they are there in order, and each is of this save."""
    newest = None
    for number, (generation, name) in enumerate(zip(Generation, generations.names, strict=True)):
        data = files.get(name)
        if data is None:
            later = [one for one in generations.names[number:] if one in files]
            need(not later, "INV-07", f"{path} has {later} and no {name}")
            return newest
        assert isinstance(data, bytes)
        mark = generations.decode(data, where=path)
        same = (mark.save, mark.generation) == (manifest.save, generation)
        need(same, "INV-07", f"{path}/{name} says {mark}, beside the manifest of {manifest.save}")
        newest = generation
    return newest


@lru_cache(maxsize=512)
def _digest(data: bytes) -> str:
    return f"blake3:{blake3(data).hexdigest()}"
