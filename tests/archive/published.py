"""Published directories of a few bytes, on any disk, and a store to archive them in."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve, frozen
from blake3 import blake3

from milepost.engines.ambient import SystemAmbient
from milepost.engines.buckets import Bucket
from milepost.engines.buckets.probe import Promises, Tried
from milepost.engines.buckets.remote import Destination, Remote
from milepost.engines.checkpoints import generations, marker, released
from milepost.engines.checkpoints.manifest import Manifest, encode, folders_of, manifest_name
from milepost.engines.checkpoints.marker import SUCCESS, Marker
from milepost.engines.checkpoints.released import RELEASED
from milepost.engines.disks import Disk, write_all
from milepost.engines.simulated.bucket import SimulatedBucket
from milepost.transitions.validation import Generation
from milepost.transitions.values import FULL, Component, FileDigest, Plan, SaveId, StoredComponent, Witness

AMBIENT = SystemAmbient()
SAVE = SaveId(7, 1, 1)
NAME = SAVE.directory
KEPT = Promises(
    **dict.fromkeys(
        ("create", "swap", "overtaken_create", "overtaken_swap", "racing_creates"), Tried(kept=True, how="", seen="")
    )
)
"""What a probe of a store says that keeps everything; trying takes threads, which have no place in an enumeration."""

ONE_TRAINER = {
    "model.pt": b"weights of the model",
    "optim/__0_0.distcp": b"shard",
    "optim/.metadata": b"",
    "data.pt": b"d",
}
TWO_ROLES = {"policy/model.pt": b"policy", "critic/model.pt": b"critic, longer"}


@frozen(kw_only=True)
class Saved:
    """A published directory `path` on `disk`, and every file of it by its path."""

    disk: Disk
    path: str
    manifest: Manifest
    files: dict[str, bytes]

    @property
    def manifest_name(self) -> str:
        return manifest_name(self.manifest.plan)


def digest(data: bytes) -> str:
    return f"blake3:{blake3(data).hexdigest()}"


def write(disk: Disk, path: str, data: bytes) -> None:
    """A durable file, its directories too."""
    parts = path.split("/")
    for depth in range(1, len(parts)):
        folder = "/".join(parts[:depth])
        if disk.stat(folder) is None:
            disk.mkdir(folder)
            disk.sync_dir("/".join(parts[: depth - 1]))
    with disk.create(path) as sink:
        write_all(sink, data)
        sink.sync()
    disk.sync_dir("/".join(parts[:-1]))


def saved(
    disk: Disk,
    *,
    payload: dict[str, bytes] = ONE_TRAINER,
    plan: Plan = FULL,
    above: str = "checkpoints",
    marks: Iterable[Generation] = (),
    loose: bool = False,
) -> Saved:
    """A published save of step 7. Several roles get their marker; `marks` are its generations."""
    parts: dict[Component, list[FileDigest]] = {component: [] for component in plan}
    for path, data in payload.items():
        component = Component.OPTIMIZER if "optim" in path and Component.OPTIMIZER in plan else plan[0]
        parts[component].append(FileDigest(path=path, size=len(data), digest=digest(data)))
    components = tuple(StoredComponent(component=one, files=tuple(files)) for one, files in parts.items())
    manifest = Manifest(
        save=SAVE,
        run_ts="20260102030405",
        plan=plan,
        checkpoint_format="dcp",
        world_size=1,
        components=components,
        witness=Witness(seq=1, sum="0" * 32),
        milepost="0.0",
    )
    files = dict(payload)
    if any("/model" in path for path in payload):
        files[SUCCESS] = marker.encode(Marker(iteration=SAVE.step, counters={"critic": 1, "policy": 2}))
    files |= {generations.name_of(mark): generations.encode(SAVE, mark) for mark in marks}
    files[manifest_name(plan)] = encode(manifest)
    path = f"{above}/{NAME}"
    for name, data in files.items():
        write(disk, f"{path}/{name}", data)
    return Saved(disk=disk, path=path, manifest=manifest, files=files)


def join_generation(one: Saved, mark: Generation) -> Saved:
    """The same directory once this generation joined it."""
    name, data = generations.name_of(mark), generations.encode(SAVE, mark)
    write(one.disk, f"{one.path}/{name}", data)
    return evolve(one, files={**one.files, name: data})


def release(one: Saved, files: tuple[str, ...]) -> None:
    """What retention does."""
    write(one.disk, f"{one.path}/{RELEASED}", released.encode(SAVE, files))
    for file in files:
        one.disk.unlink(f"{one.path}/{file}")
    for folder in folders_of(files):
        if not one.disk.names(f"{one.path}/{folder}"):
            one.disk.rmdir(f"{one.path}/{folder}")


def remote(bucket: Bucket | None = None, *, prefix: str = "run/checkpoints") -> Remote:
    """A directory in a store in memory."""
    destination = Destination(endpoint="store:1", bucket="b", prefix=prefix)
    return Remote(bucket=bucket or SimulatedBucket(), destination=destination)


def on_disk(disk: Disk, path: str) -> dict[str, bytes]:
    """Every file below `path`."""
    found: dict[str, bytes] = {}
    for name in disk.names(path):
        stat = disk.stat(f"{path}/{name}")
        assert stat is not None
        if stat.kind == "dir":
            found |= {f"{name}/{inner}": data for inner, data in on_disk(disk, f"{path}/{name}").items()}
        else:
            found[name] = disk.read(f"{path}/{name}", limit=1 << 30)
    return found
