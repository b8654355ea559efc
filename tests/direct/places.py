"""Checkpoints in a bucket, their writers one after another, and saves made by the verbs alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from attrs import define, frozen

from milepost.engines.buckets import Bucket
from milepost.engines.buckets.reading import BucketDisk
from milepost.engines.checkpoints import direct_names
from milepost.engines.checkpoints.direct import DirectCheckpoints
from milepost.engines.checkpoints.local import POINTER
from milepost.engines.checkpoints.manifest import ARTIFACT, MANIFEST, Manifest, decode
from milepost.engines.checkpoints.parts import component_of, tree_of
from milepost.engines.digests import digest_of
from milepost.engines.formats import stream
from milepost.engines.formats.dcp import Planner, Shards, metadata_file, plan_together
from milepost.engines.relay import DEPTH
from milepost.engines.simulated.bucket import BucketProcess, SimulatedBucket
from milepost.transitions.errors import Fenced
from milepost.transitions.values import FULL, FileDigest, Plan, SaveId, StoredComponent, Witness

BASE = "proj/run"
ROOT, ARTIFACTS = f"{BASE}/checkpoints", f"{BASE}/checkpoint_artifacts"
SAVE = SaveId(7, 1, 1)
TREES = {"model": {"w": torch.arange(4.0)}, "optim": {"m": torch.ones(3)}, "trainer": {"s": 7}, "data": {"at": 1}}
FOLDERS = ("model", "optim")


@define
class Claims:
    """Who claimed the run last: the one thing that the writers of a test share beside the bucket."""

    epoch: int = 0
    looked: Callable[[], None] = lambda: None
    """Called at the beginning of every look at a fence."""

    def claim(self) -> Callable[[], None]:
        """The fence of a new writer."""
        self.epoch += 1
        mine = self.epoch

        def fence() -> None:
            self.looked()
            if self.epoch != mine:
                raise Fenced(f"epoch {self.epoch} took over from {mine}")

        return fence


@frozen
class Writer:
    """A process of its own that writes checkpoints."""

    bucket: BucketProcess
    checkpoints: DirectCheckpoints


def writer(store: SimulatedBucket, claims: Claims, name: str = "one") -> Writer:
    bucket = store.process(name)
    return Writer(bucket, direct(bucket, claims.claim()))


def direct(bucket: Bucket, fence: Callable[[], None] = lambda: None) -> DirectCheckpoints:
    return DirectCheckpoints(bucket=bucket, root=ROOT, artifacts=ARTIFACTS, fence=fence)


def stored(checkpoints: DirectCheckpoints, save: SaveId = SAVE, *, plan: Plan = FULL) -> Manifest:
    """The payload of a save, up to its manifest, which is given back."""
    wanted = {name: tree for name, tree in TREES.items() if component_of(name) in plan}
    checkpoints.stage(save, size=1, plan=plan)
    files: list[FileDigest] = []
    for name in FOLDERS:
        if name in wanted:
            tree = {key: value + save.counter for key, value in wanted.pop(name).items()}
            shards = Shards(name, tree, coordinator=True, planner=Planner())
            together = plan_together([shards.plan])
            image = shards.image(together.plans[0], rank=0, prefix=str(save))
            files.append(checkpoints.put(save, image, plan=plan))
            data = metadata_file(together, [image.entries])
            files.append(checkpoints.put_bytes(save, f"{name}/.metadata", data, plan=plan))
    files.extend(checkpoints.put(save, image, plan=plan) for image in stream(wanted))
    components = tuple(
        StoredComponent(component=one, files=tuple(file for file in files if component_of(tree_of(file.path)) is one))
        for one in plan
    )
    return manifest_of(save, plan, components)


@frozen
class Small:
    """An `Image` of these few bytes."""

    name: str
    data: bytes

    @property
    def room(self) -> int:
        return len(self.data)

    @property
    def depth(self) -> int:
        return DEPTH

    def blocks(self, *, crc32: bool = False) -> Iterator[memoryview]:
        yield memoryview(self.data)


def small(checkpoints: DirectCheckpoints, save: SaveId) -> Manifest:
    """The payload of a full save in a few requests: one shard in two parts, its metadata, and another file."""
    checkpoints.stage(save, size=1)
    shard = checkpoints.put(save, Small(f"model/{save}__0_0.distcp", f"weights {save}".encode()))
    metadata = checkpoints.put_bytes(save, "model/.metadata", f"metadata {save}".encode())
    trainer = checkpoints.put(save, Small("trainer.pt", f"t{save}".encode()))
    held = ((shard, metadata), (), (trainer,))
    components = tuple(StoredComponent(component=one, files=files) for one, files in zip(FULL, held, strict=True))
    return manifest_of(save, FULL, components)


def manifest_of(save: SaveId, plan: Plan, components: tuple[StoredComponent, ...]) -> Manifest:
    return Manifest(
        save=save,
        run_ts="20260102030405",
        plan=plan,
        checkpoint_format="dcp",
        world_size=1,
        components=components,
        witness=Witness(seq=save.step * 10 + save.counter, sum="ab"),
        milepost="0.1.0",
    )


def saved(
    checkpoints: DirectCheckpoints, save: SaveId = SAVE, *, plan: Plan = FULL, pending: bool = False
) -> Manifest:
    """A published save."""
    manifest = stored(checkpoints, save, plan=plan)
    checkpoints.seal(manifest, pending=pending)
    return manifest


def manifests(store: SimulatedBucket) -> dict[str, Manifest]:
    """Every visible manifest by its key, tombstones passed over; each is held against its files, byte by byte."""
    found = {}
    disk = BucketDisk(SimulatedBucket(store.key()))
    for key, data in store.tree().items():
        folder, _, name = key.rpartition("/")
        if name not in (MANIFEST, ARTIFACT) or direct_names.revoked(data, where=key) is not None:
            continue
        found[key] = decode(data, where=key)
        for file in found[key].files:
            with disk.open(f"{folder}/{file.path}") as source:
                assert (source.size, digest_of(source)) == (file.size, file.digest), f"{key}: {file.path}"
    return found


def pointed(store: SimulatedBucket) -> str:
    return store.tree().get(f"{ROOT}/{POINTER}", b"").decode().strip()
