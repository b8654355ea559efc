"""A published directory into an object store: one operation, for a training run and for the command.

1. Nothing is sent to a store that does not keep its conditions (`buckets/probe.py`): fail closed.
2. The order is: the declaration, under a condition; every payload file; generations that joined since the
   declaration; the native manifest, under a condition, last; a look at every object; the receipt on the disk.
   A manifest that is visible therefore has all its payload (INV-01), and a receipt that is there has an archive.
3. Payload is hashed while it is sent, and committed only if that is the digest that was sealed. The inventory took it
   and the declared one of the same bytes, in one reading, so either proves them; blake3 holds a sender up less than
   sha256. Payload that is there already is read and hashed: a size, or what a store calls a version, proves nothing
   of an object that an earlier attempt sent. What is the declared one is not sent again; what is not is refused and
   stays (INV-02).
4. Two writers of one declaration write equal bytes, so a late request of either changes nothing.
5. Uploads that an earlier attempt left below the archive are aborted. Of two writers at the same time one may lose an
   upload by it, says `Unavailable`, and goes on when called again.
6. A directory is archived once: one that has the receipt of another destination is refused before anything is sent.
"""

from __future__ import annotations

from attrs import frozen

from milepost.engines.ambient import Ambient
from milepost.engines.archive import receipt as receipts
from milepost.engines.archive.declaration import DECLARATION, Declaration, decode, differences, encode
from milepost.engines.archive.inventory import Inventory, inventory_of, manifest_of, small_file
from milepost.engines.archive.receipt import Receipt
from milepost.engines.archive.streaming import Meter, Told, algorithm_of, file_blocks, require_object, untold
from milepost.engines.attempts import ARTIFACTS, CHECKPOINTS
from milepost.engines.buckets import SMALL_BYTES, Answer, Committed, Conflict, Unknown, Version
from milepost.engines.buckets.probe import Promises, probe
from milepost.engines.buckets.remote import Destination, Remote
from milepost.engines.checkpoints import generations
from milepost.engines.checkpoints.manifest import LIMIT_BYTES, Manifest
from milepost.engines.checkpoints.released import RECEIPT
from milepost.engines.disks import Disk
from milepost.transitions.errors import Corrupt, Refused, Unavailable
from milepost.transitions.values import FULL, FileDigest

DEADLINE_S = 120.0


@frozen(kw_only=True)
class Archived:
    """What is archived now. `sent` and `found` are the payload files that this call sent, and that it found there;
    `released` are those that are not archived as retention took them before, `left_out` names of somebody else."""

    destination: Destination
    files: int
    bytes: int
    sent: tuple[str, ...]
    found: tuple[str, ...]
    released: tuple[str, ...]
    left_out: tuple[str, ...]


def home_of(into: Remote, manifest: Manifest) -> Remote:
    """Where below `into` the directory of this manifest is archived.

    An artifact goes into `checkpoint_artifacts` where `into` is called `checkpoints`, as on a disk.
    """
    above, _, last = into.destination.prefix.rpartition("/")
    if manifest.plan != FULL and last == CHECKPOINTS:
        into = into.at(f"{above}/{ARTIFACTS}" if above else ARTIFACTS)
    return into.below(manifest.save.directory)


def publish(
    disk: Disk,
    path: str,
    into: Remote,
    *,
    ambient: Ambient,
    promises: Promises | None = None,
    told: Told = untold,
) -> Archived:
    """Archive the published directory `path` below `into`, as `<into>/iter_*`; safe to call again after any failure.

    `promises` is what a probe of this store saw before; None tries the store now. Raises `Refused` for what is no
    published directory, is archived elsewhere or meets another inventory; `Corrupt` for local or remote bytes that
    are not what they should be; `Misconfigured` for a store that cannot be relied on; `Unavailable`; `OSError`.
    """
    manifest, _ = manifest_of(disk, path)
    home = home_of(into, manifest)
    _require_unarchived(disk, path, home)
    inventory = inventory_of(disk, path, ambient=ambient, told=told)
    if promises is None:
        promises = probe(home.bucket, home.start, ambient=ambient)
    promises.require(home.where(""))
    publishing = _Publishing(disk, path, home, inventory)
    publishing.declare()
    publishing.clear_leftovers()
    sent, found = publishing.send_payload(Meter(told, doing="sending", total=publishing.size, ambient=ambient))
    publishing.send_joined()
    publishing.commit()
    publishing.verify(Meter(told, doing="proving", total=publishing.size, ambient=ambient))
    publishing.write_receipt()
    return Archived(
        destination=home.destination,
        files=len(publishing.declared.files) + 1,
        bytes=publishing.size + publishing.declared.manifest.size,
        sent=sent,
        found=found,
        released=tuple(file for file in inventory.released if file not in publishing.paths),
        left_out=inventory.left_out,
    )


def _require_unarchived(disk: Disk, path: str, home: Remote) -> None:
    marked = receipts.find(disk, path)
    if isinstance(marked, Receipt) and marked.destination != home.destination:
        raise Refused(
            f"{disk.where(path)} was archived at {marked.destination}, as its {RECEIPT} says; not again at "
            f"{home.destination}: use `milepost copy` between stores"
        )


