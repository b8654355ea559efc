"""A checkpoint into a store and back, the memory that takes, and how long a journal in a bucket takes to open."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path

from benchmarks.machine import reset_peak, status
from benchmarks.measuring import Bar, Case, Figure, Options, Sample, timed
from benchmarks.savers import Milepost
from benchmarks.sink import Sink
from benchmarks.state import State
from benchmarks.transfers import AMBIENT, Transfers, stream
from milepost.engines.buckets import Bucket
from milepost.engines.buckets.probe import Promises, Tried, probe
from milepost.engines.buckets.remote import open_remote
from milepost.engines.logs.slots import SlotLog
from milepost.engines.simulated.bucket import SimulatedBucket
from milepost.journal.log.entries import GENESIS, pack
from milepost.journal.log.replay import fold
from milepost.transitions.machine import Record
from milepost.transitions.run import RunOpened, RunResumed, SegmentOpened
from milepost.transitions.updates import UpdateApplied, UpdateOpened
from milepost.transitions.values import Clocks, ResumeKind
from tests.buckets.servers import SeaweedFS

SINK, SEAWEED, SIMULATED = "sink", "SeaweedFS", "simulated bucket"
OURS = {"upload": "milepost publish", "download": "milepost fetch"}
PEER = "boto3 transfer manager + sha256"
ALIKE = "boto3 transfer manager with our signer + sha256"
WRITER, READER, STREAM = "memory: publish", "memory: fetch", "memory: direct upload"

_REAL_SHARE = 4
"""The real store gets a checkpoint of a quarter of the size: 512 MiB."""
_ENTRIES_A_BATCH = 10
_LIMIT_BYTES = float(256 << 20)
_TAKEN = Tried(kept=True, how="", seen="")
_KEPT = Promises(create=_TAKEN, swap=_TAKEN, overtaken_create=_TAKEN, overtaken_swap=_TAKEN, racing_creates=_TAKEN)


@contextmanager
def buckets(options: Options) -> Iterator[Figure]:
    """See the bars. Without SeaweedFS its cases are left out, and the figure says so."""
    entries = options.entries[0]
    large = _checkpoint(options.mib, options.scratch / "large")
    with ExitStack() as undo:
        sink = undo.enter_context(Sink(options.scratch, source=large))
        scratch = options.scratch / "from-sink"
        scratch.mkdir()
        stores = {
            SINK: Transfers(
                bucket=sink.bucket,
                credentials=sink.credentials,
                checkpoint=large,
                scratch=scratch,
                promises=_KEPT,
            )
        }
        logs: dict[str, Bucket] = {SIMULATED: SimulatedBucket()}
        missing = SeaweedFS.unavailable()
        if missing is None:
            folder = options.scratch / "seaweed"
            folder.mkdir()
            server = undo.enter_context(SeaweedFS(folder))
            credentials = server.credentials()
            remote = open_remote(f"s3://{server.bucket}/probe", credentials=credentials, ambient=AMBIENT)
            stores[SEAWEED] = Transfers(
                bucket=server.bucket,
                credentials=credentials,
                checkpoint=_checkpoint(max(1, options.mib // _REAL_SHARE), options.scratch / "small"),
                scratch=folder,
                promises=probe(remote.bucket, remote.start, ambient=AMBIENT),
            )
            logs[SEAWEED] = remote.bucket
        for bucket in logs.values():
            _grow(bucket, entries)
        yield Figure(
            name="buckets",
            title="Object stores: upload, download, memory, and a journal in a bucket",
            facts={
                **{f"checkpoint_bytes on {name}": store.size for name, store in stores.items()},
                "peer": "our client, part size and lanes; one pass of sha256; what it downloads is synced",
                "probe": "once before, as a run does; not in the times",
                "journal": f"{entries:,} entries, {_ENTRIES_A_BATCH} in a slot, folded by a new reader",
                "SeaweedFS": missing or "on loopback, two cores shared with the client",
            },
            cases=[
                *(case for name, store in stores.items() for case in _transfers(name, store)),
                *_memory(options, sink),
                *(_opening(name, bucket, entries) for name, bucket in logs.items()),
            ],
            bars=[
                *(bar for name in stores for bar in _faster(name)),
                Bar(says="a writer adds under 256 MiB", case=WRITER, measure="peak_bytes", at_most=_LIMIT_BYTES),
                Bar(says="a reader adds under 256 MiB", case=READER, measure="peak_bytes", at_most=_LIMIT_BYTES),
                Bar(
                    says="a direct writer adds under 256 MiB",
                    case=STREAM,
                    measure="peak_bytes",
                    at_most=_LIMIT_BYTES,
                ),
                *(
                    Bar(
                        says=f"{name}: a run of {entries:,} entries opens in under a second through its cache",
                        case=_opens(name),
                        measure="open_s",
                        at_most=1.0,
                    )
                    for name in logs
                ),
            ],
            profiled=False,
        )


def _checkpoint(mib: int, folder: Path) -> Path:
    """A published checkpoint of about this size, by a synchronous save of a run."""
    saver = Milepost(State(mib), folder, background=False)
    saver.start()
    saver.join()
    saver.journal.close()
    return next(folder.glob("**/checkpoints/iter_*"))


# --- transfers ----------------------------------------------------------------------------------------------


def _transfers(name: str, store: Transfers) -> Iterator[Case]:
    sending, taking = store.before_upload, store.clear
    yield Case(name=f"{name}: {OURS['upload']}", run=store.upload, before=sending, after=store.clear)
    yield Case(name=f"{name}: upload, {PEER}", run=store.peer_upload, before=sending, after=store.clear)
    alike = partial(store.peer_upload, alike=True)
    yield Case(name=f"{name}: upload, {ALIKE}", run=alike, before=sending, after=store.clear)
    yield Case(name=f"{name}: {OURS['download']}", run=store.download, before=taking, after=store.clear)
    yield Case(name=f"{name}: download, {PEER}", run=store.peer_download, before=taking, after=store.clear)


def _faster(name: str) -> Iterator[Bar]:
    """Of the peer as it comes, and of the one that signs as milepost does: that part of the lead is its signer's."""
    least = 1.2 if name == SINK else 0.95
    for doing, peer in (("upload", PEER), ("upload", ALIKE), ("download", PEER)):
        yield Bar(
            says=f"{name}: {doing} at least {least} x the speed of {peer}",
            case=f"{name}: {OURS[doing]}",
            measure=f"{doing}_bytes_per_s",
            against=(f"{name}: {doing}, {peer}",),
            at_least=least,
        )


