"""A directory of shards into live tensors, or into a whole tree of plain ones.

1. `.metadata` is read and checked first, by every rank. Then every piece that this rank wants is looked at: where it
   lies in its file, and that what lies there is a tensor of the dtype and shape that `.metadata` says. Plain values
   are read then, too. Only after that the first live byte is overwritten.
2. A piece of a file that is one range both there and in CPU memory is read straight into the live tensor; everything
   else passes through temporary memory of one piece at most. A rank reads its own part and no more.
3. With `verify`, every other file of the directory is hashed by exactly one rank, dealt out by name, in one pass with
   what this rank reads of it. So one rank alone may not see a damaged file: a restore is good when all ranks say so.
4. Nothing that a file claims is believed before it was compared with the size of the file; without `into` no more is
   allocated than the files hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod

import torch
from attrs import define, field, frozen
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from typing_extensions import Buffer

from milepost.engines.disks import Disk, Source
from milepost.engines.formats.archive import corrupt, read_exactly
from milepost.engines.formats.chunks import Target, box_targets, chunk_of, is_dtensor, local_of
from milepost.engines.formats.dcp.metadata import NAME, Contents, Place, read_metadata
from milepost.engines.formats.dcp.trees import flatten, put_together, unflatten
from milepost.engines.formats.reading import beside, check_digest, digester_of, fill, open_pt, read_pt, record_of
from milepost.engines.formats.unpickling import TensorRef
from milepost.transitions.errors import NotResumable, Refused
from milepost.transitions.values import FileDigest

_TAIL = 2 << 10
"""The last bytes of a piece, read at once: our own pieces have their pickle and their directory there."""


def read_dcp(
    disk: Disk,
    path: str,
    *,
    files: Mapping[str, FileDigest],
    into: object | None = None,
    rank: int = 0,
    world_size: int = 1,
    verify: bool = True,
) -> object:
    """The tree in the directory `path`, whose files are `files`, by their name within it.

    With `into`, a live tree of the same form: its tensors are filled and returned, each rank's part of a DTensor, in
    containers like its own, with the saved plain values. Without: the whole tree as plain CPU tensors.

    `rank` and `world_size` say which files this rank verifies; all ranks of a role call with the same `files`.

    Raises `NotResumable` where names, dtypes or shapes differ from `into`, `Corrupt` where bytes are wrong, a file is
    missing from `files` or has another size or digest, and `OSError` where the disk fails.
    """
    where = disk.where(path)
    directory = _Directory(disk, path, files, verify)
    contents = directory.contents(where)
    wants = _whole(contents, files, where) if into is None else _live(contents, into, where)
    targets = directory.look_up(wants)
    mine = frozenset(sorted(files, key=lambda name: (len(name), name))[rank::world_size]) if verify else frozenset()
    for name in sorted(targets.keys() | mine - {NAME}):
        directory.fill(name, targets.get(name, []), hashed=name in mine)
    values = {want.name: want.value for want in wants}
    if into is not None:
        return put_together(into, values)
    try:
        return unflatten(values, contents.paths)
    except ValueError as error:
        corrupt(f"{where}/{NAME}", "the paths of a tree", str(error))


def forms_of_dcp(disk: Disk, path: str, *, files: Mapping[str, FileDigest], verify: bool = True) -> dict[str, object]:
    """The tree in the directory with tensors of torch's `meta` device for its own, and None for every plain value.

    Reads `.metadata` alone. Raises `Corrupt` and `OSError` as `read_dcp` does.
    """
    where = disk.where(path)
    contents = _Directory(disk, path, files, verify).contents(where)
    values: dict[str, object] = dict.fromkeys(contents.values)
    for name, form in contents.tensors.items():
        values[name] = torch.empty(form.size, dtype=form.properties.dtype, device="meta")
    try:
        return unflatten(values, contents.paths)
    except ValueError as error:
        corrupt(f"{where}/{NAME}", "the paths of a tree", str(error))


@frozen
class _Piece:
    """A piece of a tensor: the dtype and shape of what lies at `place`, and the box of it that goes to `live`."""

    place: Place
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    live: torch.Tensor


@define(eq=False)
class _Want:
    """One name of the tree. A plain value lies at `place`; a tensor is `value`, filled from its pieces."""

    name: str
    value: object = None
    place: Place | None = None
    pieces: Sequence[_Piece] = ()


def _live(contents: Contents, into: object, where: str) -> list[_Want]:
    """What a live tree wants: exactly what was saved."""
    try:
        flat = flatten(into, name="into")
    except Refused as error:
        raise NotResumable(f"{where}: the live state has no place for a checkpoint: {error}") from error
    saved = contents.tensors.keys() | contents.values
    for missing, of in ((flat.values.keys() - saved, "the checkpoint"), (saved - flat.values.keys(), "this run")):
        if missing:
            named = ", ".join(sorted(missing)[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            raise NotResumable(f"{where}: {of} has no {named}; resume with the model and optimizer that were saved")
    wants = []
    for name, value in flat.values.items():
        if name in contents.values:
            if isinstance(value, torch.Tensor):
                raise NotResumable(f"{where}: {name} was saved as a plain value, this run has a tensor")
            wants.append(_Want(name, place=contents.places[name, None]))
        else:
            part = _part(name, value, contents.tensors[name], where=where)
            wants.append(
                _Want(name, value, pieces=[] if part is None else _pieces(name, contents, *part, where=where))
            )
    return wants


def _part(
    name: str, value: object, form: TensorStorageMetadata, *, where: str
) -> tuple[tuple[int, ...], torch.Tensor] | None:
    """Where in the whole tensor this rank's part begins, and that part of the live tensor; None where it has none.

    `NotResumable` where what is live is not the tensor that was saved.
    """
    saved = f"{where}: {name} was saved as {form.properties.dtype} of shape {tuple(form.size)}"
    if not isinstance(value, torch.Tensor):
        raise NotResumable(f"{saved}, this run has a {type(value).__name__}")
    if (value.dtype, value.shape) != (form.properties.dtype, form.size):
        raise NotResumable(f"{saved}, this run has {value.dtype} of shape {tuple(value.shape)}")
    if value.is_meta or value.layout is not torch.strided:
        raise NotResumable(f"{saved}, this run has a tensor without memory of its own; materialise it first")
    if not is_dtensor(value):
        return (0,) * value.dim(), value.detach()
    try:
        chunk = chunk_of(value)
    except ValueError as error:
        raise NotResumable(f"{where}: {name}: {error}") from error
    return None if chunk is None else (chunk.offsets, local_of(value).detach())


def _pieces(
    name: str, contents: Contents, offsets: tuple[int, ...], local: torch.Tensor, *, where: str
) -> list[_Piece]:
    """The saved chunks, or boxes of them, that make up a part of the tensor; as many elements as it has."""
    form = contents.tensors[name]
    here = ChunkStorageMetadata(torch.Size(offsets), local.shape)
    pieces = []
    for item in create_read_items_for_chunk_list(name, form, [here]):
        box = local
        for dimension, (start, length) in enumerate(zip(item.dest_offsets, item.lengths, strict=True)):
            box = box.narrow(dimension, start, length)
        index = item.storage_index
        assert index.offset is not None and index.index is not None
        place = contents.places[name, tuple(index.offset)]
        pieces.append(_Piece(place, tuple(form.chunks[index.index].sizes), tuple(item.storage_offsets), box))
    found = sum(piece.live.numel() for piece in pieces)
    if found != local.numel():
        corrupt(f"{where}/{NAME}", f"chunks of {name} that cover its {local.numel()} elements here", f"{found}")
    return pieces


def _whole(contents: Contents, files: Mapping[str, FileDigest], where: str) -> list[_Want]:
    """Everything, in memory that is allocated here: no more than the files hold."""
    held = sum(file.size for file in files.values())
    needed = sum(prod(form.size) * form.properties.dtype.itemsize for form in contents.tensors.values())
    if needed > held:
        corrupt(f"{where}/{NAME}", f"tensors of at most {held} bytes, which the files hold", f"{needed}")
    wants = [_Want(name, place=contents.places[name, None]) for name in contents.values]
    for name, form in contents.tensors.items():
        tensor = torch.empty(form.size, dtype=form.properties.dtype)
        pieces = _pieces(name, contents, (0,) * tensor.dim(), tensor, where=where)
        wants.append(_Want(name, tensor, pieces=pieces))
    return wants


@frozen
class _Directory:
    """The files, opened one at a time: there may be as many as there were ranks."""

    _disk: Disk
    _path: str
    _files: Mapping[str, FileDigest]
    _verify: bool

    def contents(self, where: str) -> Contents:
        """What `.metadata` says; its digest is checked by every rank, before it is believed."""
        if NAME not in self._files:
            corrupt(where, f"a file {NAME}", ", ".join(sorted(self._files)[:5]) or "no file")
        with self._open(NAME) as source:
            data = read_exactly(source, 0, source.size, where=self._where(NAME))
        if self._verify:
            digester = digester_of(self._files[NAME].digest, where=self._where(NAME))
            assert digester is not None
            digester.update(data)
            check_digest(digester, self._files[NAME].digest, where=self._where(NAME))
        return read_metadata(data, files=frozenset(self._files) - {NAME}, where=self._where(NAME))

    def look_up(self, wants: Sequence[_Want]) -> dict[str, list[Target]]:
        """Read the plain values and find the bytes of every piece: by file, in its order, what is to be filled."""
        by_file: dict[str, list[tuple[Place, _Want | _Piece]]] = {}
        for want in wants:
            if want.place is not None:
                by_file.setdefault(want.place.file, []).append((want.place, want))
            for piece in want.pieces:
                by_file.setdefault(piece.place.file, []).append((piece.place, piece))
        return {name: self._look_into(name, wanted) for name, wanted in by_file.items()}

    def _look_into(self, name: str, wanted: list[tuple[Place, _Want | _Piece]]) -> list[Target]:
        wanted.sort(key=lambda pair: pair[0].offset)
        where = self._where(name)
        targets: list[Target] = []
        with self._open(name) as source:
            for (first, _), (second, _) in pairwise(wanted):
                if first.offset + first.length > second.offset:
                    corrupt(where, "pieces that do not overlap", f"two that share byte {second.offset}")
            windows = [_Window(source, place.offset, place.length, where) for place, _ in wanted]
            beside(window.look for window in windows)
            for (place, want), window in zip(wanted, windows, strict=True):
                there = f"{where} at byte {place.offset}"
                if isinstance(want, _Want):
                    want.value = read_pt(window, where=there)
                else:
                    targets += _targets(window, want, there)
        return sorted(targets, key=lambda target: target.start)

    def fill(self, name: str, targets: Sequence[Target], *, hashed: bool) -> None:
        """Fill what lies in one file, and verify it where that falls to this rank."""
        digest, where = self._files[name].digest if hashed else None, self._where(name)
        digester = digester_of(digest, where=where)
        with self._open(name) as source:
            fill(source, targets, digester, where=where)
        check_digest(digester, digest, where=where)

    def _open(self, name: str) -> Source:
        source = self._disk.open(f"{self._path}/{name}", bulk=True)
        expected = self._files[name].size
        if source.size != expected:
            source.close()
            corrupt(self._where(name), f"{expected} bytes", f"{source.size}")
        return source

    def _where(self, name: str) -> str:
        return self._disk.where(f"{self._path}/{name}")


def _targets(window: _Window, piece: _Piece, where: str) -> Iterable[Target]:
    """The bytes of a piece in its file, once what lies there is the tensor that `.metadata` says."""
    records, found = open_pt(window, where=where)
    expected = f"a tensor of {piece.live.dtype}, shape {piece.sizes}"
    if type(found) is not TensorRef:
        corrupt(where, expected, f"a {type(found).__name__}")
    record = record_of(records, f"data/{found.storage.key}", where=where)
    if (found.dtype, found.size) != (piece.live.dtype, piece.sizes) or record.size != found.storage.size:
        corrupt(where, expected, f"one of {found.dtype}, shape {found.size}, in {record.size} bytes")
    return box_targets(
        window.start + record.start + found.offset * found.dtype.itemsize,
        stride=found.stride,
        offsets=piece.offsets,
        live=piece.live,
        flags=found.metadata,
    )


@define(eq=False)
class _Window:
    """One piece of a file, as a file of its own. Its tail is read once, and first: so it lies within the file."""

    _source: Source
    start: int
    size: int
    _where: str
    _tail: bytes = field(default=b"", init=False)

    def read_into(self, offset: int, buffer: Buffer) -> int:
        self.look()
        asked = memoryview(buffer).cast("B")[: max(self.size - offset, 0)]
        tail_at = max(self.size - _TAIL, 0)
        if offset < tail_at:
            return self._source.read_into(self.start + offset, asked)
        asked[:] = self._tail[offset - tail_at : offset - tail_at + len(asked)]
        return len(asked)

    def look(self) -> None:
        """Read the tail, where that was not done."""
        if not self._tail:
            tail_at = max(self.size - _TAIL, 0)
            self._tail = read_exactly(self._source, self.start + tail_at, self.size - tail_at, where=self._where)

    def close(self) -> None: ...
    def __enter__(self) -> _Window:
        return self

    def __exit__(self, *_: object) -> None: ...
