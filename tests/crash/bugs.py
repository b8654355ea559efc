"""Bugs by name: what somebody could write in good faith, each an edit of one function of the product.

An edit is a pair of snippets, what is there and what was written instead. Whole lines are found whatever their
indentation, and what replaces them gets it; anything else is replaced within its line. An edit whose text is no
longer there, once, fails loudly. The function's code is changed for the time of a `with`, and nothing else is.

Those of ranks and roles are in `crew_bugs.py`.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import CodeType, FunctionType

import pytest
from attrs import frozen

from tests.crash import duels, gauntlet, policies
from tests.crash.planting import code_of, function_at, functions, source_of
from tests.crash.promises import forget


@frozen
class Bug:
    """A mistake in `module:function`; `by` is the check that is to catch it, where the first ones do not.

    One that takes two functions to make has its other half `beside` it.
    """

    name: str
    where: str
    edits: tuple[tuple[str, str], ...]
    by: Callable[[], None] | None = None
    beside: Bug | None = None

    def __str__(self) -> str:
        return self.name


@contextmanager
def written(bug: Bug) -> Iterator[None]:
    """The product as it would be with this bug in it."""
    function, bent = _function_of(bug)
    before = function.__code__
    function.__code__ = bent
    forget()
    try:
        with nullcontext() if bug.beside is None else written(bug.beside):
            yield
    finally:
        function.__code__ = before
        forget()


def require_caught(bug: Bug) -> None:
    """The check of this bug notices it."""
    assert bug.by is not None
    with written(bug), pytest.raises((Exception, pytest.fail.Exception)):
        bug.by()


def require_sound(bugs: Iterable[Bug]) -> None:
    """Without any bug each check of these passes."""
    for check in {bug.by for bug in bugs}:
        assert check is not None
        check()


def _function_of(bug: Bug) -> tuple[FunctionType, CodeType]:
    """The function that has the bug, and its code with it."""
    module, _, name = bug.where.partition(":")
    function = function_at(module, name)
    source = source_of(module)
    node = dict(functions(ast.parse(source)))[name]
    lines = source.split("\n")
    bent = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    for old, new in bug.edits:
        bent = _edited(bent, old, new, bug)
    lines[node.lineno - 1 : node.end_lineno] = bent.split("\n")
    return function, code_of(ast.parse("\n".join(lines)), name, function.__code__.co_filename)


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
BOUNDARIES = "journal.boundaries:Boundaries"
PLANNING = "transitions.planning"
RETENTION = "transitions.retention"
VALIDATION = "transitions.validation"
OPENING = "journal.opening:open_attempt"
PUBLISH = "self.disk.publish(staged, final)"
MANIFEST = 'self._write(f"{staged}/{name}", data)'
DONE = "return digest_of(data, name=name)"
POINT = "self.point(manifest.save, epoch=manifest.save.epoch)"
SAID = """if pending:
    said = Generation.EVALUATION_PENDING
    self._write(f"{staged}/{generations.name_of(said)}", generations.encode(manifest.save, said))"""
UNPENDED = "if not pending:"
PASSED = "self._driver.submit(ReportPassed(step=step, archive=self._saves.destination))"
EVALUATED = "self._publish(step)"
COMPLETED = "self._driver.drain()\nself._complete(step)"
REOPENED = 'return evolve(validation, stage=follow(TABLE, validation.stage, record, of="the validation"))'
FAILED = "return _with(retention, evolve(prune, stage=follow(TABLE, prune.stage, record, of=_called(prune))))"
THERE = "if self.disk.stat(final) is not None:"
UNLINKED = """for file in files:
    with suppress(FileNotFoundError):
        self.disk.unlink(f"{path}/{file}")"""

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
        (("self.disk.sync_dir(tree.path)\nself.disk.sync_dir(self._staging)", "pass"),),
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
        (("(already := tree.look(manifest.save)) is not None", "(already := None) is not None"),),
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
        by=duels.two_writers_never_lie,
    ),
    Bug(
        "a header closes nothing",
        "journal.opening:open_epoch",
        (("closes=folded.closes,", "closes=(),"),),
    ),
    Bug(
        "the lock is given back at once",
        OPENING,
        (("undo.callback(give_back, lock, disk.where(attempt.path))", "lock.release()"),),
    ),
    Bug(
        "an overtaken opener cries damage",
        "journal.opening:_fold",
        (("require_unfenced(appender)", "pass"),),
        by=duels.two_writers_never_lie,
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
        f"{LOCAL}._make",
        (
            (
                "with suppress(FileExistsError):  # mostly; or another writer was faster",
                "if not self.disk.stat(path):",
            ),
        ),
    ),
    # --- settling
    Bug(
        "the look comes before the revocation",
        f"{LOCAL}.observe",
        (
            ("found = tree.look(save)", "pass"),
            (
                'with self._unavailable(f"revoking the staging of save {save}"):',
                'with self._unavailable(f"revoking the staging of save {save}"):\n    found = tree.look(save)',
            ),
        ),
    ),
    Bug(
        "an unsettled save is believed to be gone without a look",
        f"{LOCAL}.observe",
        (("found = tree.look(save)", "found = None"),),
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
        (("if any(self._is_one(path, tree.of(save)) for tree in self._trees):", "if False:"),),
    ),
    Bug(
        "two sweeps of one debris get in each other's way",
        f"{LOCAL}._remove",
        (("with suppress(FileNotFoundError):", "if True:"),),
    ),
    # --- the pointer
    Bug(
        "all epochs share the pointer's temporary",
        f"{LOCAL}.point",
        (('temporary = f"{prefix}{epoch}{suffix}"', 'temporary = f"{prefix}0{suffix}"'),),
        by=duels.a_newcomer_is_never_deceived,
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
        by=duels.two_writers_never_lie,
    ),
    # --- what a trainer asks for
    Bug(
        "a save is taken inside an accumulation window",
        "transitions.saving:open_save",
        (("if updates.stage is UpdateStage.ACCUMULATING:", "if False:"),),
    ),
    Bug(
        "a sealed step is saved again",
        "journal.leading:Leading.save",
        (("if self.state.saving.holds(step, plan) is None:", "if True:"),),
    ),
    Bug(
        "an order to stop is acknowledged before its save is durable",
        f"{BOUNDARIES}._stop",
        (
            ("reason=work.reason", "reason=Reason.REQUESTED"),
            ("self._driver.submit(CoverEmergency(step=step, plan=work.plan or self._policy.emergency))", "pass"),
        ),
    ),
    # --- artifacts
    Bug(
        "artifacts lie among the checkpoints",
        f"{LOCAL}._tree",
        (("return self._full if plan == FULL else self._partial", "return self._full"),),
    ),
    Bug(
        "an artifact moves the pointer",
        f"{LOCAL}.seal",
        ((DONE, f"if manifest.plan != FULL:\n    {POINT}\n{DONE}"),),
    ),
    Bug(
        "the manifest of an artifact is not last",
        f"{LOCAL}.seal",
        (
            (PUBLISH, f"if manifest.plan == FULL:\n    {PUBLISH}"),
            (MANIFEST, f"if manifest.plan != FULL:\n    {PUBLISH}\n    staged = final\n{MANIFEST}"),
        ),
        by=policies.every_crash_of_artifacts_is_survived,
    ),
    Bug(
        "an artifact is written a second time",
        "transitions.saving:_misplaced",
        (("if plan != FULL and step in saving.artifacts:", "if False:"),),
    ),
    Bug(
        "an artifact is saved below the newest step",
        "transitions.saving:Saving.newest_step",
        (("(self.newest, self.newest_artifact)", "(self.newest,)"),),
    ),
    Bug(
        "a start goes on behind a newer artifact",
        "transitions.resuming:choose",
        (("if artifact is not None and (taken is None or taken.step < artifact.step):", "if False:"),),
    ),
    Bug(
        "a path goes on behind a newer artifact",
        "transitions.resuming:require_not_behind",
        (("newest = saving.newest_step", "newest = saving.newest.step if saving.newest else None"),),
    ),
    Bug(
        "an artifact of other components counts for the step",
        "transitions.saving:Saving.holds",
        (("if save is not None and covers(save.plan, plan):", "if save is not None:"),),
    ),
    Bug(
        "what was read of the artifacts is no witness",
        f"{LOCAL}.witnesses",
        (("in self._partial.manifests()", "in ()"),),
        by=policies.an_artifact_is_a_witness,
    ),
    # --- which save, and when
    Bug(
        "of two plans that are due together one is saved",
        f"{PLANNING}:at_boundary",
        (("plan = union(regular, wanted)", "plan = regular or wanted"),),
    ),
    Bug(
        "an artifact that is due waits for the evaluation",
        f"{PLANNING}:at_boundary",
        (("elif validating and plan and not regular:", "elif validating and plan:"),),
    ),
    Bug(
        "a checkpoint waits for its evaluation",
        f"{PLANNING}:at_boundary",
        (("if validating and plan == FULL:", "if False:"),),
    ),
    Bug(
        "an artifact of validation alone is saved before the evaluation",
        f"{PLANNING}:at_boundary",
        (("elif validating and plan and not regular:", "elif False:"),),
    ),
    Bug(
        "a stop with a validation due saves what is configured",
        f"{PLANNING}:at_stop",
        (("plan = FULL if validating else policy.emergency", "plan = policy.emergency"),),
    ),
    Bug(
        "a stop forgets the validation that was due",
        f"{PLANNING}:at_stop",
        (("pending = Evaluation.OF_PENDING if validating else Evaluation.NONE", "pending = Evaluation.NONE"),),
    ),
    Bug(
        "a stop asks again for what its step has an artifact of",
        f"{PLANNING}:at_stop",
        (("if plan == FULL or artifact is None:", "if True:"),),
    ),
    Bug(
        "a stop does not join the save before it",
        f"{BOUNDARIES}._stop",
        (("self._saves.finalize()", "pass"),),
    ),
    Bug(
        "an evaluation begins before the save beside it is through",
        f"{BOUNDARIES}.at",
        (("self._saves.finalize()  # a save that was due survives whatever the evaluation does", "pass"),),
    ),
    # --- validations
    Bug(
        "an evaluation counts as passed before it ran",
        f"{BOUNDARIES}._evaluate",
        ((EVALUATED, COMPLETED), (UNPENDED, f"if pending:\n    {PASSED}\n{UNPENDED}")),
    ),
    Bug(
        "a checkpoint is announced before its evaluation",
        f"{BOUNDARIES}._evaluate",
        ((EVALUATED, "pass"), (UNPENDED, f"if pending:\n    self._publish(step)\n{UNPENDED}")),
    ),
    Bug(
        "an evaluation that failed counts as passed",
        f"{BOUNDARIES}._evaluate",
        (("raise", "pass"),),
    ),
    Bug(
        "a start without a way to evaluate trains all the same",
        f"{BOUNDARIES}.settle",
        (("if validate is None:", "if validate is None:\n    return\nif False:"),),
    ),
    Bug(
        "the first step comes before the evaluation that is pending",
        "journal.leading:Leading.begin",
        (("self._boundaries.settle(validate)", "pass"),),
    ),
    Bug(
        "a new writer forgets what is pending",
        f"{VALIDATION}:on_run_opened",
        ((REOPENED, "return Validation(completed=validation.completed)"),),
    ),
    Bug(
        "a new writer evaluates once more what passed",
        f"{VALIDATION}:on_run_opened",
        (
            (
                REOPENED,
                "passed = validation.pending is not None\n"
                "return evolve(validation, stage=ValidationStage.EVALUATING if passed else validation.stage)",
            ),
        ),
    ),
    Bug(
        "a resume forgets what it has to evaluate",
        f"{VALIDATION}:on_run_resumed",
        ((" and record.save != validation.save", ""),),
    ),
    Bug(
        "a checkpoint is published before it says that it is pending",
        f"{LOCAL}.seal",
        ((SAID, "pass"), (DONE, f"{SAID.replace('staged', 'final')}\n    self.disk.sync_dir(final)\n{DONE}")),
    ),
    Bug(
        "a checkpoint never says that it is pending",
        f"{LOCAL}.seal",
        (("if pending:", "if False:"),),
    ),
    Bug(
        "a generation replaces the one before",
        f"{LOCAL}.mark",
        (("generations.name_of(generation)", "generations.names[0]"),),
        beside=Bug(
            "a note replaces what is there",
            f"{LOCAL}._join",
            (("self.disk.link(note, path)", "self.disk.rename(note, path)"),),
        ),
    ),
    Bug(
        "a note is put in its place before its bytes are durable",
        f"{LOCAL}._note",
        (("self._write(path, data)", "with self.disk.create(path) as sink:\n    write_all(sink, data)"),),
    ),
    Bug(
        "the name of a note is believed to be free",
        f"{LOCAL}._note",
        (("with suppress(FileExistsError):  # of a dead writer, or of one that does not know yet", "if True:"),),
        by=duels.a_writer_that_sleeps_in_a_validation_is_overtaken,
    ),
    # --- retention
    Bug(
        "what is newest is pruned",
        f"{RETENTION}:_protected",
        (("if save == newest:", "if False:"),),
    ),
    Bug(
        "what is pending is pruned",
        f"{RETENTION}:_protected",
        (("if save == pending:", "if False:"),),
    ),
    Bug(
        "what was resumed from is pruned",
        f"{RETENTION}:_protected",
        (("if save == resumed:", "if False:"),),
    ),
    Bug(
        "what is in use is pruned",
        f"{RETENTION}:_protected",
        (("if save.step in policy.in_use:", "if False:"),),
    ),
    Bug(
        "retention counts what is pending",
        f"{RETENTION}:judge",
        (("rank += save.id != validation.pending", "rank += 1"),),
    ),
    Bug(
        "retention counts artifacts",
        f"{RETENTION}:kept",
        (("saving.sealed.items()", "{**dict(saving.artifacts.items()), **dict(saving.sealed.items())}.items()"),),
    ),
    Bug(
        "retention comes before the save that it makes room for",
        "journal.saves:Saves._lane",
        (("yield from self._driver.lane()", "yield from self._retention_lane()\nyield from self._driver.lane()"),),
        beside=Bug(
            "a save that is under way counts as the newest",
            f"{RETENTION}:judge",
            (
                ("judged, rank = [], 0", "judged, rank = [], len(saving.open)"),
                ("newest=saving.newest", "newest=saving.open[0].id if saving.open else saving.newest"),
            ),
        ),
    ),
    Bug(
        "a file goes before the marker that names it",
        f"{LOCAL}._release",
        (("self._require(save)", f"self._require(save)\n{UNLINKED}"),),
    ),
    Bug(
        "a checkpoint is removed in its place",
        f"{LOCAL}._remove_all",
        ((THERE, f"self._remove(final)\n{THERE}"),),
    ),
    Bug(
        "what was put aside for removal stays there",
        f"{LOCAL}._remove_all",
        (("self._destroy(path)", "pass"),),
    ),
    Bug(
        "a prune that failed is forgotten",
        f"{RETENTION}:on_prune_failed",
        ((FAILED, "return evolve(retention, open=tuple(one for one in retention.open if one is not prune))"),),
        by=policies.what_cannot_be_deleted_stops_nobody,
    ),
    Bug(
        "what cannot be deleted ends the run",
        "engines.perform:Engines._prune",
        (("except (Unavailable, Corrupt) as failure:", "except Corrupt as failure:"),),
        by=policies.what_cannot_be_deleted_stops_nobody,
    ),
    Bug(
        "a new writer leaves a prune as it is",
        f"{RETENTION}:on_run_opened",
        (("return evolve(retention, open=again)", "return evolve(retention, open=())"),),
        by=policies.every_crash_of_retention_is_survived,
    ),
    Bug(
        "what was released is a resume source",
        "journal.restoring:Restoring._locate",
        (("if files := released.read(disk, path):", "if False:"),),
    ),
)