# --- memory -------------------------------------------------------------------------------------------------


def _memory(options: Options, sink: Sink) -> Iterator[Case]:
    server = get_context("forkserver")
    server.set_forkserver_preload([__name__])
    for name in (WRITER, READER, STREAM):
        yield Case(name=name, run=partial(_alone, server, name, options, sink))


def _alone(server: BaseContext, name: str, options: Options, sink: Sink) -> Sample:
    folder = options.scratch / "alone"
    folder.mkdir(exist_ok=True)
    with ProcessPoolExecutor(max_workers=1, mp_context=server) as alone:
        return alone.submit(
            _peak, name, sink.bucket, sink.credentials, sink.source, folder, options.mib << 20
        ).result()


def _peak(name: str, bucket: str, credentials: Path, checkpoint: Path, folder: Path, size: int) -> dict[str, float]:
    """One transfer; what this process held at most beyond what it held with its clients made and warm."""
    store = Transfers(
        bucket=bucket, credentials=credentials, checkpoint=checkpoint, scratch=folder, promises=_KEPT, sends=False
    )
    warm = store.remote("warm")
    stream(warm, 1 << 20)
    resident = status("VmRSS")
    reset_peak()
    if name == WRITER:
        store.upload()
    elif name == READER:
        store.download()
    else:
        stream(store.remote("shards"), size)
    peak = status("VmHWM") - resident
    store.clear()
    return {"peak_bytes": float(peak)}


# --- the journal --------------------------------------------------------------------------------------------


def _opens(name: str) -> str:
    return f"{name}: open the journal, slot cache"


def _opening(name: str, bucket: Bucket, entries: int) -> Case:
    def run() -> Sample:
        open_s, folded = timed(lambda: fold(SlotLog(bucket, nonce=AMBIENT.nonce)))
        assert folded.entries == entries
        return {"open_s": open_s}

    return Case(name=_opens(name), run=run)


def _grow(bucket: Bucket, entries: int) -> None:
    """A journal of this many entries by one writer, and its cache."""
    log = SlotLog(bucket, nonce=AMBIENT.nonce)
    appender = log.claim()
    head = GENESIS
    for index in range(entries):
        line, head = pack(head, _records(index), epoch=1, at="2026-01-02T03:04:05.000000Z", synced=appender.synced)
        appender.append(line, seq=head.seq)
        if index == 0 or index % _ENTRIES_A_BATCH == 0:  # a header is durable before what follows it
            appender.sync()
    appender.sync()
    log.keep()
    appender.close()


def _records(index: int) -> tuple[Record, ...]:
    if index == 0:
        run = RunOpened(
            epoch=1,
            execution_id="bench",
            run_ts="20260102-030405",
            nonce="bench",
            host="host",
            pid=1,
            milepost="0",
            world_size=1,
        )
        return SegmentOpened(number=1, closes=()), run
    if index == 1:
        fresh = ResumeKind.FRESH
        return (RunResumed(resume=fresh, step=0, source="", save=None, clocks=Clocks(), passed_over=(), notes=()),)
    attempt = index // 2
    return (UpdateOpened(attempt=attempt, step=attempt) if index % 2 == 0 else UpdateApplied(attempt=attempt),)
