"""`prune`: the one verb that changes a run."""

from __future__ import annotations

from pathlib import Path

import click
from attrs import evolve

from milepost.engines.ambient import SystemAmbient
from milepost.engines.attempts import Attempt
from milepost.engines.checkpoints import released
from milepost.journal.candidates import candidates_of
from milepost.journal.cli.rendering import open_run, print_json, print_table, run_argument
from milepost.journal.config import Config
from milepost.journal.forensics.reading import Place
from milepost.journal.forensics.retaining import Fate, Judged, Retained, freed, judged, plan, settled
from milepost.journal.forensics.sentences import sentence, size
from milepost.journal.forensics.timeline import Wanted, clocks_at, records
from milepost.journal.log.replay import fold
from milepost.journal.opening import Opened, open_attempt
from milepost.transitions.errors import Refused
from milepost.transitions.resuming import choose
from milepost.transitions.retention import ApplyRetention, PruneFailed
from milepost.transitions.run import AdoptResume, EndRun
from milepost.transitions.values import Outcome, ResumeKind

_STYLES = {Fate.STAYS: "", Fate.GOES: "yellow", Fate.GONE: "green", Fate.FAILED: "red"}


@click.command()
@run_argument
@click.option("--plan", "planning", is_flag=True, help="Only say what would go and why the rest stays.")
@click.option("--keep-optim-last", type=click.IntRange(min=0), metavar="N", help="As the knob; 0 keeps all.")
@click.option("--keep-model-last", type=click.IntRange(min=0), metavar="N", help="As the knob; 0 keeps all.")
@click.option("--config", "source", type=click.Path(dir_okay=False), help="The run's YAML file.")
@click.argument("overrides", nargs=-1)
@click.pass_context
def prune(
    ctx: click.Context,
    run: str,
    *,
    planning: bool,
    keep_optim_last: int | None,
    keep_model_last: int | None,
    source: str | None,
    overrides: tuple[str, ...],
    credentials: Path | None,
    as_json: bool,
) -> None:
    """Apply retention to RUN now. The counts are those of its configuration, with OVERRIDES, or of the options.

    Each checkpoint is listed, newest first, as a whole and its optimizer by itself: whether it stays, and why. The
    newest, what is pending and all artifacts always stay. A keep_fn of the training program is not known here: where
    there is one, say --keep-optim-last 0. With rl.upload.enabled only what has the receipt of an archive goes. This
    is a start of the run that trains nothing: it takes the lock (a live run is busy), settles what a killed writer
    left, and is recorded as an epoch of its own. Where nothing has to go the run is left as it is. Exits with 1 where
    something could not be deleted or the run is busy, with 5 where its newest checkpoint is damaged: then nothing
    goes.

    \b
    Examples:
        milepost prune outputs/milepost/default/run --plan --keep-model-last 3
        milepost prune outputs/milepost/default/run --config run.yaml rl.keep_optim_last=2
    JSON:
        {"run", "planned", "keep_optim_last", "keep_model_last", "foreseen": [text],
         "blocked": text, "parts": [{"name", "part": "checkpoint" | "optimizer",
         "fate": "stays" | "goes" | "gone" | "failed", "why", "size": bytes}],
         "freed": bytes}
    """
    config = Config.load(source, overrides)
    place = open_run(run, credentials)
    if place.remote:
        raise Refused(f"{place.where}: retention is for runs on a disk; nothing in a bucket is ever deleted by it")
    policy = ApplyRetention(
        keep_optim_last=config.resolved_keep_optim_last if keep_optim_last is None else keep_optim_last,
        keep_model_last=config.keep_model_last if keep_model_last is None else keep_model_last,
        archived=released.archived_steps(place.disk, place.checkpoints) if config.upload.enabled else None,
    )
    found = plan(place, policy)
    if not planning and not found.blocked:
        found = _applied(place, config, policy, found)
    print_json(found) if as_json else _print(found)
    failed = any(one.fate is Fate.FAILED for one in found.parts)
    ctx.exit(5 if found.blocked else 1 if failed else 0)


def _applied(place: Place, config: Config, policy: ApplyRetention, planned: Retained) -> Retained:
    """What came of it. A run that nobody writes and of which nothing would go is not opened."""
    if place.writer() is None and not any(one.fate is Fate.GOES for one in planned.parts):
        return evolve(planned, planned=False)
    before = fold(place.log).state
    attempt = Attempt(path=place.path, run_ts=before.run.run_ts, minted=False)
    opened = open_attempt(config, attempt, disk=place.disk, ambient=SystemAmbient(), world_size=1)
    try:
        parts = judged(opened.driver.state, policy, begun=before.retention.open)
        _prune(place, opened, policy)
        parts = settled(parts, opened.driver.state)
    finally:
        opened.close()
    return evolve(planned, planned=False, parts=_explained(place, parts), freed=freed(parts))


def _prune(place: Place, opened: Opened, policy: ApplyRetention) -> None:
    """An epoch that continues from the newest checkpoint, restores nothing, applies retention and ends."""
    driver = opened.driver
    choice = choose(candidates_of(driver.state, opened.checkpoints, every=False), artifact=None)
    assert choice.taken is not None and choice.taken.save is not None, "something is to go, so something is newer"
    driver.submit(
        AdoptResume(
            resume=ResumeKind.EXACT,
            step=choice.taken.step,
            source=place.disk.where(f"{place.checkpoints}/{choice.taken.name}"),
            save=choice.taken.save,
            clocks=clocks_at(opened.log, choice.taken.save),
            passed_over=choice.passed_over,
            notes=("nothing was restored: only retention was applied",),
        )
    )
    driver.submit(policy)
    driver.drain()
    driver.submit(EndRun(outcome=Outcome.STOPPED, step=choice.taken.step, detail="retention was applied"))
    driver.barrier()
    opened.keep_fold(always=True)


def _explained(place: Place, parts: tuple[Judged, ...]) -> tuple[Judged, ...]:
    """What failed, with the reason that was recorded last."""
    reasons = {
        (record.save.directory, record.part): sentence(record)
        for _, record in records(place.log, Wanted(kinds=(PruneFailed.KIND,)))
        if isinstance(record, PruneFailed)
    }
    return tuple(evolve(one, why=reasons[one.name, one.part]) if one.fate is Fate.FAILED else one for one in parts)


def _print(found: Retained) -> None:
    for words in found.foreseen:
        click.echo(words)
    if found.blocked:
        click.secho("nothing goes: a start would be refused", bold=True, fg="red")
        click.echo(f"  because: {found.blocked}")
        return
    click.echo(f"keep_optim_last={found.keep_optim_last}, keep_model_last={found.keep_model_last} (0 keeps all)")
    if not found.parts:
        click.echo(f"no checkpoint in {found.run}")
        return
    print_table(
        ("NAME", "PART", "FATE", "SIZE", "WHY"),
        [(one.name, one.part.value, one.fate.value, size(one.size), one.why) for one in found.parts],
        styles=[_STYLES[one.fate] for one in found.parts],
    )
    click.echo(f"{size(found.freed)} {'would be freed' if found.planned else 'freed'}")
