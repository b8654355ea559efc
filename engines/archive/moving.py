"""Objects as they are, to another store or onto a disk: `milepost copy` and `milepost download`.

1. Everything below an address is moved under the same names. No request of the store copies by itself: bytes come
   here and go on, so any two stores will do.
2. What a manifest or a declaration on the way says of a file is held against its bytes before it counts as moved.
   A file that a manifest lists is asked for though a listing, which is only a hint, lacks it.
3. Declarations go first, then payload, then manifests, and the pointer last: what is visible is whole (INV-01).
   Manifests, declarations and the pointer are created under a condition (INV-02).
4. What is there with the same size and the same digest, by its bytes, is not moved again. What is there and differs
   is refused and stays, and nothing behind it in that order is moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from attrs import frozen

from milepost.engines.ambient import Ambient
from milepost.engines.archive import declaration
from milepost.engines.archive.declaration import DECLARATION
from milepost.engines.archive.inventory import ARCHIVE_DIGEST
from milepost.engines.archive.publisher import DEADLINE_S
from milepost.engines.archive.reader import download_file, only_one
from milepost.engines.archive.streaming import (
    Meter,
    Told,
    algorithm_of,
    file_digests,
    object_blocks,
    object_digests,
    require_digests,
    untold,
)
from milepost.engines.buckets import Committed, Conflict, Stat, Unknown
from milepost.engines.buckets.keys import check_key
from milepost.engines.buckets.probe import Promises, probe
from milepost.engines.buckets.remote import Remote
from milepost.engines.checkpoints import manifest as manifests
from milepost.engines.checkpoints.manifest import ARTIFACT, LIMIT_BYTES, MANIFEST
from milepost.engines.checkpoints.released import RELEASED
from milepost.engines.checkpoints.released import decode as decode_release
from milepost.engines.digests import Digester
from milepost.engines.disks import Disk
from milepost.transitions.errors import Corrupt, Refused, Unavailable
from milepost.transitions.values import FileDigest

POINTER = "latest_checkpoint.txt"
"""The pointer beside checkpoints (spec/layout.md)."""

_ORDER = {DECLARATION: 0, MANIFEST: 2, ARTIFACT: 2, POINTER: 3}
_PAYLOAD = 1
_PARTIAL = ".downloading"
_MOST_KEYS = 1_000_000


@frozen(kw_only=True)
class Moved:
    """What lies at the target now: `moved` came with this call, `found` was there. Paths below the address."""

    target: str
    bytes: int
    moved: tuple[str, ...]
    found: tuple[str, ...]


@frozen(kw_only=True)
class _Item:
    """An object to move: its path, its size and version, and every digest that it has to have."""

    path: str
    stat: Stat
    digests: tuple[str, ...]

    @property
    def file(self) -> FileDigest:
        return FileDigest(path=self.path, size=self.stat.size, digest=self.digests[0] if self.digests else "")

    @property
    def conditional(self) -> bool:
        return _rank(self.path) != _PAYLOAD


def copy(
    source: Remote, target: Remote, *, ambient: Ambient, promises: Promises | None = None, told: Told = untold
) -> Moved:
    """Everything below `source` to the same names below `target`; safe to call again.

    `promises` is what a probe of the target's store saw before; None tries it now. Raises `Refused` where there is
    nothing to copy or something else at the target, `Corrupt` for objects that are not what a manifest says,
    `Misconfigured` for a store that cannot be relied on, `Unavailable`.
    """
    items = _items(source)
    if promises is None:
        promises = probe(target.bucket, target.start, ambient=ambient)
    promises.require(target.where(""))

    def move(item: _Item, meter: Meter) -> bool:
        stat = target.bucket.stat(target.key(item.path))
        if stat is None:
            _copy_one(source, target, item, meter)
            return True
        digests = _digests(source, item, ambient=ambient)
        same = stat.size == item.stat.size and digests == object_digests(
            target, item.path, stat, algorithms=map(algorithm_of, digests), meter=meter
        )
        if not same:
            raise _differs(target.where(item.path), item)
        return False

    return _moved(items, move, target=target.where(""), doing="copying", ambient=ambient, told=told)


def download(source: Remote, disk: Disk, path: str, *, ambient: Ambient, told: Told = untold) -> Moved:
    """Everything below `source` to the same names below the directory `path`, whose parent exists; as `copy`.

    `Busy` while another download goes there. Each file gets its name once it is durable and proven.
    """
    items = _items(source)
    parent, _, name = path.rpartition("/")

    def move(item: _Item, meter: Meter) -> bool:
        here = f"{path}/{item.path}"
        stat = disk.stat(here)
        if stat is None:
            _download_one(source, disk, path, item, meter)
            return True
        digests = _digests(source, item, ambient=ambient)
        same = (
            stat.kind == "file"
            and stat.size == item.stat.size
            and digests == file_digests(disk, here, algorithms=map(algorithm_of, digests), meter=meter)
        )
        if not same:
            raise _differs(disk.where(here), item)
        disk.sync_file(here)  # an earlier call may have ended before its name was durable
        disk.sync_dir(here.rpartition("/")[0])
        return False

    with only_one(disk, f"{parent}/{_PARTIAL}-{name}.lock" if parent else f"{_PARTIAL}-{name}.lock"):
        _make_folder(disk, path)
        _forget_partial(disk, path)
        return _moved(items, move, target=disk.where(path), doing="downloading", ambient=ambient, told=told)


def _moved(
    items: tuple[_Item, ...],
    move: Callable[[_Item, Meter], bool],
    *,
    target: str,
    doing: str,
    ambient: Ambient,
    told: Told,
) -> Moved:
    total = sum(item.stat.size for item in items)
    meter = Meter(told, doing=doing, total=total, ambient=ambient)
    came = {item.path: move(item, meter) for item in items}
    return Moved(
        target=target,
        bytes=total,
        moved=tuple(path for path, is_new in came.items() if is_new),
        found=tuple(path for path, is_new in came.items() if not is_new),
    )


# --- what there is to move ----------------------------------------------------------------------------------


def _items(source: Remote) -> tuple[_Item, ...]:
    """Every object below the address, in the order of moving."""
    listed = frozenset(_listed(source))
    wanted: dict[str, list[str]] = {path: [] for path in listed}
    released: set[str] = set()
    for path in sorted(listed):
        for file in _told_by(source, path):
            wanted.setdefault(file.path, []).append(file.digest)
        released |= _released_by(source, path)
    items = [
        _Item(path=path, stat=stat, digests=tuple(dict.fromkeys(digests)))
        for path, digests in wanted.items()
        if (stat := _stat(source, path, may_lack=path in released)) is not None
    ]
    if not items:
        raise Refused(f"{source.where('')}: expected objects below it, found none; name s3://<bucket>/<prefix>")
    return tuple(sorted(items, key=lambda item: (_rank(item.path), item.path)))


def _listed(source: Remote) -> Iterator[str]:
    """The paths below the address, as a listing has them."""
    keys = source.bucket.keys(source.start, limit=_MOST_KEYS)
    if len(keys) == _MOST_KEYS:
        raise Refused(f"{source.where('')}: more than {_MOST_KEYS} objects; move them in parts")
    for key in keys:
        if key.endswith("/"):  # consoles make such objects to stand for an empty directory
            continue
        try:
            yield check_key(key.removeprefix(source.start))
        except ValueError as error:
            raise Refused(f"{source.where('')}: an object there has no name that can be moved: {error}") from None


def _told_by(source: Remote, path: str) -> Iterator[FileDigest]:
    """What this object says of the files beside it, if it is a manifest or a declaration; with whole paths."""
    above, name = _split(path)
    if name in (MANIFEST, ARTIFACT):
        files = manifests.decode(_read(source, path), where=source.where(path)).files
    elif name == DECLARATION:
        declared = declaration.decode(_read(source, path), where=source.where(path))
        files = (declared.manifest, *declared.files)
    else:
        return
    for file in files:
        yield FileDigest(path=f"{above}{file.path}", size=file.size, digest=file.digest)


def _released_by(source: Remote, path: str) -> set[str]:
    """The files that this object, if it is a release marker, says are gone."""
    above, name = _split(path)
    if name != RELEASED:
        return set()
    release = decode_release(_read(source, path), where=source.where(path))
    return {f"{above}{file}" for file in release.files}


def _read(source: Remote, path: str) -> bytes:
    return source.bucket.read(source.key(path), limit=LIMIT_BYTES)[0]


def _stat(source: Remote, path: str, *, may_lack: bool) -> Stat | None:
    stat = source.bucket.stat(source.key(path))
    if stat is None and not may_lack:
        raise Corrupt(
            f"{source.where(path)}: expected the file that a listing or a manifest beside it names, found nothing"
        )
    return stat


def _split(path: str) -> tuple[str, str]:
    """What stands before the last name, with its slash, and that name."""
    above, slash, name = path.rpartition("/")
    return f"{above}{slash}", name


def _rank(path: str) -> int:
    return _ORDER.get(_split(path)[1], _PAYLOAD)


# --- one object ---------------------------------------------------------------------------------------------


def _digests(source: Remote, item: _Item, *, ambient: Ambient) -> tuple[str, ...]:
    """Every digest that the item has to have; where nothing says one, that of its bytes."""
    if item.digests:
        return item.digests
    unheard = Meter(untold, doing="", total=0, ambient=ambient)
    return object_digests(source, item.path, item.stat, algorithms=(ARCHIVE_DIGEST,), meter=unheard)


def _differs(where: str, item: _Item) -> Refused:
    return Refused(
        f"{where}: something else is there than the {item.stat.size} bytes of {item.path}. It was not replaced; "
        "look at it, or name another target"
    )


def _require_digests(source: Remote, item: _Item, digesters: list[Digester]) -> None:
    require_digests(source.where(item.path), item.digests, [digester.digest for digester in digesters])


def _copy_one(source: Remote, target: Remote, item: _Item, meter: Meter) -> None:
    """Send one object to where nothing was."""
    digesters = [Digester(algorithm_of(digest), size=item.stat.size) for digest in item.digests]
    if item.conditional:
        data = _read(source, item.path)
        for digester in digesters:
            digester.update(data)
        _require_digests(source, item, digesters)
        _create(target, item, data)
        meter.add(len(data), path=item.path)
        return
    with target.bucket.upload(target.key(item.path), size_hint=item.stat.size) as upload:
        for block in object_blocks(source, item.path, item.stat):
            for digester in digesters:
                digester.update(block)
            upload.write(block)
            meter.add(len(block), path=item.path)
        _require_digests(source, item, digesters)
        upload.commit()


def _create(target: Remote, item: _Item, data: bytes) -> None:
    match target.bucket.create(target.key(item.path), data, deadline_s=DEADLINE_S):
        case Committed():
            return
        case Conflict():
            raise _differs(target.where(item.path), item)
        case Unknown(why=why):
            raise Unavailable(f"{why}: whether {item.path} is there cannot be said; copy again")


def _download_one(source: Remote, disk: Disk, path: str, item: _Item, meter: Meter) -> None:
    """Give one object its name below `path`, once it is durable and proven."""
    parts = item.path.split("/")
    for depth in range(1, len(parts)):
        _make_folder(disk, "/".join((path, *parts[:depth])))
    partial = f"{path}/{_PARTIAL}"
    _forget_partial(disk, path)
    download_file(source, disk, partial, file=item.file, digests=item.digests, meter=meter)
    disk.link(partial, f"{path}/{item.path}")
    disk.unlink(partial)
    for folder in dict.fromkeys(("/".join((path, *parts[:-1])), path)):
        disk.sync_dir(folder)


def _forget_partial(disk: Disk, path: str) -> None:
    """Remove what a call that was interrupted left half-way."""
    with suppress(FileNotFoundError):
        disk.unlink(f"{path}/{_PARTIAL}")


def _make_folder(disk: Disk, path: str) -> None:
    with suppress(FileExistsError):
        disk.mkdir(path)
    disk.sync_dir(path.rpartition("/")[0])
