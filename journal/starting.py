"""How rank 0 starts a run: the attempt, its one writer, everybody's part in it, and what all of them resume from."""

from __future__ import annotations

import logging

from attrs import frozen

from milepost.engines.ambient import Ambient
from milepost.engines.attempts import make_root, resolve
from milepost.engines.buckets.remote import OpenRemote
from milepost.engines.checkpoints.marker import loop_state_of
from milepost.engines.crew import Arrival, Crew
from milepost.engines.crew.company import enlist
from milepost.engines.disks import Disk
from milepost.engines.disks.local import LocalDisk
from milepost.engines.slots import Slot
from milepost.journal.config import Config
from milepost.journal.config.kinds import shown
from milepost.journal.direct import open_direct
from milepost.journal.leading import Leading
from milepost.journal.opening import open_attempt, require_archived
from milepost.journal.restoring import Restoring, Resumption
from milepost.journal.saves import KeepFn, LoopState
from milepost.transitions.errors import Misconfigured

log = logging.getLogger("milepost")


@frozen(kw_only=True)
class Facts:
    """What every rank knows of the opened run. `loop_state` is that of the boundary which it resumed from."""

    run_ts: str
    run_dir: str
    execution_id: str
    resumption: Resumption
    loop_state: dict[str, object] | None


@frozen(kw_only=True)
class Start:
    """A run that stands: what leads it, and what every rank is told of it."""

    lead: Leading
    facts: Facts


def start(
    config: Config,
    *,
    arrivals: tuple[Arrival, ...],
    crew: Crew,
    disk: Disk | None,
    ambient: Ambient,
    slot: Slot,
    keep_fn: KeepFn | None,
    loop_state: LoopState,
    remotes: OpenRemote,
) -> Start:
    """Open the run and bring everybody to where it goes on from. What fails leaves the run as a crash would."""
    _require_equal(config, arrivals, crew)
    company = enlist(crew)
    if disk is None:
        disk = LocalDisk(make_root(config.run.output_root))
    home = f"{config.run.project}/{config.run.group}/{config.run.name}"
    attempt = resolve(disk, home, resume=config.resume, run_ts=config.run_ts, ambient=ambient)
    opening = open_direct if config.checkpoint_store.backend == "object_store" else open_attempt
    opened = opening(config, attempt, disk=disk, ambient=ambient, world_size=crew.size, remotes=remotes)
    try:
        require_archived(opened.driver)
        company.assign(opened.place, form=config.checkpoint_format, timeout_s=config.rank_timeout_s)
        resumption = Restoring(
            config=config,
            disk=opened.disk,
            place=opened.place,
            checkpoints=opened.checkpoints,
            company=company,
            remotes=remotes,
        ).resume(opened.driver)
    except BaseException:
        opened.close()
        raise
    _announce(resumption, opened.where)
    lead = Leading(
        config=config,
        opened=opened,
        company=company,
        resumption=resumption,
        slot=slot,
        ambient=ambient,
        keep_fn=keep_fn,
        loop_state=loop_state,
    )
    opened_by, committed = lead.state.run.opened, lead.state.boundary.committed
    assert opened_by is not None
    try:
        lead.start()
    except BaseException as failure:
        lead.close_after(failure)
        raise
    facts = Facts(
        run_ts=opened_by.run_ts,
        run_dir=opened.where,
        execution_id=opened_by.execution_id,
        resumption=resumption,
        loop_state=None if committed is None else dict(loop_state_of(committed)),
    )
    return Start(lead=lead, facts=facts)


def _require_equal(config: Config, arrivals: tuple[Arrival, ...], crew: Crew) -> None:
    """`Misconfigured` where a rank was given another configuration than rank 0, by knob."""
    first, problems = config.by_key(), []
    for index, arrival in enumerate(arrivals):
        assert isinstance(arrival.said, dict), "who opens a run says what it was configured to"
        problems += [
            f"{key}: {crew.called(index)} has {shown(value)}, {crew.called(0)} {shown(first[key])}; give every rank "
            "the same configuration"
            for key, value in arrival.said.items()
            if value != first[key]
        ]
    if problems:
        raise Misconfigured(tuple(problems))


def _announce(resumption: Resumption, run_dir: str) -> None:
    if resumption.kind == "fresh":
        log.info("a fresh run in %s", run_dir)
    else:
        log.info("resumed from %s (iter %d)", resumption.source, resumption.step)
    for note in resumption.notes:
        log.info("%s", note)
