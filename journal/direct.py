"""Opening a run whose primary store is a bucket (`checkpoint_store.backend=object_store`).

    lock of the local directory · its address · the store's promises · the end of the journal · witnesses ·
    read and fold · who may not open it · `RunOpened` and the barrier: the claim · the names of the run · settle

1. Up to the claim only the probe writes, below keys of its own: nothing that a live writer uses is touched.
2. The attempt's directory on the local disk has a lock, which makes a second start there `Busy` at once, and
   `checkpoint_store.txt`: the address of the run. It is written behind the claim and never changed; a start whose
   configuration says another address is refused, and so is one whose journal is on the disk.
3. `checkpoint-root.txt` beside the journal in the bucket says by its last name which checkpoint root the journal is
   of: two prefixes side by side would share one journal otherwise. It is relative, so that a copied run is whole.
4. Which RUN_TS a journal has is in the journal. Under an explicit prefix a start adopts it, whatever was minted here;
   one that asked for a new attempt, or for another RUN_TS, is refused where something is there already.
5. A writer that has not ended and runs on this machine is waited for: `Busy`. One on another machine is taken over,
   and is `Fenced` at its next append.

Source: the checkpointing contract, "Primary checkpoint store versus archive upload".
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from datetime import datetime

from attrs import frozen

from milepost import __version__
from milepost.engines.ambient import Ambient
from milepost.engines.attempts import ARTIFACTS, JOURNAL, Attempt, make_directories
from milepost.engines.buckets import Bucket, Committed, Conflict, Unknown
from milepost.engines.buckets.probe import Promises, probe
from milepost.engines.buckets.reading import BucketDisk
from milepost.engines.buckets.remote import SCHEME, OpenRemote
from milepost.engines.disks import Disk, Lock, write_all
from milepost.engines.living import runs
from milepost.engines.logs.segments import SegmentLog
from milepost.engines.logs.slots import SlotLog
from milepost.engines.perform import Engines
from milepost.engines.places import (
    ADDRESS,
    ADDRESS_BYTES,
    Place,
    Store,
    base_and_root,
    below,
    checkpoints_in,
)
from milepost.journal.config import Config
from milepost.journal.driver import Driver
from milepost.journal.log.entries import LINE_LIMIT_BYTES, unpack
from milepost.journal.log.foldcache import FoldCache
from milepost.journal.log.replay import Folded, fold
from milepost.journal.opening import (
    LOCK,
    Opened,
    completed_since,
    give_back,
    open_epoch,
    require_unfenced,
    unusable,
)
from milepost.transitions.errors import Busy, Refused, Unavailable
from milepost.transitions.machine import State
from milepost.transitions.run import ReportProbe, RunStage
from milepost.transitions.values import Promised

ROOT = "checkpoint-root.txt"

DEADLINE_S = 120.0
"""How long the create of the root's name is repeated while its answer is unclear."""

_probed: dict[str, Promises] = {}
"""What was found of each store by this process: a second opening does not try it again."""


@frozen(kw_only=True)
class _Home:
    """Where the run is: its local directory, and its base and checkpoint root in the bucket."""

    config: Config
    attempt: Attempt
    disk: Disk
    bucket: Bucket
    base: str
    place: Place

    @property
    def address(self) -> str:
        """The run's base as an address."""
        return f"{SCHEME}{self.config.checkpoint_store.bucket}/{self.base}".rstrip("/")

    @property
    def root_name(self) -> bytes:
        return f"{self.place.checkpoints.rpartition('/')[2]}\n".encode()


