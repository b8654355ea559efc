"""A log on a disk, and writers that follow one another on it: open, train, rotate, acknowledge."""

from __future__ import annotations

from milepost.engines.disks import Disk
from milepost.engines.logs.segments import SegmentLog
from milepost.journal.log.foldcache import FoldCache
from milepost.journal.log.replay import fold
from milepost.transitions.run import SegmentOpened
from milepost.transitions.saving import ComponentStored, SaveOpened, SaveSealed
from milepost.transitions.values import FULL, FileDigest, Mode, Reason, SaveId, Witness
from tests.log.chains import RESUMED, Chain, applied, opened


class Run:
    """A log on a disk with a writer that can be followed by another."""

    def __init__(self, disk: Disk, *, segment_bytes: int = 1 << 20) -> None:
        self.disk = disk
        self.log = SegmentLog(disk, segment_bytes=segment_bytes)
        self.cache = FoldCache(disk)
        self.chain = Chain()
        self.attempts = 0

    def open(self, *, cached: bool = False) -> None:
        self.appender = self.log.claim()
        folded = fold(self.log, below=self.appender.number, cache=self.cache if cached else None)
        self.log.resync(folded.read, folded.closes)
        self.chain = Chain(folded.head, epoch=folded.state.run.epoch + 1)
        self.attempts = 0
        self.put(self.chain.opening(self.appender.number, *folded.closes))
        self.appender.sync()
        self.put(self.chain.line(RESUMED, synced=self.appender.synced))

    def put(self, line: bytes) -> None:
        self.appender.append(line, seq=self.chain.head.seq)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.attempts += 1
            for record in (opened(self.attempts), applied(self.attempts)):
                if not self.appender.has_room(400):
                    self.rotate()
                self.put(self.chain.line(record, synced=self.appender.synced))

    def save(self, step: int) -> None:
        save = SaveId(step, self.chain.epoch, step)
        manifest = FileDigest(path="m", size=1, digest="blake3:0")
        self.put(
            self.chain.line(
                SaveOpened(save=save, plan=FULL, reason=Reason.CADENCE, mode=Mode.SYNCHRONOUS, why=""),
                *(ComponentStored(save=save, component=component, files=(manifest,)) for component in FULL),
                SaveSealed(save=save, manifest=manifest),
            )
        )

    def rotate(self) -> None:
        number = self.appender.number
        closes = self.chain.closing(number, self.appender.size)
        header = self.chain.line(SegmentOpened(number=number + 1, closes=(closes,)), synced=self.appender.synced)
        self.appender.rotate(header, seq=self.chain.head.seq)

    def keep(self) -> int:
        """Store the cache of everything so far; how many entries that is."""
        self.appender.sync()
        folded = fold(self.log)
        self.cache.store(folded.end, folded.state)
        return folded.head.seq

    def agree(self) -> int:
        """Fold with and without the cache, compare, and say how many entries the cache spared."""
        plain, cached = fold(self.log), fold(self.log, cache=self.cache)
        assert (cached.state, cached.end, cached.closes, cached.torn, cached.read) == (
            plain.state,
            plain.end,
            plain.closes,
            plain.torn,
            plain.read,
        )
        return plain.entries - cached.entries

    def acknowledge(self) -> Witness | None:
        """The durable head, as a caller may be told of it; None where this writer was overtaken."""
        self.appender.sync()
        head = self.chain.head
        return None if self.appender.fenced() else Witness(seq=head.seq, sum=head.sum)
