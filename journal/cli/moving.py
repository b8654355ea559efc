"""`publish`, `fetch`, `prune-verified`, `copy`, `download`, `probe`: between a disk and object stores.

A wrong or missing file, here or there, exits with 5; a store that fails or another process there with 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import click
from attrs import frozen

from milepost.engines.ambient import SystemAmbient
from milepost.engines.archive import moving, publisher, reader
from milepost.engines.archive.moving import Moved
from milepost.engines.archive.releasing import Pruned, prune_verified
from milepost.engines.archive.streaming import Progress, Told, untold
from milepost.engines.buckets.probe import probe as probe_store
from milepost.engines.buckets.remote import Destination, Remote, open_remote
from milepost.engines.disks.local import LocalDisk
from milepost.journal.cli.rendering import as_json, credentials_option, print_json, print_table
from milepost.journal.forensics.sentences import size
from milepost.transitions.errors import Corrupt, NewerVersion, Refused

F = TypeVar("F", bound=Callable[..., Any])

_AMBIENT = SystemAmbient()


@click.command()
@click.argument("directory", type=click.Path())
@click.argument("into", metavar="S3://BUCKET/PREFIX")
@credentials_option()
@as_json
def publish(directory: str, into: str, *, credentials: Path | None, as_json: bool) -> None:
    """Archive DIRECTORY, a published iter_* of either tree, as <PREFIX>/iter_*; safe to call again.

    An artifact goes into checkpoint_artifacts/ beside a prefix that ends with checkpoints. Everything is hashed and
    declared first, the manifest is sent last, and the receipt `.uploaded` is written once all of it was seen there.
    What is there already is read and not sent again; another inventory, or other bytes, are refused.

    \b
    Example:
        milepost publish run/checkpoints/iter_000000100 s3://bucket/run/checkpoints
    JSON:
        {"destination": {"endpoint", "bucket", "prefix"}, "files", "bytes",
         "sent": [path], "found": [path], "released": [path],
         "left_out": [name of somebody else]}
    """
    disk, path = _published(directory)
    with _about_payload(), _progress() as told:
        remote = open_remote(into, credentials=credentials, ambient=_AMBIENT)
        done = publisher.publish(disk, path, remote, ambient=_AMBIENT, told=told)
    if as_json:
        print_json(done)
        return
    for file in done.released:
        click.echo(f"not archived, as retention took it before: {file}")
    for name in done.left_out:
        click.echo(f"not archived, as it is no file of a checkpoint: {name}")
    sent, found = len(done.sent), len(done.found)
    click.echo(f"{done.files} files, {size(done.bytes)} at {done.destination}: {sent} sent, {found} there")


@click.command()
@click.argument("source", metavar="S3://BUCKET/PREFIX/ITER_*")
@click.argument("target", type=click.Path())
@credentials_option()
@as_json
def fetch(source: str, target: str, *, credentials: Path | None, as_json: bool) -> None:
    """Fetch an archived checkpoint or artifact into the new directory TARGET; its parent has to exist.

    The manifest is read first, and every file is proven by size and digest before TARGET appears, whole. A fetch that
    was interrupted goes on when it is called again.

    \b
    Example:
        milepost fetch s3://bucket/run/checkpoints/iter_000000100 stage/iter_000000100
    JSON:
        {"directory", "files", "bytes", "fetched": [path], "found": [path],
         "released": [path]}
    """
    disk, path = _new(target)
    with _about_payload(), _progress() as told:
        remote = open_remote(source, credentials=credentials, ambient=_AMBIENT)
        done = reader.fetch(remote, disk, path, ambient=_AMBIENT, told=told)
    if as_json:
        print_json(done)
        return
    for file in done.released:
        click.echo(f"not there, as retention took it before: {file}")
    click.echo(
        f"{done.files} files, {size(done.bytes)} in {done.directory}: {len(done.fetched)} of them fetched, "
        f"{len(done.found)} from an earlier attempt"
    )


@frozen(kw_only=True)
class AllPruned:
    """What `prune-verified` did; `freed` is in bytes."""

    directories: tuple[Pruned, ...]
    freed: int


@click.command(name="prune-verified")
@click.argument("paths", nargs=-1, required=True, type=click.Path())
@credentials_option()
@as_json
@click.pass_context
def pruned(ctx: click.Context, paths: tuple[str, ...], *, credentials: Path | None, as_json: bool) -> None:
    """Remove the payload of each of PATHS (iter_* directories) whose archive is proven; else keep it and say why.

    A payload goes only where `.uploaded` binds a destination that the credentials address, the local bytes are those
    that were archived, and every recorded object is there with that size and digest, which is read. Manifest, receipt
    and a release marker stay. A checkpoint of a run with a journal stays: `milepost prune` takes those. Exits with 1
    where any copy was kept.

    \b
    Example:
        milepost prune-verified run/checkpoint_artifacts/iter_* --credentials store.json
    JSON:
        {"directories": [{"directory", "destination": text, "kept": reason or "",
         "files", "freed": bytes}], "freed": bytes}
    """
    places = [_published(path) for path in paths]

    @cache
    def opened(name: str) -> Remote:
        return open_remote(f"s3://{name}", credentials=credentials, ambient=_AMBIENT)

    def opener(destination: Destination) -> Remote | None:
        remote = opened(destination.bucket).at(destination.prefix)
        return remote if remote.destination == destination else None

    with _progress() as told:
        rows = tuple(prune_verified(*place, opener=opener, ambient=_AMBIENT, told=told) for place in places)
    done = AllPruned(directories=rows, freed=sum(row.freed for row in rows))
    if as_json:
        print_json(done)
    else:
        print_table(
            ("DIRECTORY", "FATE", "FREED", "WHY"),
            [(row.directory, "kept" if row.kept else "gone", size(row.freed), row.kept or "-") for row in rows],
            styles=["yellow" if row.kept else "" for row in rows],
        )
        click.echo(f"{size(done.freed)} freed")
    ctx.exit(1 if any(row.kept for row in rows) else 0)


@click.command()
@click.argument("source", metavar="S3://BUCKET/PREFIX")
@click.argument("target", metavar="S3://BUCKET/PREFIX")
@credentials_option()
@credentials_option("--target-credentials", meaning="Those of the target, where it is another store.")
@as_json
def copy(
    source: str, target: str, *, credentials: Path | None, target_credentials: Path | None, as_json: bool
) -> None:
    """Copy everything below one address to the same names below another; safe to call again.

    The bytes pass through this machine. What is there with the same size and digest stays; anything else that is
    there is refused. Manifests are copied behind what they list, and the pointer last.

    \b
    Example:
        milepost copy s3://bucket/run/checkpoints/iter_000000100 s3://kept/run/checkpoints/iter_000000100
    JSON:
        {"target", "bytes", "moved": [path], "found": [path]}
    """
    with _about_payload(), _progress() as told:
        here = open_remote(source, credentials=credentials, ambient=_AMBIENT)
        there = open_remote(target, credentials=target_credentials or credentials, ambient=_AMBIENT)
        done = moving.copy(here, there, ambient=_AMBIENT, told=told)
    _tell_moved(done, as_json=as_json)


@click.command()
@click.argument("source", metavar="S3://BUCKET/PREFIX")
@click.argument("target", type=click.Path())
@credentials_option()
@as_json
def download(source: str, target: str, *, credentials: Path | None, as_json: bool) -> None:
    """Download everything below an address to the same names below TARGET; safe to call again.

    What is there with the same size and digest stays; anything else that is there is refused. For one checkpoint
    that has to appear whole, use fetch.

    \b
    Example:
        milepost download s3://bucket/run/checkpoints stage/checkpoints
    JSON:
        {"target", "bytes", "moved": [path], "found": [path]}
    """
    disk, path = _new(target)
    with _about_payload(), _progress() as told:
        remote = open_remote(source, credentials=credentials, ambient=_AMBIENT)
        done = moving.download(remote, disk, path, ambient=_AMBIENT, told=told)
    _tell_moved(done, as_json=as_json)


def _tell_moved(done: Moved, *, as_json: bool) -> None:
    if as_json:
        print_json(done)
        return
    count = len(done.moved) + len(done.found)
    click.echo(
        f"{count} files, {size(done.bytes)} in {done.target}: {len(done.moved)} moved, {len(done.found)} there"
    )


@frozen(kw_only=True)
class Promise:
    """One promise of a store: how it was tried and what was seen."""

    name: str
    kept: bool
    how: str
    seen: str


@frozen(kw_only=True)
class Probed:
    """What a store was seen to keep."""

    where: str
    kept: bool
    promises: tuple[Promise, ...]


@click.command()
@click.argument("address", metavar="S3://BUCKET/PREFIX")
@credentials_option()
@as_json
@click.pass_context
def probe(ctx: click.Context, address: str, *, credentials: Path | None, as_json: bool) -> None:
    """Try what a store can promise: conditional writes, overtaken ones, racing ones. What it writes, it removes.

    Exits with 1 where a promise was not seen to be kept: such a store can hold no run and no archive.

    \b
    Example:
        milepost probe s3://bucket/run --credentials store.json
    JSON:
        {"where", "kept", "promises": [{"name", "kept", "how", "seen"}]}
    """
    remote = open_remote(address, credentials=credentials, ambient=_AMBIENT)
    seen = probe_store(remote.bucket, remote.start, ambient=_AMBIENT)
    done = Probed(
        where=remote.where(""),
        kept=seen.kept,
        promises=tuple(
            Promise(name=name, kept=tried.kept, how=tried.how, seen=tried.seen) for name, tried in seen.items()
        ),
    )
    if as_json:
        print_json(done)
    else:
        print_table(
            ("PROMISE", "KEPT", "TRIED BY", "SEEN"),
            [(one.name.replace("_", " "), "yes" if one.kept else "no", one.how, one.seen) for one in done.promises],
            styles=["" if one.kept else "red" for one in done.promises],
        )
    ctx.exit(0 if done.kept else 1)


def _published(directory: str) -> tuple[LocalDisk, str]:
    """An existing directory, on a disk whose root is the run that it may lie in."""
    path = os.path.realpath(os.path.expanduser(directory))
    if not os.path.isdir(path):
        found = "a file" if os.path.exists(path) else "nothing"
        raise Refused(f"{path}: expected the directory of a checkpoint or an artifact, found {found}; name an iter_*")
    root = os.path.dirname(os.path.dirname(path))
    return LocalDisk(root), os.path.relpath(path, root)


def _new(directory: str) -> tuple[LocalDisk, str]:
    """A name in an existing directory, which is the disk's root."""
    above, name = os.path.split(os.path.abspath(os.path.expanduser(directory)))
    if not os.path.isdir(above):
        raise Refused(f"{above}: expected the directory above {name or 'the target'}, found none; make it first")
    return LocalDisk(os.path.realpath(above)), name


@contextmanager
def _about_payload() -> Iterator[None]:
    """What is corrupt here is payload or what speaks of it, never a journal: its exit code is 5."""
    try:
        yield
    except NewerVersion:
        raise
    except Corrupt as wrong:
        click.echo(f"milepost: {wrong}", err=True)
        click.get_current_context().exit(5)


@contextmanager
def _progress() -> Iterator[Told]:
    """A bar on stderr for each stage, with bytes and rate, where a person watches it."""
    if not sys.stderr.isatty():
        yield untold
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bars:
        tasks = {}

        def told(progress: Progress) -> None:
            if progress.doing not in tasks:
                tasks[progress.doing] = bars.add_task(progress.doing)
            bars.update(tasks[progress.doing], completed=progress.done, total=progress.total)

        yield told
