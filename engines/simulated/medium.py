"""What a disk holds and what it still owes: the model of a POSIX file system that may crash.

What the kernel may do and what it promises, as fsync(2), rename(2), open(2) and close(2) state it:

1. Everything is visible at once (`seen`) and durable later (`durable`). A crash keeps what is durable and, of the
   rest, any part: each write and each change of a directory survives or vanishes by itself, in no order.
2. fsync of a file makes its bytes and its size durable, and not its name. The name is an entry of a directory and
   becomes durable by fsync of that directory, which says nothing about the bytes of the file.
3. A change of an entry that became durable stays: an earlier change of the same name cannot come back over it.
4. rename(2) is atomic for whoever looks. For a crash it is two changes where it crosses directories. A journal
   commits both together, by fsync of either directory (`atomic`); without one, each directory has to be synced and
   a crash may leave the name in both or in neither (`separate`). Within one directory it is one change.
5. fsync that fails ("fsyncgate", PostgreSQL 2018) leaves the pages clean: still readable, perhaps on the disk and
   perhaps not, and a second fsync succeeds without writing them. Dropping the page cache shows what is durable.
   The same goes for a failed fsync of a directory, and for a write that fails late and is told of by close(2).
6. Nothing else makes anything durable: not time, not a rename over a file (ext4's auto_da_alloc), not another
   file's fsync (ext4's shared journal transaction). Real file systems are kinder; none promises it.

A `Medium` is a value: `step` gives the next one and shares what did not change, so that keeping one for every
operation of a run, and building thousands of crashed ones from it, is cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias, assert_never

from attrs import evolve, frozen
from rpds import HashTrieMap

ROOT = 1
"""The inode of the root directory."""

_PATH_MAX = 4096


@frozen(kw_only=True)
class Symlink:
    """A symbolic link. Where it points does not matter: no disk follows it."""


Node: TypeAlias = bytes | dict[str, int] | Symlink
"""A file's bytes, a directory's entries (never changed in place), or a symlink."""

Nodes: TypeAlias = "HashTrieMap[int, Node]"
Chunk: TypeAlias = tuple[int, bytes]
"""Bytes at an offset."""

Chunks: TypeAlias = "HashTrieMap[int, tuple[Chunk, ...]]"
Renames: TypeAlias = Literal["atomic", "separate"]
Tree: TypeAlias = dict[str, bytes | Symlink | None]
"""What is visible, by path: bytes for a file, None for a directory. The root is the empty path."""


@frozen(kw_only=True)
class Change:
    """In directory `folder`, `name` means `inode` from now on; None: nothing."""

    folder: int
    name: str
    inode: int | None


@frozen(kw_only=True)
class Pending:
    """Changes that survive together or not at all; fsync of a directory in `waits` makes them durable."""

    changes: tuple[Change, ...]
    waits: frozenset[int]


@frozen(kw_only=True)
class Born:
    """A new inode under a new name."""

    inode: int
    node: Node
    entry: Change


@frozen(kw_only=True)
class Moved:
    """Entries changed: by rename, link, unlink or rmdir."""

    changes: tuple[Change, ...]


@frozen(kw_only=True)
class Wrote:
    inode: int
    offset: int
    data: bytes


@frozen(kw_only=True)
class Synced:
    inode: int


@frozen(kw_only=True)
class SyncFailed:
    inode: int


@frozen(kw_only=True)
class Closed:
    """A file that was written to was closed, which changes nothing; a close that fails is a `SyncFailed`."""

    inode: int


@frozen(kw_only=True)
class FolderSynced:
    folder: int


@frozen(kw_only=True)
class FolderSyncFailed:
    folder: int


@frozen(kw_only=True)
class Locked:
    """Process `holder` holds the lock on `inode`, which was `born` for it where it was missing."""

    inode: int
    holder: int
    born: Born | None


@frozen(kw_only=True)
class Unlocked:
    inode: int


@frozen(kw_only=True)
class Died:
    """Process `holder` is gone, and its locks are."""

    holder: int


@frozen(kw_only=True)
class CachesDropped:
    """Clean pages and clean directory blocks were forgotten and read from the disk again."""


Effect: TypeAlias = (
    Born
    | Moved
    | Wrote
    | Synced
    | SyncFailed
    | Closed
    | FolderSynced
    | FolderSyncFailed
    | Locked
    | Unlocked
    | Died
    | CachesDropped
)


@frozen(kw_only=True)
class Medium:
    """One state of the disk. `entries` are pending changes of directories, oldest first; `dirty` are bytes that
    were written and not synced, `failed` bytes whose sync failed: readable, perhaps durable, never synced again.
    """

    seen: Nodes
    durable: Nodes
    times: HashTrieMap[int, float] = HashTrieMap()
    next_inode: int = ROOT + 1
    renames: Renames = "atomic"
    entries: tuple[Pending, ...] = ()
    dirty: Chunks = HashTrieMap()
    failed: Chunks = HashTrieMap()
    locks: HashTrieMap[int, int] = HashTrieMap()

    @property
    def settled(self) -> bool:
        """Nothing is owed: a power loss would change nothing."""
        return not (self.entries or self.dirty or self.failed)


def empty(renames: Renames) -> Medium:
    nodes: Nodes = HashTrieMap({ROOT: {}})
    return Medium(seen=nodes, durable=nodes, renames=renames)


def step(medium: Medium, effect: Effect, at_s: float) -> Medium:
    """The medium after `effect`, which happened at `at_s` (seconds since 1970)."""
    match effect:
        case Born():
            return _born(medium, effect, at_s)
        case Moved(changes=changes):
            return _change(medium, changes, at_s)
        case Wrote():
            return _wrote(medium, effect, at_s)
        case Synced(inode=inode):
            if inode not in medium.dirty:
                return medium
            data = overlay(contents(medium.durable, inode), medium.dirty[inode])
            return evolve(medium, durable=medium.durable.insert(inode, data), dirty=medium.dirty.remove(inode))
        case SyncFailed(inode=inode):
            if inode not in medium.dirty:
                return medium
            lost = (*medium.failed.get(inode, ()), *medium.dirty[inode])
            return evolve(medium, dirty=medium.dirty.remove(inode), failed=medium.failed.insert(inode, lost))
        case FolderSynced(folder=folder):
            return _folder_synced(medium, folder)
        case FolderSyncFailed(folder=folder):
            return evolve(medium, entries=tuple(evolve(item, waits=item.waits - {folder}) for item in medium.entries))
        case Locked(inode=inode, holder=holder, born=born):
            if born is not None:
                medium = _born(medium, born, at_s)
            return evolve(medium, locks=medium.locks.insert(inode, holder))
        case Unlocked(inode=inode):
            return evolve(medium, locks=medium.locks.remove(inode))
        case Died(holder=holder):
            held = {inode: other for inode, other in medium.locks.items() if other != holder}
            return evolve(medium, locks=HashTrieMap(held))
        case CachesDropped():
            return _caches_dropped(medium)
        case Closed():
            return medium
        case _:
            assert_never(effect)


def _born(medium: Medium, born: Born, at_s: float) -> Medium:
    medium = evolve(
        medium,
        seen=medium.seen.insert(born.inode, born.node),
        durable=medium.durable.insert(born.inode, born.node),  # unreachable until its entry is durable
        times=medium.times.insert(born.inode, at_s),
        next_inode=born.inode + 1,
    )
    return _change(medium, (born.entry,), at_s)


def _change(medium: Medium, changes: tuple[Change, ...], at_s: float) -> Medium:
    folders = frozenset(change.folder for change in changes)
    if medium.renames == "atomic" or len(folders) == 1:
        pending: tuple[Pending, ...] = (Pending(changes=changes, waits=folders),)
    else:
        pending = tuple(Pending(changes=(c,), waits=frozenset((c.folder,))) for c in changes)
    times = medium.times
    for folder in folders:
        times = times.insert(folder, at_s)
    return evolve(medium, seen=apply(medium.seen, changes), times=times, entries=(*medium.entries, *pending))


def _wrote(medium: Medium, wrote: Wrote, at_s: float) -> Medium:
    chunk = (wrote.offset, wrote.data)
    data = overlay(contents(medium.seen, wrote.inode), (chunk,))
    return evolve(
        medium,
        seen=medium.seen.insert(wrote.inode, data),
        times=medium.times.insert(wrote.inode, at_s),
        dirty=medium.dirty.insert(wrote.inode, (*medium.dirty.get(wrote.inode, ()), chunk)),
    )


def _folder_synced(medium: Medium, folder: int) -> Medium:
    if all(folder not in item.waits for item in medium.entries):
        return medium
    committed: list[Pending] = []
    rest: list[Pending] = []
    settled: set[tuple[int, str]] = set()
    for item in reversed(medium.entries):
        if folder in item.waits:
            committed.append(item)
            settled.update((change.folder, change.name) for change in item.changes)
            continue
        # Rule 3: what is older than a committed change of the same name is history.
        alive = tuple(change for change in item.changes if (change.folder, change.name) not in settled)
        if alive:
            rest.append(evolve(item, changes=alive))
    durable = medium.durable
    for item in reversed(committed):
        durable = apply(durable, item.changes)
    return evolve(medium, durable=durable, entries=tuple(reversed(rest)))


def _caches_dropped(medium: Medium) -> Medium:
    entries = tuple(item for item in medium.entries if item.waits)
    seen = medium.durable
    for item in entries:
        seen = apply(seen, item.changes)
    for inode, chunks in medium.dirty.items():
        seen = seen.insert(inode, overlay(contents(seen, inode), chunks))
    return evolve(medium, seen=seen, entries=entries, failed=HashTrieMap())


def apply(nodes: Nodes, changes: Iterable[Change]) -> Nodes:
    """`nodes` with the entries changed, in order."""
    for change in changes:
        folder = dict(folder_of(nodes, change.folder))
        if change.inode is None:
            folder.pop(change.name, None)
        else:
            folder[change.name] = change.inode
        nodes = nodes.insert(change.folder, folder)
    return nodes


def overlay(data: bytes, chunks: Iterable[Chunk]) -> bytes:
    """`data` with chunks put over it; a gap before a chunk is NULs, as a hole reads."""
    for offset, chunk in chunks:
        data = data[:offset].ljust(offset, b"\0") + chunk + data[offset + len(chunk) :]
    return data


def contents(nodes: Nodes, inode: int) -> bytes:
    """The bytes of an inode that is known to be a file."""
    node = nodes[inode]
    assert isinstance(node, bytes)
    return node


def folder_of(nodes: Nodes, inode: int) -> dict[str, int]:
    """The entries of an inode that is known to be a directory; not to be changed."""
    node = nodes[inode]
    assert isinstance(node, dict)
    return node


def walk(nodes: Nodes) -> Iterator[tuple[str, int]]:
    """Every visible path with its inode, a directory before what it holds.

    Torn renames of directories may close a circle; like the kernel, this ends where a path gets too long.
    """
    queue = [("", ROOT)]
    while queue:
        path, inode = queue.pop()
        yield path, inode
        node = nodes[inode]
        if isinstance(node, dict) and len(path) < _PATH_MAX:
            prefix = f"{path}/" if path else ""
            queue.extend((prefix + name, child) for name, child in node.items())


def tree(nodes: Nodes) -> Tree:
    found: Tree = {}
    for path, inode in walk(nodes):
        node = nodes[inode]
        found[path] = None if isinstance(node, dict) else node
    return found
