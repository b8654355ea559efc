"""Opening a run: become its one writer, learn what happened, make it durable, say so, settle what is open.

    adopt or mint the attempt · lock · claim the next segment · witnesses · read and fold · resync the log ·
    resync the checkpoints · the header with `RunOpened` · barrier · settle every open save, the pointer, the debris

A crash anywhere in here is a crash like any other (INV-14): the next opening does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from attrs import define

from milepost import __version__
from milepost.engines.ambient import Ambient
from milepost.engines.archive.archiver import Archiver
from milepost.engines.attempts import ARTIFACTS, CHECKPOINTS, JOURNAL, Attempt, make_directories
from milepost.engines.buckets.remote import SCHEME, OpenRemote
from milepost.engines.buckets.remote import remotes as opened_by
from milepost.engines.checkpoints import Checkpoints, released
from milepost.engines.checkpoints.local import LocalCheckpoints
from milepost.engines.disks import Disk, Lock
from milepost.engines.logs import Appender, Log
from milepost.engines.logs.segments import SegmentLog
from milepost.engines.perform import Engines
from milepost.engines.places import ADDRESS, ADDRESS_BYTES, Folder, Place, local_checkpoints
from milepost.journal.config import Config
from milepost.journal.driver import Driver
from milepost.journal.log.foldcache import FoldCache
from milepost.journal.log.replay import Folded, fold
from milepost.journal.log.scan import Mark
from milepost.transitions.errors import Busy, Corrupt, Fenced, MilepostError, Refused, Unavailable
from milepost.transitions.machine import State
from milepost.transitions.run import OpenRun
from milepost.transitions.values import SaveId

LOCK = "journal/lock"
FOLD_EVERY_BYTES = 8 << 20
"""How much log may grow behind the fold cache before a save renews it: a fifth of a second of replay."""


@define(kw_only=True)
class Opened:
    """A run with one writer. `close` gives the lock back and closes the log.

    `completed` is the checkpoint whose validation the opening completed, where an earlier writer had not. `disk` is
    what the run's checkpoints are read on, and `where` the run's directory for people.
    """

    driver: Driver
    engines: Engines
    checkpoints: Checkpoints
    log: Log
    place: Place
    disk: Disk
    where: str
    close: Callable[[], None]
    completed: SaveId | None
    _cache: FoldCache
    _kept: Mark | None = None
    _keep_log: Callable[[], None] | None = None

    @property
    def archived(self) -> tuple[int, ...] | None:
        """The steps whose checkpoint has an archive's receipt, whoever wrote it; None where nothing is archived."""
        archiver = self.engines.archiver
        return released.archived_steps(archiver.disk, archiver.checkpoints) if archiver is not None else None

    def is_archived(self, save: SaveId) -> bool:
        """Whether this checkpoint has an archive's receipt, whoever wrote it."""
        archiver = self.engines.archiver
        return archiver is not None and released.is_archived(
            archiver.disk, f"{archiver.checkpoints}/{save.directory}"
        )

    def keep_fold(self, *, always: bool) -> None:
        """Renew the fold cache with what the newest barrier covered, where that is worth it or `always`."""
        if self.driver.durable is None:
            return
        mark, state = self.driver.durable
        kept = self._kept
        near = kept is not None and kept.number == mark.number and mark.offset - kept.offset < FOLD_EVERY_BYTES
        if always or not near:
            self._cache.store(mark, state)
            self._kept = mark
            if self._keep_log is not None:
                self._keep_log()


def open_attempt(
    config: Config,
    attempt: Attempt,
    *,
    disk: Disk,
    ambient: Ambient,
    world_size: int,
    remotes: OpenRemote | None = None,
) -> Opened:
    """Own the attempt and bring it to rest. `Busy`, `Fenced`, `Corrupt` or `Unavailable` where that cannot be.

    `remotes` opens the archive's store; None: by real clients.
    """
    place = Place(
        within=Folder(root=disk.where("")),
        checkpoints=f"{attempt.path}/{CHECKPOINTS}",
        artifacts=f"{attempt.path}/{ARTIFACTS}",
        algorithm=config.digest,
        crc32=config.archive_crc32,
    )
    log = SegmentLog(disk, folder=f"{attempt.path}/{JOURNAL}")
    cache = FoldCache(disk, folder=f"{attempt.path}/{JOURNAL}")
    with ExitStack() as undo:
        try:
            make_directories(disk, f"{attempt.path}/{JOURNAL}")
            lock = disk.lock(f"{attempt.path}/{LOCK}")
        except BlockingIOError:
            raise Busy(_who(log, disk.where(attempt.path))) from None
        except OSError as error:
            raise unusable(disk, attempt, error) from error
        undo.callback(give_back, lock, disk.where(attempt.path))
        try:
            _require_local(disk, attempt)
            appender = log.claim()
            undo.callback(appender.close)
            checkpoints = local_checkpoints(place, disk=disk, fence=lambda: require_unfenced(appender))
            checkpoints.prepare()
            folded = _fold(log, appender, checkpoints, cache)
            # What was read may be a dead writer's unsynced tail: durable before anything is built on it.
            log.resync(folded.read, folded.closes)
            checkpoints.resync()
        except OSError as error:
            raise unusable(disk, attempt, error) from error
        engines = Engines(
            checkpoints=checkpoints,
            run_ts=attempt.run_ts,
            checkpoint_format=config.checkpoint_format,
            world_size=world_size,
            milepost=__version__,
            archiver=_archiver(config, attempt, disk=disk, ambient=ambient, remotes=remotes or opened_by(ambient)),
        )
        driver = Driver(appender=appender, engines=engines, ambient=ambient, state=folded.state, head=folded.head)
        undo.callback(driver.close)
        open_epoch(driver, folded, segment=appender.number, engines=engines, ambient=ambient)
        driver.drain()
        close = undo.pop_all().close
    return Opened(
        driver=driver,
        engines=engines,
        checkpoints=checkpoints,
        log=log,
        place=place,
        disk=disk,
        where=disk.where(attempt.path),
        close=close,
        completed=completed_since(folded, driver),
        cache=cache,
        kept=folded.end,
    )


