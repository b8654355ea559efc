"""The declaration of an archive, `.posttrain-archive.json`: what it will hold, said before any of it is sent.

1. It binds path, size and sha256 of every file of the directory: payload with every shard, generations, the release
   marker, `_SUCCESS`, and the native manifest by its own digest.
2. It is created under a condition and never replaced. Its bytes follow from the directory, so that whoever tries
   again finds his own; any other inventory is refused before any payload (INV-02).
3. Two things may happen to a directory after it was declared, and they make it no other one: successor generations
   join it, and retention takes what the release marker names. What was declared then stays what is archived.
4. It stays after an attempt that was interrupted, and can be used for no other contents.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from milepost.engines.checkpoints import generations
from milepost.engines.checkpoints.manifest import require_inside
from milepost.engines.checkpoints.proven import Form
from milepost.engines.checkpoints.released import RELEASED
from milepost.transitions.values import FileDigest

DECLARATION = ".posttrain-archive.json"
FORMAT = "milepost.archive.v1"


@frozen(kw_only=True)
class Declaration:
    """`manifest` is the native manifest's file, `files` are all others, sorted by path; digests are sha256."""

    manifest: FileDigest
    files: tuple[FileDigest, ...]


_FORM = Form(content=Declaration, tag=FORMAT, called="the declaration of an archive")


def encode(declaration: Declaration) -> bytes:
    """The bytes of the declaration's file."""
    return _FORM.encode(declaration)


def decode(data: bytes, *, where: str) -> Declaration:
    """The declaration of these bytes; `Corrupt` where one of them is wrong, `NewerVersion` for a later format."""
    declaration = _FORM.decode(data, where=where)
    require_inside((file.path for file in (declaration.manifest, *declaration.files)), where=where)
    return declaration


def differences(declared: Declaration, own: Declaration, *, released: Iterable[str]) -> tuple[str, ...]:
    """What `own`, a directory that released these files, is other than what was declared; rule 3 is no difference."""
    gone = frozenset(released)
    theirs = {file.path: file for file in (declared.manifest, *declared.files)}
    mine = {file.path: file for file in (own.manifest, *own.files)}
    found: list[str] = []
    for path in sorted(theirs.keys() | mine.keys()):
        if path not in mine:
            if path not in gone:
                found.append(f"{path} is declared and not here")
        elif path not in theirs:
            if path not in (*generations.names, RELEASED):
                found.append(f"{path} is here and not declared")
        elif mine[path] != theirs[path]:
            found.append(f"{path} is declared with {_told(theirs[path])}, here it has {_told(mine[path])}")
    return tuple(found)


def _told(file: FileDigest) -> str:
    return f"{file.size} bytes and {file.digest}"
