"""A publish of an application's checkpoint on the crashing disk, and what has to be true of what is left of it."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress

from milepost.engines.applications import MANIFEST, CheckpointManifest
from milepost.engines.applications.files import TEMPORARY
from milepost.engines.disks import Disk, write_all
from milepost.engines.simulated import Fault, Process, SimulatedDisk, fault_at, no_fault
from milepost.transitions.errors import NotACheckpoint, Refused, Unavailable

DIRECTORY = "step-7"
FILES = {"model-00000-of-00002.pt": b"first shard", "model-00001-of-00002.pt": b"second shard"}
NAMES = tuple(FILES)
METADATA = {"epoch": 3}
OTHER = {"epoch": 4}
FAULTS = (
    Fault(error=errno.EIO),
    Fault(error=errno.EIO, done=True),
    Fault(error=errno.ENOSPC),
)


def saved(disk: Disk) -> None:
    """What the application leaves: files in a new directory, none of it synced."""
    disk.mkdir(DIRECTORY)
    for name, data in FILES.items():
        with disk.create(f"{DIRECTORY}/{name}") as sink:
            write_all(sink, data)


def publish(disk: Disk, *, nonce: str = "1", metadata: dict[str, int] = METADATA) -> CheckpointManifest:
    return CheckpointManifest.publish(DIRECTORY, artifacts=NAMES, metadata=metadata, disk=disk, nonce=nonce)


def load(disk: Disk) -> CheckpointManifest:
    return CheckpointManifest.load(DIRECTORY, artifacts=NAMES, disk=disk)


def manifest_in(disk: SimulatedDisk) -> bytes | None:
    data = disk.tree().get(f"{DIRECTORY}/{MANIFEST}")
    assert data is None or isinstance(data, bytes)
    return data


def left_behind(disk: SimulatedDisk) -> list[str]:
    return [path for path in disk.tree() if path.startswith(f"{DIRECTORY}/{TEMPORARY}")]


def require_whole(disk: SimulatedDisk) -> bytes | None:
    """INV-01, from the bytes alone: a visible manifest and each file that it names; None where none is visible."""
    data = manifest_in(disk)
    if data is None:
        return None
    document = json.loads(data)
    assert document["artifacts"].keys() == FILES.keys()
    for name, stated in document["artifacts"].items():
        content = disk.tree().get(f"{DIRECTORY}/{name}")
        assert isinstance(content, bytes), f"the manifest is visible and {name} is not"
        assert (len(content), hashlib.sha256(content).hexdigest()) == (stated["size"], stated["sha256"]), name
    return data


def states(disk: SimulatedDisk, begun: int) -> Iterator[tuple[SimulatedDisk, tuple[tuple[object, ...], ...]]]:
    """Every state that a crash from entry `begun` on may leave, with what was told by then, each once."""
    met = set()
    for length in (cut for cut in disk.cuts() if cut >= begun):
        told = disk.marks(length)
        for image in (*disk.crash_images(length), disk.killed(length)):
            if (key := (image.key(), told)) not in met:
                met.add(key)
                yield image, told


def require_kept(disk: SimulatedDisk, begun: int, *, visible: bytes | None = None) -> None:
    """Whatever a crash leaves: whole or not there; there and unchanged, where that was told or `visible` at first."""
    for image, told in states(disk, begun):
        data = require_whole(image)
        assert data in (visible, None) or visible is None
        for promised in told:
            assert data == promised[0], "a manifest that was told of is gone, or is another one"


def crash_everywhere() -> None:
    """Every crash of a publish, then of the load or the publish after it, and what is told stays (INV-14)."""
    disk = SimulatedDisk()
    saved(disk)
    publish(disk)
    disk.mark(manifest_in(disk))
    seen = {require_whole(image) is not None for image, _ in states(disk, 0)}
    assert seen == {True, False}
    require_kept(disk, 0)
    for image, told in states(disk, 0):
        if set(FILES) <= {path.rpartition("/")[2] for path in image.tree()}:
            _go_on(image, acknowledged=bool(told))


def _go_on(image: SimulatedDisk, *, acknowledged: bool) -> None:
    """After a crash: load tells what there is, and the same publish finishes it or is refused."""
    before, whole = manifest_in(image), _are_whole(image)
    begun, had = len(image.trace), bool(left_behind(image))
    try:
        load(image)
        image.mark(before)
    except NotACheckpoint:
        assert before is None
    require_kept(image, begun, visible=before)
    if before is not None:
        with suppress(Refused):
            publish(image.killed(), nonce="3", metadata=OTHER)
            raise AssertionError("other content was published over a manifest")
    if not whole:
        return
    begun = len(image.trace)
    try:
        publish(image, nonce="2")
        image.mark(manifest_in(image))
        assert not left_behind(image)
        assert before is None or had
    except Refused:
        assert before is not None
        assert not had
    require_kept(image, begun, visible=before)
    assert acknowledged is False or manifest_in(image) == before


def _are_whole(image: SimulatedDisk) -> bool:
    tree = image.tree()
    return all(tree.get(f"{DIRECTORY}/{name}") == data for name, data in FILES.items())


def fail_everywhere() -> None:
    """Every operation of a publish fails in every way: nothing was published, or the same publish settles it."""
    disk = SimulatedDisk()
    saved(disk)
    begun = len(disk.trace)
    publish(disk)
    for index in range(begun, len(disk.trace)):
        for fault in FAULTS:
            _fail_at(index, fault)


def _fail_at(index: int, fault: Fault) -> None:
    disk = SimulatedDisk()
    saved(disk)
    disk.hardware.faults = fault_at({index: fault})
    try:
        publish(disk)
    except Unavailable as error:
        disk.hardware.faults = no_fault
        _settle(disk, str(error))
    else:
        hit = disk.trace[index]
        silent = hit.verb in ("names", "unlink") and manifest_in(disk) is not None
        assert silent or hit.error == errno.ENOENT, f"{hit.verb} failed and nobody was told"
        disk.mark(manifest_in(disk))
        require_kept(disk, len(disk.trace) - 1)


def _settle(disk: SimulatedDisk, told: str) -> None:
    before = manifest_in(disk)
    require_kept(disk, len(disk.trace), visible=before)
    if "nothing was published" in told.lower():
        assert before is None
        assert not left_behind(disk) or disk.trace[-1].verb == "create", "its temporary stays for no reason"
        for image in disk.crash_images():
            assert manifest_in(image) is None
        return
    assert "unknown" in told
    published = publish(disk, nonce="2")
    assert before is None or manifest_in(disk) == before
    assert published == load(disk)
    assert not left_behind(disk)
    disk.mark(manifest_in(disk))
    require_kept(disk, len(disk.trace) - 1, visible=manifest_in(disk))


def race_everywhere() -> None:
    """A second publisher, of equal or of other content, runs whole before each operation of the first one."""
    disk = SimulatedDisk()
    saved(disk)
    begun = len(disk.trace)
    publish(disk)
    for index in range(begun, len(disk.trace)):
        for metadata in (METADATA, OTHER):
            _race_at(index, metadata)


def _race_at(index: int, metadata: dict[str, int]) -> None:
    disk = SimulatedDisk()
    saved(disk)
    first, second = disk.process("first"), disk.process("second")
    won: list[CheckpointManifest] = []

    def before(name: str, _verb: str, _path: str) -> None:
        if name == "first" and len(disk.trace) == index:
            disk.hardware.before = None
            _try(second, won, nonce="second", metadata=metadata)

    disk.hardware.before = before
    _try(first, won, nonce="first", metadata=METADATA)
    assert won, "of two publishers one has to succeed"
    assert {one.identity for one in won} == {load(disk).identity}, "two were told of different checkpoints"
    assert not left_behind(disk), "who is refused takes his temporary along"
    disk.mark(manifest_in(disk))
    require_kept(disk, len(disk.trace) - 1, visible=manifest_in(disk))


def _try(process: Process, won: list[CheckpointManifest], *, nonce: str, metadata: dict[str, int]) -> None:
    with suppress(Refused):
        won.append(publish(process, nonce=nonce, metadata=metadata))
