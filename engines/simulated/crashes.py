"""What may be left after a power loss: every mixture of a few owed things, and the telling ones of many.

1. Of the pending changes of directories, each survives or not: all subsets of a few; of many, the prefixes, each
   one alone and each one missing.
2. Of a file's unsynced bytes there survive: none; all; the first writes of several; a torn last write (half of it,
   or all but its last byte); the size without the data; all but one write or one page in the middle. Where data is
   missing, what was durable there is read, and NULs where nothing was. Files differ independently of each other
   while that gives few mixtures; with many, one file differs while all others have lost or kept everything.
3. Bytes whose sync failed are there or not.
4. Images that look the same are one image. The first is always the one that has lost all it may.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from attrs import evolve
from rpds import HashTrieMap

from milepost.engines.simulated.medium import (
    Chunk,
    Medium,
    Nodes,
    Symlink,
    apply,
    contents,
    overlay,
    tree,
    walk,
)

FEW_CHANGES = 4
"""Up to so many pending changes, all subsets of them are tried."""

FEW_MIXTURES = 32
"""Up to so many mixtures of the contents of files, all of them are tried."""

PAGE = 4096

Loss: TypeAlias = Literal["prefix", "torn", "nul", "hole"]
"""How a file's unsynced bytes may survive in part; that all or none of them survive is always possible."""

LOSSES: tuple[Loss, ...] = ("prefix", "torn", "nul", "hole")

Place: TypeAlias = tuple[str, bytes | Symlink | None]
"""A path and what is visible there, as in a `Tree`."""

Visible: TypeAlias = frozenset[Place]

Key: TypeAlias = tuple[object, ...]
"""Equal for two disks that no program can tell apart, now or after a crash."""


def key_of(medium: Medium) -> Key:
    visible = frozenset(tree(medium.seen).items())
    if medium.settled:
        return (visible,)
    return (
        visible,
        frozenset(tree(medium.durable).items()),
        medium.entries,
        frozenset(medium.dirty.items()),
        frozenset(medium.failed.items()),
    )


def power_losses(medium: Medium, losses: Sequence[Loss]) -> Iterator[Medium]:
    """Each state that a power loss may leave, once."""
    owed = frozenset((*medium.dirty, *medium.failed))
    variants = {inode: _variants(medium, inode, losses) for inode in owed}
    met: set[Visible] = set()
    for kept in _subsets(len(medium.entries)):
        nodes = medium.durable
        for i in kept:
            nodes = apply(nodes, medium.entries[i].changes)
        for key, image in _fill(nodes, variants):
            if key not in met:
                met.add(key)
                yield _after_crash(medium, image)


def _after_crash(medium: Medium, nodes: Nodes) -> Medium:
    return Medium(
        seen=nodes,
        durable=nodes,
        times=medium.times,
        next_inode=medium.next_inode,
        renames=medium.renames,
    )


def after_kill(medium: Medium) -> Medium:
    """Every process is gone and the kernel is not: what is seen stays, what is owed is still owed."""
    return evolve(medium, locks=HashTrieMap())


def _fill(nodes: Nodes, variants: dict[int, tuple[bytes, ...]]) -> Iterator[tuple[Visible, Nodes]]:
    """The directories of `nodes` with each mixture of contents for those files that can still be reached."""
    fixed: list[Place] = []
    open_paths: list[tuple[str, int]] = []
    for path, inode in walk(nodes):
        node = nodes[inode]
        if inode in variants:
            open_paths.append((path, inode))
        else:
            fixed.append((path, None if isinstance(node, dict) else node))
    inodes = sorted({inode for _, inode in open_paths})
    for mixture in _mixtures([variants[inode] for inode in inodes]):
        filled = dict(zip(inodes, mixture, strict=True))
        image = nodes
        for inode, data in filled.items():
            image = image.insert(inode, data)
        yield frozenset((*fixed, *((path, filled[inode]) for path, inode in open_paths))), image


def _subsets(count: int) -> Iterator[tuple[int, ...]]:
    everything = tuple(range(count))
    if count <= FEW_CHANGES:
        for size in range(count + 1):
            yield from itertools.combinations(everything, size)
        return
    yield from (everything[:size] for size in range(count + 1))
    yield from ((i,) for i in everything)
    yield from (everything[:i] + everything[i + 1 :] for i in everything)


def _mixtures(options: Sequence[tuple[bytes, ...]]) -> Iterator[tuple[bytes, ...]]:
    """Choices of one option each. An option list starts with what loses all and ends with what keeps all."""
    if math.prod(map(len, options)) <= FEW_MIXTURES:
        yield from itertools.product(*options)
        return
    for rest in (tuple(o[0] for o in options), tuple(o[-1] for o in options)):
        yield rest
        for i, several in enumerate(options):
            yield from ((*rest[:i], one, *rest[i + 1 :]) for one in several)


def _variants(medium: Medium, inode: int, losses: Sequence[Loss]) -> tuple[bytes, ...]:
    """Contents that a file may have after the power loss, the poorest first and the richest last."""
    durable = contents(medium.durable, inode)
    failed, dirty = medium.failed.get(inode, ()), medium.dirty.get(inode, ())
    chances = ((), *_partial(dirty, losses, durable), dirty)
    bases = (durable, overlay(durable, failed)) if failed else (durable,)
    found = dict.fromkeys(overlay(base, chunks) for base in bases for chunks in chances)
    richest = overlay(bases[-1], dirty)
    del found[richest]
    return (*found, richest)


def _partial(chunks: tuple[Chunk, ...], losses: Sequence[Loss], durable: bytes) -> Iterator[tuple[Chunk, ...]]:
    if not chunks:
        return
    *_, (offset, last) = chunks
    for loss in losses:
        match loss:
            case "prefix":
                yield from (chunks[:size] for size in _telling(range(1, len(chunks))))
            case "torn":
                yield from ((*chunks[:-1], (offset, last[:size])) for size in (len(last) // 2, len(last) - 1))
            case "nul":
                yield tuple(_missing(at, len(data), durable) for at, data in chunks)
                yield (*chunks[:-1], _missing(offset, len(last), durable))
            case "hole":
                for i in _telling(range(len(chunks) - 1)):
                    at, data = chunks[i]
                    yield (*chunks[:i], _missing(at, len(data), durable), *chunks[i + 1 :])
                yield from _page_holes(chunks, durable)


def _missing(at: int, size: int, durable: bytes) -> Chunk:
    """What is read where a write of `size` bytes at `at` left its room and nothing else."""
    return at, durable[at : at + size].ljust(size, b"\0")


def _page_holes(chunks: tuple[Chunk, ...], durable: bytes) -> Iterator[tuple[Chunk, ...]]:
    """All is there but one whole page that is not the last."""
    start, (at, data) = chunks[0][0], chunks[-1]
    end = at + len(data)
    first = -(-start // PAGE) * PAGE
    yield from ((*chunks, _missing(page, PAGE, durable)) for page in _telling(range(first, end - PAGE, PAGE)))


def _telling(places: range) -> Sequence[int]:
    """All of a few; of many, the first, the middle one and the last."""
    return places if len(places) <= 3 else (places[0], places[len(places) // 2], places[-1])