def open_direct(
    config: Config,
    attempt: Attempt,
    *,
    disk: Disk,
    ambient: Ambient,
    world_size: int,
    remotes: OpenRemote,
) -> Opened:
    """Own the run in the bucket and bring it to rest; `disk` has the attempt's local directory.

    `Busy`, `Fenced`, `Corrupt`, `Refused` or `Unavailable` where that cannot be, `Misconfigured` for a store that
    does not keep what a writer relies on.
    """
    home = _home(config, attempt, disk=disk, remotes=remotes)
    cache = FoldCache(disk, folder=f"{attempt.path}/{JOURNAL}")
    log = SlotLog(home.bucket, nonce=ambient.nonce, folder=below(home.base, JOURNAL))
    with ExitStack() as undo:
        try:
            undo.callback(give_back, _lock(home), home.address)
            _require_address(home)
        except OSError as error:
            raise unusable(disk, attempt, error) from error
        promises = _require_promises(home, ambient)
        _require_root(home)
        appender = log.claim()
        undo.callback(appender.close)
        checkpoints = checkpoints_in(home.bucket, home.place, fence=lambda: require_unfenced(appender))
        folded = fold(log, witnesses=dict(checkpoints.witnesses()), below=appender.number, cache=cache)
        _require_free(home, folded)
        _require_silence(home, log, folded, ambient)
        engines = Engines(
            checkpoints=checkpoints,
            run_ts=folded.state.run.run_ts or attempt.run_ts,
            checkpoint_format=config.checkpoint_format,
            world_size=world_size,
            milepost=__version__,
        )
        driver = Driver(appender=appender, engines=engines, ambient=ambient, state=folded.state, head=folded.head)
        undo.callback(driver.close)
        open_epoch(driver, folded, segment=appender.number, engines=engines, ambient=ambient)
        driver.barrier()  # the claim (rule 1)
        driver.submit(_report(home, promises))
        _keep_names(home)
        driver.drain()
        close = undo.pop_all().close
    return Opened(
        driver=driver,
        engines=engines,
        checkpoints=checkpoints,
        log=log,
        place=home.place,
        disk=BucketDisk(home.bucket),
        where=home.address,
        close=close,
        completed=completed_since(folded, driver),
        cache=cache,
        kept=folded.end,
        keep_log=log.keep,
    )


def _home(config: Config, attempt: Attempt, *, disk: Disk, remotes: OpenRemote) -> _Home:
    store = config.checkpoint_store
    base, root = base_and_root(attempt.path, prefix=store.prefix)
    within = Store(uri=f"{SCHEME}{store.bucket}", credentials=store.credentials)
    place = Place(
        within=within,
        checkpoints=root,
        artifacts=below(base, ARTIFACTS),
        algorithm=config.digest,
        crc32=config.archive_crc32,
    )
    bucket = within.open(remotes)
    return _Home(config=config, attempt=attempt, disk=disk, bucket=bucket, base=base, place=place)


# --- what has to hold before anything is claimed ---------------------------------------------------------


def _lock(home: _Home) -> Lock:
    folder = f"{home.attempt.path}/{JOURNAL}"
    make_directories(home.disk, folder)
    try:
        return home.disk.lock(f"{home.attempt.path}/{LOCK}")
    except BlockingIOError:
        raise Busy(
            f"{home.address} is being written by another process, which holds the lock in "
            f"{home.disk.where(folder)}. Wait for it or stop it; to run a second experiment, give it its own "
            "run.name, or resume=off for a new attempt"
        ) from None


def _require_address(home: _Home) -> None:
    """The attempt is of this address, or of none yet (rule 2)."""
    here = home.disk.where(home.attempt.path)
    if SegmentLog(home.disk, folder=f"{home.attempt.path}/{JOURNAL}").numbers():
        raise Refused(
            f"{here} has its journal on the disk: its checkpoints are local. Continue it with "
            "rl.checkpoint_store.backend=local, or begin a new attempt with resume=off"
        )
    with suppress(FileNotFoundError):
        found = home.disk.read(f"{home.attempt.path}/{ADDRESS}", limit=ADDRESS_BYTES).decode(errors="replace")
        if found.strip() != home.address:
            raise Refused(
                f"{here} is of the run at {found.strip()}, and rl.checkpoint_store says {home.address}: an attempt "
                "never moves. Set the bucket and the prefix back, or begin a new attempt with resume=off"
            )


def _require_promises(home: _Home, ambient: Ambient) -> Promises:
    store = home.bucket.where("")
    if store not in _probed:
        promises = probe(home.bucket, f"{home.base}/" if home.base else "", ambient=ambient)
        promises.require(store)
        _probed[store] = promises
    return _probed[store]


def _report(home: _Home, promises: Promises) -> ReportProbe:
    """What the journal says of the store."""
    seen = tuple(Promised(name=name, seen=tried.seen) for name, tried in promises.items())
    return ReportProbe(store=home.bucket.where(""), promises=seen)


