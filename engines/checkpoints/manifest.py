"""The manifest: the last file of a published save, and the one that says it is whole (INV-01).

    .posttrain-manifest.json              milepost.manifest.v1    a checkpoint: the full plan, and no other
    .posttrain-checkpoint-artifact.json   milepost.artifact.v1    an artifact: any other plan (INV-05)

1. It lists every payload file with its size and digest. Paths are relative: a copied checkpoint stays whole.
2. It proves itself without a journal (`proven.py`), and its format tag and its plan agree on what it is of.
3. `witness` is the durable head of the journal at the sealing: a journal that ends before it has lost its head.
"""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen
from blake3 import blake3

from milepost.engines.checkpoints.proven import Form, decode_one_of
from milepost.engines.disks.paths import split_last
from milepost.transitions.errors import Corrupt
from milepost.transitions.values import FULL, FileDigest, Plan, SaveId, StoredComponent, Witness, union

MANIFEST = ".posttrain-manifest.json"
ARTIFACT = ".posttrain-checkpoint-artifact.json"
FORMAT = "milepost.manifest.v1"
ARTIFACT_FORMAT = "milepost.artifact.v1"
LIMIT_BYTES = 64 << 20


@frozen(kw_only=True)
class Manifest:
    """What a published save holds and who made it."""

    save: SaveId
    run_ts: str
    plan: Plan
    checkpoint_format: str
    world_size: int
    components: tuple[StoredComponent, ...]
    witness: Witness
    milepost: str

    @property
    def files(self) -> tuple[FileDigest, ...]:
        return tuple(file for part in self.components for file in part.files)


_CHECKPOINT = Form(content=Manifest, tag=FORMAT, called="a manifest")
_PARTIAL = Form(content=Manifest, tag=ARTIFACT_FORMAT, called="an artifact's manifest")


def manifest_name(plan: Plan) -> str:
    """The name under which the manifest of a save of this plan lies."""
    return MANIFEST if plan == FULL else ARTIFACT


def encode(manifest: Manifest) -> bytes:
    """The bytes of the manifest's file."""
    return (_CHECKPOINT if manifest.plan == FULL else _PARTIAL).encode(manifest)


def decode(data: bytes, *, where: str) -> Manifest:
    """The manifest of these bytes; `Corrupt` where one of them is wrong, `NewerVersion` for a later format."""
    form, manifest = decode_one_of((_CHECKPOINT, _PARTIAL), data, where=where)
    plan = manifest.plan
    if not plan or plan != union(plan) or (plan == FULL) is not (form is _CHECKPOINT):
        expected = (
            "every component" if form is _CHECKPOINT else "some components, once and in order, and not every one"
        )
        found = ", ".join(component.value for component in plan) or "none"
        raise Corrupt(f"{where}: expected {form.called} to plan {expected}, found {found}")
    require_inside((file.path for file in manifest.files), where=where)
    return manifest


def require_inside(paths: Iterable[str], *, where: str) -> None:
    """`Corrupt` for a path that leads out of the directory which the file at `where` speaks of."""
    for path in paths:
        try:
            split_last(path)
        except ValueError as error:
            raise Corrupt(f"{where}: expected paths inside the checkpoint, found {path!r}: {error}") from error


def folders_of(paths: Iterable[str]) -> tuple[str, ...]:
    """Every directory that these relative paths lie in, without their root, and each before the one it lies in."""
    found = {path.rsplit("/", count)[0] for path in paths for count in range(1, path.count("/") + 1)}
    return tuple(sorted(found, key=lambda folder: (-folder.count("/"), folder)))


def digest_of(data: bytes, *, name: str = MANIFEST) -> FileDigest:
    """The manifest's own digest, as `save-sealed` and `artifact-sealed` record it."""
    return FileDigest(path=name, size=len(data), digest=f"blake3:{blake3(data).hexdigest()}")
