"""`.metadata`: the one file of a directory that says what its tensors are and where every piece of them lies.

1. What we write is what torch's own writer pickles, of torch's own classes: any program can read it.
2. What we read is not trusted: see `unpickling`. After that everything is checked against everything: every chunk
   lies within its tensor and has its place in one of the directory's files, by name. Whether a place lies within its
   file is for who opens it.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch
from attrs import frozen
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorStorageMetadata,
)

from milepost.engines.formats.archive import corrupt
from milepost.engines.formats.dcp.images import Entry
from milepost.engines.formats.dcp.planning import Together
from milepost.engines.formats.dcp.trees import Path
from milepost.engines.formats.dcp.unpickling import unpickle

NAME = ".metadata"

_UNUSABLE = frozenset(
    dtype
    for name, dtype in vars(torch).items()
    if isinstance(dtype, torch.dtype) and name.startswith(("q", "bits"))  # quantized, or without arithmetic
)


def metadata_file(together: Together, entries: Sequence[Sequence[Entry]]) -> bytes:
    """The bytes of `.metadata`, from the common plan and the entries of every rank's file, in the ranks' order."""
    places = {entry.index: _place(entry) for mine in entries for entry in mine}
    planned = {item.index for plan in together.plans for item in plan.items}
    assert places.keys() == planned, f"{len(planned)} items were planned, {len(places)} written"
    metadata = dataclasses.replace(together.metadata, storage_data=places, storage_meta=StorageMeta())
    version = getattr(filesystem, "CURRENT_DCP_VERSION", None)
    if version is not None:
        metadata = dataclasses.replace(metadata, version=version)
    return pickle.dumps(metadata, protocol=4)


def _place(entry: Entry) -> filesystem._StorageInfo:
    return filesystem._StorageInfo(entry.file, entry.offset, entry.length)


@frozen
class Place:
    """`length` bytes from byte `offset` of `file`."""

    file: str
    offset: int
    length: int


@frozen(kw_only=True)
class Contents:
    """What a directory holds: tensors and plain values by name, and for each piece of them its place.

    `places` are by name and, for a tensor, the offsets of the chunk. `paths` has every name, and the paths of empty
    mappings too.
    """

    tensors: Mapping[str, TensorStorageMetadata]
    values: frozenset[str]
    places: Mapping[tuple[str, tuple[int, ...] | None], Place]
    paths: Mapping[str, Path]


def read_metadata(data: bytes, *, files: frozenset[str], where: str) -> Contents:
    """What the bytes of `.metadata` say of a directory that has these files. `Corrupt` where they cannot be right."""
    found = unpickle(data, where=where)
    try:
        return _contents(found, files)
    except (ValueError, TypeError, AttributeError) as error:
        corrupt(where, "the metadata of one checkpoint", f"{type(error).__name__}: {error!s:.200}")


def _contents(found: object, files: frozenset[str]) -> Contents:
    if type(found) is not Metadata:
        raise TypeError(f"a {type(found).__name__}")
    tensors = {name: form for name, form in found.state_dict_metadata.items() if type(form) is TensorStorageMetadata}
    values = frozenset(name for name, form in found.state_dict_metadata.items() if type(form) is BytesStorageMetadata)
    if len(tensors) + len(values) < len(found.state_dict_metadata):
        raise TypeError("a name that is neither a tensor nor a value")
    places: dict[tuple[str, tuple[int, ...] | None], Place] = {}
    for index, info in found.storage_data.items():
        offsets = None if index.offset is None else tuple(index.offset)
        places[index.fqn, offsets] = _checked_place(info, files)
    for name, form in tensors.items():
        _check_tensor(name, form, places)
    for name in values:
        if (name, None) not in places:
            raise ValueError(f"{name} has no place in any file")
    paths = {name: (name,) for name in found.state_dict_metadata}  # a tree that was flat before it was saved
    if found.planner_data is not None:
        if not paths.keys() <= found.planner_data.keys() or not all(map(_is_path, found.planner_data.values())):
            raise ValueError("names without a path")
        paths = dict(found.planner_data)
    return Contents(tensors=tensors, values=values, places=places, paths=paths)


def _is_path(path: object) -> bool:
    return type(path) is tuple and bool(path) and all(type(part) in (str, int) for part in path)


def _checked_place(info: object, files: frozenset[str]) -> Place:
    if type(info) is not filesystem._StorageInfo:
        raise TypeError(f"a {type(info).__name__} as a place")
    if getattr(info, "transform_descriptors", None):
        raise ValueError("bytes that an extension of torch has transformed")
    if info.relative_path not in files:
        raise ValueError(f"the file {info.relative_path!r}, of which the checkpoint does not know")
    if info.offset < 0 or info.length <= 0:
        raise ValueError(f"{info.length} bytes at offset {info.offset}")
    return Place(info.relative_path, info.offset, info.length)


def _check_tensor(name: str, form: TensorStorageMetadata, places: Mapping[Any, Place]) -> None:
    """Every chunk lies within the tensor and has a place, and together they are as large as the tensor."""
    covered = 0
    if type(form.properties.dtype) is not torch.dtype or form.properties.dtype in _UNUSABLE:
        raise TypeError(f"{name}: a tensor without a dtype")
    for chunk in form.chunks:
        if type(chunk) is not ChunkStorageMetadata or not len(chunk.offsets) == len(chunk.sizes) == len(form.size):
            raise ValueError(f"{name}: a chunk of another rank than the tensor")
        for offset, size, whole in zip(chunk.offsets, chunk.sizes, form.size, strict=True):
            if offset + size > whole:
                raise ValueError(f"{name}: a chunk that reaches {offset + size} of {whole}")
        if (name, tuple(chunk.offsets)) not in places:
            raise ValueError(f"{name}: the chunk at {tuple(chunk.offsets)} has no place in any file")
        covered += prod(chunk.sizes)
    if covered != prod(form.size):
        raise ValueError(f"{name}: {covered} elements in chunks for a tensor of {prod(form.size)}")