def _require_root(home: _Home) -> None:
    """The journal is of this checkpoint root, or of none yet (rule 3)."""
    with suppress(FileNotFoundError):
        found, _ = home.bucket.read(below(home.base, ROOT), limit=ADDRESS_BYTES)
        if found != home.root_name:
            raise _another_root(home, found)


def _another_root(home: _Home, found: bytes | None) -> Refused:
    said = (found or b"nothing").decode(errors="replace").strip()
    return Refused(
        f"{home.bucket.where(below(home.base, ROOT))}: the run there has its checkpoints below {said!r}, and "
        f"rl.checkpoint_store.prefix is {home.place.checkpoints}. Two runs need two folders: choose another prefix, "
        f"such as {home.place.checkpoints}/checkpoints"
    )


def _require_free(home: _Home, folded: Folded) -> None:
    """Who asked for a new attempt, or for one by its RUN_TS, does not get another one that is there (rule 4)."""
    config, there = home.config, folded.state.run
    if config.run_ts and there.stage is not RunStage.UNOPENED and there.run_ts != config.run_ts:
        raise Refused(
            f"{home.address} holds run {there.run_ts or 'without a RUN_TS'}, and rl.run_ts={config.run_ts} asks for "
            "another one; choose another rl.checkpoint_store.prefix, or leave rl.run_ts empty to continue that run"
        )
    if config.resume != "off" or (config.run_ts and there.run_ts == config.run_ts):
        return
    trees = (home.place.checkpoints, home.place.artifacts)
    occupied = next((tree for tree in trees if home.bucket.keys(f"{tree}/", limit=1)), None)
    if there.stage is not RunStage.UNOPENED or occupied is not None:
        found = f"the journal of run {there.run_ts}" if occupied is None else home.bucket.where(occupied)
        raise Refused(
            f"resume=off asks for a new attempt, and {home.address} holds {found} already: nothing is written over. "
            "Choose another rl.checkpoint_store.prefix, or leave it empty to have one for each attempt"
        )


def _require_silence(home: _Home, log: SlotLog, folded: Folded, ambient: Ambient) -> None:
    """`Busy` where the writer has not ended and runs on this machine (rule 5)."""
    run = folded.state.run
    writer = run.opened
    if run.stage is not RunStage.OPEN or writer is None:
        return
    if writer.host != ambient.host() or writer.pid == ambient.pid():
        return
    if runs(writer.pid, since=_opened_at(log, folded.state)):
        raise Busy(
            f"{home.address} is being written by process {writer.pid} on {writer.host} (epoch {writer.epoch}), which "
            "runs. Wait for it or stop it; to run a second experiment, give it its own run.name or "
            "rl.checkpoint_store.prefix"
        )


def _opened_at(log: SlotLog, state: State) -> datetime:
    """When the newest segment was begun: by its writer."""
    number = state.run.segment
    with log.open(number, stop=log.size(number)) as stream:
        return datetime.fromisoformat(unpack(stream.readline(LINE_LIMIT_BYTES)).at)


# --- behind the claim ------------------------------------------------------------------------------------


def _keep_names(home: _Home) -> None:
    """Say in the bucket which root the journal is of, and on the disk where the run is; both for ever."""
    key = below(home.base, ROOT)
    match home.bucket.create(key, home.root_name, deadline_s=DEADLINE_S):
        case Committed():
            pass
        case Conflict(found=found):
            raise _another_root(home, found)
        case Unknown(why=why):
            raise Unavailable(
                f"whether {home.bucket.where(key)} was written cannot be said: {why}. Nothing was saved; start again"
            )
    try:
        _write_address(home)
    except OSError as error:
        raise unusable(home.disk, home.attempt, error) from error


def _write_address(home: _Home) -> None:
    path = f"{home.attempt.path}/{ADDRESS}"
    if home.disk.stat(path) is None:
        fresh = f"{path}.new"
        with suppress(FileNotFoundError):  # of a start that died in here
            home.disk.unlink(fresh)
        with home.disk.create(fresh) as sink:
            write_all(sink, f"{home.address}\n".encode())
            sink.sync()
        home.disk.rename(fresh, path)
    home.disk.sync_dir(home.attempt.path)
