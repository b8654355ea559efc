"""Paths on a medium, with the errors of the kernel and of the local disk; a symlink is refused, never followed."""

from __future__ import annotations

import errno
import os

from milepost.engines.simulated.medium import (
    ROOT,
    Born,
    Change,
    Medium,
    Moved,
    Node,
    Nodes,
    Symlink,
    folder_of,
)

Parts = tuple[str, ...]

_NAME_MAX = 255


def refusal(code: int) -> OSError:
    """Typed by its errno; the caller adds the path."""
    return OSError(code, os.strerror(code))


def folder_at(nodes: Nodes, parts: Parts) -> int:
    """The inode of a directory; ENOENT, ENOTDIR or ELOOP."""
    inode = ROOT
    for part in parts:
        inode = existing(nodes, inode, part)
        if not isinstance(nodes[inode], dict):
            raise refusal(errno.ENOTDIR)
    return inode


def entry(nodes: Nodes, folder: int, name: str) -> int | None:
    """What `name` is in the directory, None if it is nothing."""
    if len(os.fsencode(name)) > _NAME_MAX:
        raise refusal(errno.ENAMETOOLONG)
    return folder_of(nodes, folder).get(name)


def existing(nodes: Nodes, folder: int, name: str) -> int:
    """What `name` is in the directory; ENOENT, or ELOOP for a symlink."""
    inode = entry(nodes, folder, name)
    if inode is None:
        raise refusal(errno.ENOENT)
    if isinstance(nodes[inode], Symlink):
        raise refusal(errno.ELOOP)
    return inode


def at(nodes: Nodes, parts: Parts) -> int:
    """The inode of a file or directory."""
    return existing(nodes, folder_at(nodes, parts[:-1]), parts[-1]) if parts else ROOT


def file_at(nodes: Nodes, parts: Parts) -> int:
    """The inode of a file; EISDIR for a directory."""
    inode = at(nodes, parts)
    if isinstance(nodes[inode], dict):
        raise refusal(errno.EISDIR)
    return inode


def birth(medium: Medium, parts: Parts, node: Node) -> Born:
    """A new file or directory; EEXIST where the name is taken."""
    folder = folder_at(medium.seen, parts[:-1])
    if entry(medium.seen, folder, parts[-1]) is not None:
        raise refusal(errno.EEXIST)
    inode = medium.next_inode
    return Born(inode=inode, node=node, entry=Change(folder=folder, name=parts[-1], inode=inode))


def removal(medium: Medium, parts: Parts) -> Moved:
    folder = folder_at(medium.seen, parts[:-1])
    return Moved(changes=(Change(folder=folder, name=parts[-1], inode=None),))


def move(medium: Medium, source: Parts, target: Parts, *, replace: bool) -> Moved | None:
    """rename(2), or with RENAME_NOREPLACE; None where both names are the same file already."""
    nodes = medium.seen
    old_folder, new_folder = folder_at(nodes, source[:-1]), folder_at(nodes, target[:-1])
    moving = existing(nodes, old_folder, source[-1])
    there = entry(nodes, new_folder, target[-1])
    if there is not None:
        if not replace:
            raise refusal(errno.EEXIST)
        if there == moving:
            return None
    if target[: len(source)] == source:
        raise refusal(errno.EINVAL)
    if source[: len(target)] == target:
        raise refusal(errno.ENOTEMPTY)
    if there is not None:
        _check_replacing(nodes, moving, there)
    return Moved(
        changes=(
            Change(folder=old_folder, name=source[-1], inode=None),
            Change(folder=new_folder, name=target[-1], inode=moving),
        )
    )


def _check_replacing(nodes: Nodes, moving: int, there: int) -> None:
    old, new = nodes[moving], nodes[there]
    if isinstance(new, Symlink):
        raise refusal(errno.ELOOP)
    if isinstance(old, dict) and not isinstance(new, dict):
        raise refusal(errno.ENOTDIR)
    if isinstance(new, dict) and not isinstance(old, dict):
        raise refusal(errno.EISDIR)
    if isinstance(new, dict) and new:
        raise refusal(errno.ENOTEMPTY)