class _Publishing:
    """One call of `publish`. Until `declare`, what is declared is what lies here."""

    def __init__(self, disk: Disk, path: str, home: Remote, inventory: Inventory) -> None:
        self.disk = disk
        self.path = path
        self.home = home
        self.inventory = inventory
        self.declared: Declaration = inventory.declaration
        self._versions: dict[str, Version] = {}

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(file.path for file in self.declared.files)

    @property
    def size(self) -> int:
        """Bytes of what is declared, without the manifest."""
        return sum(file.size for file in self.declared.files)

    def declare(self) -> None:
        """Say what the archive will hold, or find that it was said before."""
        data = encode(self.declared)
        if (largest := max(len(data), len(self.inventory.data))) > SMALL_BYTES:
            raise Refused(
                f"{self.disk.where(self.path)}: its manifest or its declaration has {largest} bytes; a store takes "
                f"at most {SMALL_BYTES} under a condition. Nothing was sent; save it in fewer files"
            )
        answer = self._create(DECLARATION, data)
        if isinstance(answer, Conflict) and answer.found is not None and answer.version is not None:
            where = self.home.where(DECLARATION)
            found = decode(answer.found, where=where)
            differ = differences(found, self.declared, released=self.inventory.released)
            if differ:
                raise Refused(
                    f"{where}: another inventory is declared there: {'; '.join(differ)}. Nothing was sent; archive "
                    "this directory under another prefix"
                )
            self.declared = found
            self._versions[DECLARATION] = answer.version
            return
        self._versions[DECLARATION] = self._committed(answer, DECLARATION, len(data))

    def clear_leftovers(self) -> None:
        """Free what the store holds of uploads that an earlier attempt did not end."""
        for leftover in self.home.bucket.uploads(self.home.start):
            if leftover.key.removeprefix(self.home.start) in self.paths:
                self.home.bucket.abort_upload(leftover)

    def send_payload(self, meter: Meter) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Every declared file but the manifest: those that were sent, and those that were there."""
        sent: list[str] = []
        found: list[str] = []
        for file in self.declared.files:
            if self.home.bucket.stat(self.home.key(file.path)) is not None:
                self._versions[file.path] = require_object(self.home, file, meter=meter)
                found.append(file.path)
            elif file.path in self.inventory.released:
                raise Refused(
                    f"{self.home.where(file.path)}: it was declared, was never sent, and retention took it from "
                    f"{self.disk.where(self.path)} since: this archive cannot be completed"
                )
            else:
                self._versions[file.path] = self._send(file, meter)
                sent.append(file.path)
        return tuple(sent), tuple(found)

    def _send(self, file: FileDigest, meter: Meter) -> Version:
        local, key = f"{self.path}/{file.path}", self.home.key(file.path)
        proof = self.inventory.proofs.get(file.path, file.digest)
        with (
            self.disk.open(local, bulk=True) as source,
            self.home.bucket.upload(key, size_hint=file.size, digest=algorithm_of(proof)) as upload,
        ):
            for block in file_blocks(source):
                upload.write(block)
                meter.add(len(block), path=file.path)
            if upload.digest != proof:
                raise Corrupt(
                    f"{self.disk.where(local)}: expected the proven {proof}, read {upload.digest} while it "
                    "was sent. Nothing of it was committed; the disk or the memory of this machine changed its bytes"
                )
            return upload.commit()

    def send_joined(self) -> None:
        """Generations that joined the directory after it was declared: each proves itself, and joins there too."""
        for file in self.inventory.declaration.files:
            if file.path in generations.names and file.path not in self.paths:
                data = self.disk.read(f"{self.path}/{file.path}", limit=LIMIT_BYTES)
                self._committed(self._create(file.path, data), file.path, len(data))

    def commit(self) -> None:
        """The manifest: from here on the archive is one."""
        file, data = self.declared.manifest, self.inventory.data
        assert small_file(file.path, data) == file, "the manifest that was inventoried is the one that is sent"
        self._versions[file.path] = self._committed(self._create(file.path, data), file.path, len(data))

    def verify(self, meter: Meter) -> None:
        """Every object is still there as it was proven or sent, or is proven again; else `Corrupt` names it."""
        for file in receipt_of(self.home, self.declared).objects:
            stat = self.home.bucket.stat(self.home.key(file.path))
            if stat is None or stat.size != file.size or stat.version != self._versions[file.path]:
                require_object(self.home, file, meter=meter)

    def write_receipt(self) -> None:
        receipts.write(self.disk, self.path, receipt_of(self.home, self.declared))

    def _create(self, path: str, data: bytes) -> Answer:
        return self.home.bucket.create(self.home.key(path), data, deadline_s=DEADLINE_S)

    def _committed(self, answer: Answer, path: str, size: int) -> Version:
        match answer:
            case Committed(version=version):
                return version
            case Conflict(found=found):
                held = "nothing" if found is None else f"{len(found)} bytes"
                raise Corrupt(
                    f"{self.home.where(path)}: expected nothing or these {size} bytes, found {held} that are others. "
                    "They were not replaced; archive this directory under another prefix"
                )
            case Unknown(why=why):
                raise Unavailable(f"{why}: whether {path} is there cannot be said; publish again")


def receipt_of(home: Remote, declared: Declaration) -> Receipt:
    """The receipt of an archive of this declaration."""
    return Receipt(
        destination=home.destination,
        declaration=small_file(DECLARATION, encode(declared)),
        manifest=declared.manifest,
        files=declared.files,
    )
