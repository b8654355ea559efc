"""Bugs by name: what somebody could write in good faith, each an edit of one function of the product.

An edit is a pair of snippets, what is there and what was written instead. Whole lines are found whatever their
indentation, and what replaces them gets it; anything else is replaced within its line. An edit whose text is no
longer there, once, fails loudly. The function's code is changed for the time of a `with`, and nothing else is.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attrs import frozen

from tests.crash import gauntlet
from tests.crash.planting import code_of, function_at, functions, source_of


@frozen
class Bug:
    """A mistake in `module:function`; `by` is the check that is to catch it, where the first ones do not."""

    name: str
    where: str
    edits: tuple[tuple[str, str], ...]
    by: Callable[[], None] | None = None

    def __str__(self) -> str:
        return self.name


@contextmanager
def written(bug: Bug) -> Iterator[None]:
    """The product as it would be with this bug in it."""
    module, _, name = bug.where.partition(":")
    function = function_at(module, name)
    source = source_of(module)
    node = dict(functions(ast.parse(source)))[name]
    lines = source.split("\n")
    bent = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    for old, new in bug.edits:
        bent = _edited(bent, old, new, bug)
    lines[node.lineno - 1 : node.end_lineno] = bent.split("\n")
    before = function.__code__
    function.__code__ = code_of(ast.parse("\n".join(lines)), name, before.co_filename)
    try:
        yield
    finally:
        function.__code__ = before


def _edited(source: str, old: str, new: str, bug: Bug) -> str:
    lines, wanted = source.split("\n"), old.split("\n")
    size = len(wanted)
    stripped = [line.strip() for line in lines]
    places = [at for at in range(len(lines)) if stripped[at : at + size] == [line.strip() for line in wanted]]
    if places:
        at = _only(places, old, bug)
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        return "\n".join((*lines[:at], textwrap.indent(new, indent), *lines[at + size :]))
    _only([at for at, line in enumerate(lines) for _ in range(line.count(old))], old, bug)
    return source.replace(old, new)


def _only(places: list[int], old: str, bug: Bug) -> int:
    assert len(places) == 1, f"{bug.name}: {bug.where} does not hold {old!r} once any more: adapt the bug"
    return places[0]


LOCAL = "engines.checkpoints.local:LocalCheckpoints"
OPENING = "journal.opening:open_attempt"
PUBLISH = "self.disk.publish(staged, final)"
MANIFEST = 'with self.disk.create(f"{staged}/{MANIFEST}") as sink:'

BUGS: tuple[Bug, ...] = (
    # --- making a checkpoint
    Bug(
        "the pointer moves before the checkpoint is published",
        f"{LOCAL}.seal",
        ((PUBLISH, f"self.point(manifest.save, epoch=manifest.save.epoch)\n{PUBLISH}"),),
    ),
    Bug(
        "what is in the way of publishing is removed",
        f"{LOCAL}.seal",
        ((PUBLISH, f"if self.disk.stat(final) is not None:\n    self._remove(final)\n{PUBLISH}"),),
    ),
    Bug(
        "a save is acknowledged before its directories are synced",
        f"{LOCAL}.seal",
        (("self.disk.sync_dir(self.root)\nself.disk.sync_dir(self._staging)", "pass"),),
    ),
    Bug(
        "the manifest is not last",
        f"{LOCAL}.seal",
        ((PUBLISH, "pass"), (MANIFEST, f"{PUBLISH}\nstaged = final\n{MANIFEST}")),
    ),
    Bug(
        "a save is given up after its publishing step",
        f"{LOCAL}.seal",
        (
            (
                'raise self._uncertain(f"syncing the publication of {manifest.save.directory}", error) from error',
                'raise GivenUp("EIO", "the directory was not synced") from error',
            ),
        ),
        by=gauntlet.every_fault_is_survived,
    ),
    Bug(
        "sealing twice is not sealing once",
        f"{LOCAL}.seal",
        (("(already := self._look(manifest.save)) is not None", "(already := None) is not None"),),
    ),
    Bug(
        "a short write is taken for a whole one",
        "engines.disks:write_all",
        (("rest = rest[sink.write(rest) :]", "sink.write(rest)\nbreak"),),
        by=gauntlet.every_fault_is_survived,
    ),
    # --- the log
    Bug(
        "an fsync that failed is tried again",
        "engines.logs.segments:SegmentAppender._sync_up_to",
        (("self._sink.sync()", "try:\n    self._sink.sync()\nexcept OSError:\n    self._sink.sync()"),),
        by=gauntlet.every_fault_is_survived,
    ),
    Bug(
        "the wrong successor is looked for",
        "engines.logs.segments:SegmentAppender.fenced",
        (("self._number + 1", "self._number + 2"),),
    ),
    Bug(
        "a corrupt line in the middle is set aside as torn",
        "journal.log.scan:Scan._judge",
        (("if synced >= place.seq:", "if False:"),),
    ),
    Bug(
        "witnesses are not looked at",
        "journal.log.scan:Scan._finish",
        (("if self._witnesses:", "if False:"),),
    ),
    # --- opening
    Bug(
        "recovery records before it syncs what it found",
        OPENING,
        (
            ("log.resync(folded.read, folded.closes)\ncheckpoints.resync()", "pass"),
            ("driver.drain()", "driver.drain()\nlog.resync(folded.read, folded.closes)\ncheckpoints.resync()"),
        ),
        by=gauntlet.a_power_loss_after_a_kill_is_survived,
    ),
    Bug(
        "the log is made durable before it is read",
        OPENING,
        (
            ("log.resync(folded.read, folded.closes)", "pass"),
            ("checkpoints.prepare()", "checkpoints.prepare()\nlog.resync(log.numbers(), ())"),
        ),
    ),
    Bug(
        "what came before is read before the claim",
        OPENING,
        (
            ("appender = log.claim()\nundo.callback(appender.close)", "pass"),
            (
                "folded = _fold(log, appender, checkpoints, cache)",
                "folded = fold(log, witnesses=dict(checkpoints.witnesses()), cache=cache)\n"
                "appender = log.claim()\n"
                "undo.callback(appender.close)",
            ),
        ),
        by=gauntlet.two_writers_never_lie,
    ),
    Bug(
        "a header closes nothing",
        OPENING,
        (("closes=folded.closes,", "closes=(),"),),
    ),
    Bug(
        "the lock is given back at once",
        OPENING,
        (("undo.callback(_release, lock, disk.where(attempt.path))", "lock.release()"),),
    ),
    Bug(
        "an overtaken opener cries damage",
        "journal.opening:_fold",
        (("_require_unfenced(appender)", "pass"),),
        by=gauntlet.two_writers_never_lie,
    ),
    Bug(
        "the epoch is used again",
        "transitions.run:open_run",
        (("epoch=run.epoch + 1,", "epoch=max(run.epoch, 1),"),),
    ),
    Bug(
        "a directory without a record is a candidate like any other",
        "transitions.resuming:choose",
        (("(c for c in candidates if c.save is not None)", "candidates"),),
    ),
    Bug(
        "of two first starts one fails over a directory",
        f"{LOCAL}.prepare",
        (("with suppress(FileExistsError):  # mostly; or another start was faster", "if not self.disk.stat(path):"),),
    ),
    # --- settling
    Bug(
        "the look comes before the revocation",
        f"{LOCAL}.observe",
        (
            ("found = self._look(save)", "pass"),
            (
                'with self._unavailable(f"revoking the staging of save {save}"):',
                'with self._unavailable(f"revoking the staging of save {save}"):\n    found = self._look(save)',
            ),
        ),
    ),
    Bug(
        "an unsettled save is believed to be gone without a look",
        f"{LOCAL}.observe",
        (("found = self._look(save)", "found = None"),),
    ),
    Bug(
        "an overtaken writer that is a moment faster makes its successor fail",
        f"{LOCAL}.observe",
        (
            (
                "with suppress(FileNotFoundError):  # never made, revoked before, or published a moment ago",
                "if self.disk.stat(staged) is not None:",
            ),
        ),
    ),
    Bug(
        "the sweep takes every epoch's staging",
        f"{LOCAL}.clear",
        (("(save.epoch < epoch or save in abandoned)", "True"),),
    ),
    Bug(
        "the sweep takes what is published under a second name",
        f"{LOCAL}.clear",
        ((" or self._look(save) is not None", ""),),
    ),
    Bug(
        "two sweeps of one debris get in each other's way",
        f"{LOCAL}._remove",
        (("with suppress(FileNotFoundError):\n    self.disk.unlink(below)", "self.disk.unlink(below)"),),
    ),
    # --- the pointer
    Bug(
        "all epochs share the pointer's temporary",
        f"{LOCAL}.point",
        (('temporary = f"{prefix}{epoch}{suffix}"', 'temporary = f"{prefix}0{suffix}"'),),
        by=gauntlet.a_newcomer_is_never_deceived,
    ),
    Bug(
        "an earlier epoch's pointer temporary is left to its writer",
        f"{LOCAL}.point",
        (("if name == temporary or _epoch_of(name, below=epoch) is not None:", "if name == temporary:"),),
    ),
    Bug(
        "the pointer is not written again at open",
        "transitions.pointing:on_run_opened",
        (("return evolve(pointer, stage=follow(TABLE", "return pointer or evolve(pointer, stage=follow(TABLE"),),
        by=gauntlet.two_writers_never_lie,
    ),
    # --- what a trainer asks for
    Bug(
        "a save is taken inside an accumulation window",
        "transitions.saving:open_save",
        (("if updates.stage is UpdateStage.ACCUMULATING:", "if False:"),),
    ),
    Bug(
        "a sealed step is saved again",
        "journal.facade:Journal.save",
        (("if step in self.state.saving.sealed:", "if False:"),),
    ),
    Bug(
        "an order to stop is acknowledged before its save is durable",
        "journal.facade:Journal._stop",
        (
            ("self.save(step, reason=Reason.EMERGENCY)", "self.save(step, reason=Reason.REQUESTED)"),
            ("self._driver.submit(CoverEmergency(step=step))", "pass"),
        ),
    ),
)
