"""Everything that is promised about a run, held against what lies on the disk: all findings, not only the first.

    1. what was there before the log is read: names in checkpoints/, the witnesses of the manifests
    2. the journal: every sum, every link, every stated end, every witness (`scan`)
    3. the pointer, staging, names that nobody of ours makes
    4. each checkpoint and artifact: what the journal promises of it (`trees`), its manifest, its files by kind and
       size (`wholeness`), what it says of its validation, of its roles and of what retention took (`marks`)
    5. every digest of every file (not with `quick`)

A journal that is refused does not end it, nor one that a tree in a bucket never had: checkpoints are then held
against their own manifests. What a live writer is doing at the moment is no damage: what it publishes after step 1 is
not looked for by name, and what it pruned meanwhile is not missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from attrs import field, frozen

from milepost.engines.checkpoints.local import NOTE, POINTER, PRUNED, REVOKED, STAGING
from milepost.engines.logs import Log
from milepost.journal.forensics import findings as rows
from milepost.journal.forensics.findings import Finding, Row, exit_code, finding, finding_of
from milepost.journal.forensics.listing import checkpoints_at, witnesses_of
from milepost.journal.forensics.reading import Kind, Place
from milepost.journal.forensics.timeline import Beside, beside_manifests
from milepost.journal.forensics.trees import examine_trees, pruned_between
from milepost.journal.forensics.wholeness import Advance, hash_all
from milepost.journal.log.damage import Damaged
from milepost.journal.log.entries import LINE_LIMIT_BYTES, is_whole, unpack
from milepost.journal.log.replay import Folded, fold
from milepost.journal.log.scan import NO_WITNESSES, Span, survey
from milepost.transitions.errors import Corrupt, NewerVersion, Unavailable
from milepost.transitions.machine import State
from milepost.transitions.pointing import PointerStage
from milepost.transitions.run import ClosedSegment, RunStage, SegmentOpened
from milepost.transitions.values import SaveId, parse_iteration

_JOURNAL_NAMES = ("lock", "fold-cache", "fold-cache.new")
_SLOT_NAME = re.compile(r"\d{20}\.json|slot-cache", re.ASCII)


@frozen(kw_only=True)
class Verified:
    """What `verify` found, and how much it looked at. `bytes_hashed` is 0 for a quick one; `entries` counts those
    that were believed: 0 where the journal is refused. What retention removed is no checkpoint any more.
    """

    run: str
    quick: bool
    writer: int | None
    entries: int
    checkpoints: int
    artifacts: int
    files: int
    bytes_hashed: int
    exit_code: int
    findings: tuple[Finding, ...]


def verify(place: Place, *, quick: bool = False, advance: Advance = lambda done, total: None) -> Verified:
    """Hold the journal against the disk. `advance` is told how many bytes of how many are hashed.

    Where the place names a checkpoint, the others are not looked at.
    """
    return _Verifying(place=place, writer=place.writer()).verify(quick=quick, advance=advance)


@frozen(kw_only=True)
class _Verifying:
    """One pass. `found` grows while it goes."""

    place: Place
    writer: int | None
    found: list[Finding] = field(factory=list)

    def verify(self, *, quick: bool, advance: Advance) -> Verified:
        names = {kind: self._names(self.place.tree(kind)) for kind in Kind}
        copied = self._is_copied()
        folded = None if copied else self._journal()
        state = folded.state if folded is not None else None
        if folded is not None:
            self._gather(self._life(folded), about=self.place.journal)
        self._gather(self._journal_names(), about=self.place.journal)
        self._gather(self._pointer(state, names[Kind.CHECKPOINT], copied=copied), about=self.place.checkpoints)
        self._gather(self._staging(state), about=self.place.checkpoints)
        self._gather(self._around(names[Kind.CHECKPOINT]), about=self.place.checkpoints)
        self._gather(self._among_artifacts(names[Kind.ARTIFACT]), about=self.place.artifacts)
        trees = examine_trees(self.place, state=state, beside=self._beside(state), names=names, writer=self.writer)
        self.found.extend(trees.found)
        if not quick:
            self.found.extend(hash_all(self.place.disk, trees.pending, advance=advance))
        if state is not None and self.writer is not None:
            self._forgive_what_was_pruned_since(state)
        return Verified(
            run=self.place.where,
            quick=quick,
            writer=self.writer,
            entries=folded.head.seq if folded is not None else 0,
            checkpoints=trees.counts[Kind.CHECKPOINT],
            artifacts=trees.counts[Kind.ARTIFACT],
            files=len(trees.pending),
            bytes_hashed=0 if quick else sum(one.file.size for one in trees.pending),
            exit_code=exit_code(tuple(self.found)),
            findings=tuple(self.found),
        )

    def _say(self, row: Row, path: str, *, expected: str, found: str, offset: int | None = None) -> None:
        self.found.append(finding(row, self.place.disk.where(path), expected=expected, found=found, offset=offset))

    def _gather(self, found: Iterator[Finding], *, about: str) -> None:
        """What is found on the way; a disk that fails ends only this look, and is a finding itself."""
        try:
            for one in found:
                self.found.append(one)
        except (Unavailable, OSError) as failure:
            self._say(rows.LOOK_FAILED, about, expected="a disk that can be read", found=str(failure))

    # --- the journal --------------------------------------------------------------------------------------

    def _is_copied(self) -> bool:
        """Whether it is a tree in a bucket without any journal: an archive, or what was copied there."""
        place = self.place
        if not place.remote or place.disk.stat(place.journal) is not None:
            return False
        self._say(
            rows.NO_JOURNAL, place.journal, expected="a journal", found="nothing: the manifests alone are asked"
        )
        return True

    def _journal(self) -> Folded | None:
        """The fold, or None where the journal is refused."""
        place = self.place
        try:
            witnesses = witnesses_of(place, checkpoints_at(place))
        except (Unavailable, OSError) as failure:
            witnesses = NO_WITNESSES
            if not self.found:  # the listing before has not said it
                self._say(rows.LOOK_FAILED, place.checkpoints, expected="manifests", found=str(failure))
        try:
            folded = fold(place.log, witnesses=witnesses)
        except Damaged as refusal:
            first = finding_of(refusal.finding)
            self.found.append(first)
            self._gather(self._other_bad_lines(first), about=place.journal)
            return None
        except NewerVersion as refusal:
            self._say(rows.NEWER_JOURNAL, place.journal, expected="entries of this version", found=str(refusal))
            return None
        except Corrupt as refusal:
            self._say(rows.BAD_SLOT, place.journal, expected="every slot, whole and in its place", found=str(refusal))
            return None
        except Unavailable as failure:
            self._say(rows.UNREADABLE_JOURNAL, place.journal, expected="a journal to read", found=str(failure))
            return None
        for torn in folded.torn:
            if self.writer is None:
                self.found.append(finding_of(torn))
            else:
                row = rows.BEING_WRITTEN
                self.found.append(
                    finding(row, torn.where, offset=torn.offset, expected=torn.expected, found=torn.found)
                )
        return folded

    def _other_bad_lines(self, first: Finding) -> Iterator[Finding]:
        """Every other line whose own sum is wrong: what the chain says past the first damage cannot be known."""
        log = self.place.log
        for number in log.numbers():
            offset, where = 0, log.where(number)
            with log.open(number, stop=log.size(number)) as stream:
                while line := stream.readline(LINE_LIMIT_BYTES + 1):
                    if not is_whole(line) and (where, offset) != (first.place, first.offset):
                        yield finding(
                            rows.BAD_LINE,
                            where,
                            offset=offset,
                            expected="an entry",
                            found=f"{len(line)} bytes whose sum differs",
                        )
                    offset += len(line)

    def _life(self, folded: Folded) -> Iterator[Finding]:
        """Whether the run came to an end, what it left open, and the bytes that no longer count."""
        place, run = self.place, folded.state.run
        journal = place.disk.where(place.journal)
        if run.stage is RunStage.UNOPENED:
            yield finding(rows.EMPTY_JOURNAL, journal, expected="an opened run", found="no entry of one")
        if run.stage is RunStage.OPEN and self.writer is None:
            found = f"epoch {run.epoch} has no end, and no writer is seen on this machine"
            yield finding(rows.NOT_ENDED, journal, expected="an end of the run, or a writer", found=found)
        for save in folded.state.saving.open:
            row = rows.SAVE_OPEN if self.writer is None else rows.BEING_WRITTEN
            where = place.disk.where(f"{place.checkpoints}/{save.id.directory}")
            yield finding(row, where, expected="a settled save", found=f"save {save.id}, {save.stage.value}")
        yield from self._evidence()

    def _evidence(self) -> Iterator[Finding]:
        """What a killed writer left behind a valid length lies there as long as it was when its successor looked."""
        log = self.place.log
        numbers = log.numbers()
        for span in survey(log).spans:
            for closed in _closed_by(log, span):
                size = log.size(closed.number) if closed.number in numbers else 0
                if size != closed.length + closed.left:
                    yield finding(
                        rows.EVIDENCE_CHANGED,
                        log.where(closed.number),
                        offset=closed.length,
                        expected=f"{closed.left} bytes behind the valid length, as its successor saw them",
                        found=f"{size - closed.length} bytes",
                    )

    def _journal_names(self) -> Iterator[Finding]:
        place = self.place
        expected = "slots and their cache" if place.remote else "segments and the lock"
        known = frozenset(_JOURNAL_NAMES)
        if not place.remote:
            known |= {f"{number:08d}.jsonl" for number in place.log.numbers()}
        for name in self._names(place.journal):
            if name not in known and not (place.remote and _SLOT_NAME.fullmatch(name)):
                yield self._stranger(f"{place.journal}/{name}", expected=expected)

    # --- beside the checkpoints ---------------------------------------------------------------------------

    def _pointer(self, state: State | None, names: tuple[str, ...], *, copied: bool) -> Iterator[Finding]:
        disk, path = self.place.disk, f"{self.place.checkpoints}/{POINTER}"
        where = disk.where(path)
        target = state.pointer.target if state is not None else None
        try:
            raw = disk.read(path, limit=4096)
        except FileNotFoundError:
            if copied:
                return  # an archive has none
            if target is not None or (state is None and any(parse_iteration(name) is not None for name in names)):
                written = state is None or (state.pointer.at is not None and self.writer is None)
                row = rows.POINTER_MISSING if written else rows.POINTER_PENDING
                yield finding(row, where, expected=target.directory if target else "a pointer", found="nothing")
            return
        except OSError as error:
            yield finding(rows.POINTER_UNREADABLE, where, expected="a small file", found=str(error))
            return
        name = raw.decode("ascii", "replace").removesuffix("\n")
        if parse_iteration(name) is None or raw != f"{name}\n".encode():
            expected = target.directory if target else "the name of a checkpoint"
            yield finding(rows.POINTER_MALFORMED, where, expected=f"{expected} and a newline", found=repr(raw))
        elif state is None:
            if name not in names:
                yield finding(rows.POINTER_DANGLING, where, expected="a name in checkpoints/", found=name)
        else:
            yield from self._pointed(state, name, where)

    def _pointed(self, state: State, name: str, where: str) -> Iterator[Finding]:
        """A well-formed pointer against the journal."""
        pointer = state.pointer
        step = parse_iteration(name)
        assert step is not None
        target = pointer.target.directory if pointer.target is not None else "nothing: no checkpoint is sealed"
        ahead = self.writer is not None and (pointer.target is None or step > pointer.target.step)
        if name == target or ahead:
            return
        if step not in state.saving.sealed:
            yield finding(rows.POINTER_DANGLING, where, expected=target, found=f"{name}, which was never sealed")
        elif pointer.stage is PointerStage.STALE and pointer.at is not None and name == pointer.at.directory:
            if self.writer is None:
                yield finding(rows.POINTER_PENDING, where, expected=target, found=name)
        else:
            yield finding(rows.POINTER_BEHIND, where, expected=target, found=name)

    def _staging(self, state: State | None) -> Iterator[Finding]:
        """What lies in .staging; what a live writer stages is nobody else's concern."""
        place = self.place
        folder = f"{place.checkpoints}/{STAGING}"
        for name in self._names(folder):
            path = f"{folder}/{name}"
            epoch = _staged_in(name)
            if epoch is None:
                yield self._stranger(path, expected="save ids")
            elif self.writer is None or (state is not None and epoch < state.run.epoch):
                found = "what an attempt that ended left"
                if name.startswith(PRUNED):
                    found = "what retention took out of the checkpoints and has not removed yet"
                yield finding(rows.STAGING_LEFTOVER, place.disk.where(path), expected="nothing", found=found)

    def _around(self, names: tuple[str, ...]) -> Iterator[Finding]:
        """Names in checkpoints/ that are neither a checkpoint nor ours otherwise."""
        place = self.place
        for name in names:
            path = f"{place.checkpoints}/{name}"
            if name in (POINTER, STAGING) or parse_iteration(name) is not None:
                continue
            if name.startswith(f"{POINTER}.") and name.endswith(".tmp"):
                if self.writer is None:
                    found = "the temporary of a writer that ended"
                    yield finding(rows.POINTER_TEMPORARY, place.disk.where(path), expected="nothing", found=found)
            else:
                yield self._stranger(path, expected="checkpoints and the pointer")

    def _stranger(self, path: str, *, expected: str) -> Finding:
        stat = self.place.disk.stat(path)
        kind = stat.kind if stat is not None else "name that is gone again"
        row = rows.SYMLINK if kind == "symlink" else rows.UNKNOWN_NAME
        return finding(row, self.place.disk.where(path), expected=expected, found=f"a {kind} of another name")

    def _among_artifacts(self, names: tuple[str, ...]) -> Iterator[Finding]:
        """Names in checkpoint_artifacts/ that are no artifact: a save is staged in the other tree."""
        for name in names:
            if parse_iteration(name) is None:
                yield self._stranger(f"{self.place.artifacts}/{name}", expected="artifacts")

    def _beside(self, state: State | None) -> Beside | None:
        """What the journal says of the small files beside each manifest; None where it cannot be asked."""
        if state is None:
            return None
        try:
            return beside_manifests(self.place.log)
        except Unavailable as failure:
            self._say(rows.UNREADABLE_JOURNAL, self.place.journal, expected="a journal to read", found=str(failure))
            return None

    def _forgive_what_was_pruned_since(self, before: State) -> None:
        """Take back what was said of checkpoints of which a live writer's retention took something meanwhile."""
        try:
            now = fold(self.place.log).state
        except Unavailable:
            return  # what was said stays said: nothing more can be known
        pruned = pruned_between(self.place, before, now)
        self.found[:] = [one for one in self.found if not f"{one.place}/".startswith(tuple(f"{p}/" for p in pruned))]

    def _names(self, path: str) -> tuple[str, ...]:
        """The names in a directory; one that cannot be listed is a finding, one that is not there is empty."""
        try:
            return self.place.disk.names(path)
        except FileNotFoundError:
            return ()
        except OSError as error:
            self._say(rows.LOOK_FAILED, path, expected="a directory to list", found=str(error))
            return ()


def _closed_by(log: Log, span: Span) -> tuple[ClosedSegment, ...]:
    """What the header of a segment that was believed closes."""
    with log.open(span.number, stop=span.stop) as stream:
        header = unpack(stream.readline(LINE_LIMIT_BYTES + 1)).records[0]
    assert isinstance(header, SegmentOpened)
    return header.closes


def _staged_in(name: str) -> int | None:
    """The epoch of the save that a name in the staging area belongs to; None for a name that none has."""
    kind = next((prefix for prefix in (REVOKED, PRUNED, NOTE) if name.startswith(prefix)), "")
    try:
        return SaveId.parse(name.removeprefix(kind).partition("~")[0]).epoch
    except ValueError:
        return None