def open_epoch(driver: Driver, folded: Folded, *, segment: int, engines: Engines, ambient: Ambient) -> None:
    """Record that this process opens the run behind what was folded; durable with the next barrier."""
    driver.submit(
        OpenRun(
            segment=segment,
            closes=folded.closes,
            execution_id=ambient.execution_id(),
            run_ts=engines.run_ts,
            nonce=ambient.nonce(),
            host=ambient.host(),
            pid=ambient.pid(),
            milepost=engines.milepost,
            world_size=engines.world_size,
        )
    )


def completed_since(folded: Folded, driver: Driver) -> SaveId | None:
    """The publication that the opening completed; None where it completed none."""
    before, after = folded.state.validation.completed, driver.state.validation.completed
    return after if after != before else None


def _require_local(disk: Disk, attempt: Attempt) -> None:
    """`Refused` where the attempt's checkpoints are in a bucket: a second journal would begin here."""
    if disk.stat(f"{attempt.path}/{ADDRESS}") is not None:
        address = disk.read(f"{attempt.path}/{ADDRESS}", limit=ADDRESS_BYTES).decode(errors="replace").strip()
        raise Refused(
            f"{disk.where(attempt.path)} has its checkpoints and its journal at {address}; continue it with "
            "rl.checkpoint_store.backend=object_store, or begin a new attempt with resume=off"
        )


def _archiver(
    config: Config, attempt: Attempt, *, disk: Disk, ambient: Ambient, remotes: OpenRemote
) -> Archiver | None:
    """What archives the run's checkpoints, where that is asked for; the prefix mirrors the local layout."""
    upload = config.upload
    if not upload.enabled:
        return None
    return Archiver(
        disk=disk,
        checkpoints=f"{attempt.path}/{CHECKPOINTS}",
        artifacts=f"{attempt.path}/{ARTIFACTS}",
        destination=f"{SCHEME}{upload.bucket}/{upload.prefix or f'{attempt.path}/{CHECKPOINTS}'}",
        credentials=Path(upload.credentials) if upload.credentials else None,
        ambient=ambient,
        remotes=remotes,
    )


def require_archived(driver: Driver) -> None:
    """`Unavailable` where a publication that an earlier writer left pending could not be completed."""
    pending = driver.state.validation.pending
    if pending is not None and driver.state.archiving.owes(pending):
        raise unpublished(driver.state, pending)


def unpublished(state: State, save: SaveId) -> Unavailable:
    """Why the publication of this save is still pending: its archive could not be completed."""
    archive = state.archiving.of(save)
    assert archive is not None, f"nothing is owed to save {save}"
    return Unavailable(
        f"{save.directory} passed its validation and is not published: its archive at {archive.destination} is not "
        f"complete ({archive.code}: {archive.detail}). The checkpoint is whole, and is not evaluated again; once the "
        "store can be reached, start the run again, or go on without it in a new attempt (resume=off)"
    )


def _fold(log: Log, appender: Appender, checkpoints: LocalCheckpoints, cache: FoldCache) -> Folded:
    """The run so far. An overtaken opener finds checkpoints that its own part of the log does not know of."""
    try:
        return fold(log, witnesses=dict(checkpoints.witnesses()), below=appender.number, cache=cache)
    except Corrupt:
        require_unfenced(appender)
        raise


def give_back(lock: Lock, where: str) -> None:
    """Release the lock of the run at `where`; `Unavailable` where that fails, which loses nothing."""
    try:
        lock.release()
    except OSError as error:
        raise Unavailable(
            f"the lock of {where} was not given back: {error}. Everything that was acknowledged is safe, and the "
            "lock ends with this process"
        ) from error


def require_unfenced(appender: Appender) -> None:
    """`Fenced` once a later writer claimed the run."""
    if appender.fenced():
        raise Fenced("another writer claimed this run; this one touches nothing more")


def _who(log: Log, where: str) -> str:
    """Who holds the lock, as far as the journal says."""
    try:
        writer = fold(log).state.run.opened
    except (MilepostError, OSError):
        writer = None
    by = f"process {writer.pid} on {writer.host} (epoch {writer.epoch})" if writer is not None else "another process"
    return (
        f"{where} is being written by {by}. Wait for it or stop it; to run a second experiment, give it its own "
        "run.name, or resume=off for a new attempt"
    )


def unusable(disk: Disk, attempt: Attempt, error: OSError) -> Unavailable:
    return Unavailable(
        f"{disk.where(attempt.path)} cannot be used: {error}. What is published there is untouched; make the "
        "directory readable and writable, with space left, and start again"
    )
