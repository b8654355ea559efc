"""The loop: a command is decided, its records are folded and appended, and what is due is performed.

    command ─▶ decide ─▶ records ─▶ evolve ─▶ log.append ─▶ the new state is published
       ▲                                                          │
       └── perform(effect) ◀── barrier: log.sync, fence ◀── due(state)

1. `evolve` runs before the append: an illegal record never reaches the log.
2. Two barriers and no others: the log is synced before an effect is performed and before anything is acknowledged.
   The sync runs outside the append lock, so that the training loop's records never wait for a disk.
3. Nothing but the state remembers what is due. Running, resuming after a kill and retrying are this one path.
4. A lane tries each effect once; a failing one does not spin.
5. An append, a sync or a publishing step with an unknown outcome poisons the driver: nothing more is recorded, and
   the next epoch settles it by looking.
6. Records of sampled work ride on the next entry: they are published at once and held back in memory, no more than
   `HELD` of them and `HELD_BYTES` of what their sampler states say. The next entry has them in front of its own
   records, a barrier and the close write them first, and what is durable is never a state with more than its log.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from milepost.engines.ambient import Ambient, timestamp
from milepost.engines.checkpoints import Uncertain
from milepost.engines.logs import Appender
from milepost.engines.perform import Engines
from milepost.journal.log.entries import Head, pack
from milepost.journal.log.scan import Mark
from milepost.journal.sampling.live import FoldingLine
from milepost.transitions.errors import Fenced, MilepostError, Refused, Unavailable
from milepost.transitions.machine import Command, Effect, Record, State, decide, due, evolve, with_sampling
from milepost.transitions.run import ClosedSegment, RotateSegment, require_open
from milepost.transitions.sampling import (
    BeginSampling,
    SamplingRecord,
    SamplingRestored,
    SamplingToken,
    WorkIssued,
    begin,
    implied,
    issued,
    settled,
)
from milepost.transitions.values import SamplingPoint, Witness

HELD = 256
HELD_BYTES = 256 << 10
"""What is held back fits into one line, however much its quoting adds."""


class Driver:
    """One writer's loop. `submit` and `state` may be used from any thread; lanes run one at a time."""

    def __init__(self, *, appender: Appender, engines: Engines, ambient: Ambient, state: State, head: Head) -> None:
        self._appender = appender
        self._engines = engines
        self._ambient = ambient
        self._state = state
        self._line = FoldingLine(state.sampling)
        self._held: list[SamplingRecord] = []
        self._held_bytes = 0
        self._head = head
        self._lock = threading.RLock()
        self._poison: MilepostError | None = None
        self._durable: tuple[Mark, State] | None = None

    @property
    def state(self) -> State:
        """The state after the newest record, held back or not."""
        if self._line.moved:
            with self._lock:
                self._state = with_sampling(self._state, self._line.fold())
        return self._state

    @property
    def head(self) -> Head:
        """The newest entry."""
        return self._head

    @property
    def durable(self) -> tuple[Mark, State] | None:
        """A place in the log that is durable, and the state there: what the newest barrier covered."""
        return self._durable

    def check(self, command: Command) -> None:
        """Raise what `submit` would raise now; record nothing."""
        self._require_sound()
        decide(self.state, command)

    def submit(self, command: Command) -> tuple[Record, ...]:
        """Record what the command decides, in one entry. Durable after the next `barrier`."""
        with self._lock:
            self._require_sound()
            records = decide(self.state, command)
            if records:
                self._append(records)
            return records

    def begin_sampling(self, initial: SamplingPoint, *, size: int) -> None:
        """Record where sampling begins, in front of the next entry. `size` is that of its sampler state in bytes."""
        with self._lock:
            self._make_room(size)
            state = self.state
            self._begin(begin(state.sampling, BeginSampling(initial=initial), run=state.run), size=size)

    def issue_work(self, after: SamplingPoint, *, completions: int, limit: int, size: int) -> WorkIssued:
        """Record what is issued, and the beginning that it may imply, in front of the next entry."""
        with self._lock:
            self._make_room(size)
            require_open(self._state.run, "issue work")
            self._begin(implied(self._line, after, completions=completions), size=0)
            record = issued(self._line, after, completions=completions, limit=limit)
            self._line.issue(record)
            self._held.append(record)
            self._held_bytes += size
            return record

    def settle_work(self, token: SamplingToken, *, index: int) -> bool:
        """Record what is settled, in front of the next entry; False where nothing is."""
        with self._lock:
            self._make_room(0)
            run = self._state.run
            require_open(run, "settle work")
            assert run.opened is not None, "a run that is open has a writer"
            record = settled(self._line, token, index, execution_id=run.opened.execution_id)
            if record is None:
                return False
            self._line.settle(record)
            self._held.append(record)
            return True

    def _make_room(self, size: int) -> None:
        if self._poison is not None:
            self._require_sound()
        if self._held and (len(self._held) >= HELD or self._held_bytes + size > HELD_BYTES):
            self._append(())

    def _begin(self, records: tuple[SamplingRestored, ...], *, size: int) -> None:
        for record in records:
            self._publish(evolve(self.state, record), self._head)
            self._held.append(record)
            self._held_bytes += size

    def flush(self) -> None:
        """Append what is held back. Durable after the next `barrier`, which does this by itself."""
        with self._lock:
            self._require_sound()
            if self._held:
                self._append(())

    def barrier(self) -> Witness:
        """Make every record so far durable and look for a successor; the durable head."""
        with self._lock:
            self.flush()
            head, state = self._head, self.state
            mark = Mark(number=self._appender.number, offset=self._appender.size, head=head)
        try:
            self._appender.sync()
            if self._appender.fenced():
                raise Fenced(
                    f"another writer took this run over after entry {head.seq}; this one records nothing more. What "
                    "was acknowledged stays; let the other writer go on"
                )
        except MilepostError as error:
            self._poison = error
            raise
        self._durable = (mark, state)
        return Witness(seq=head.seq, sum=head.sum)

    def lane(self) -> Iterator[Effect]:
        """Perform what is due, each effect once, until nothing is; yields before each one.

        Every effect is behind a barrier, and so is the end.
        """
        tried: set[Effect] = set()
        while True:
            effect = next((e for e in due(self.state) if e not in tried), None)
            witness = self.barrier()
            if effect is None:
                return
            tried.add(effect)
            yield effect
            self.submit(self._perform(effect, witness))

    def drain(self) -> None:
        """Perform everything that is due, here and now."""
        deque(self.lane(), maxlen=0)

    def close(self) -> None:
        """Close the log. What was appended and not synced may be lost; nothing of it was acknowledged."""
        with self._lock:
            try:
                if self._poison is None:
                    self.flush()
            finally:
                self._appender.close()

    def _perform(self, effect: Effect, witness: Witness) -> Command:
        try:
            return self._engines.perform(effect, witness=witness)
        except (Uncertain, Fenced) as error:
            self._poison = error
            raise

    def _append(self, records: tuple[Record, ...]) -> None:
        """One entry of what is held back and of these; none of these writes what is held by itself."""
        state = self.state if records else self._state
        for record in records:
            state = evolve(state, record)
        try:
            line, head = self._pack((*self._held, *records), state)
        except Refused:
            if not (self._held and records):
                raise
            self._append(())  # together they are too long for a line
            self._append(records)
            return
        if not self._appender.has_room(len(line)):
            self._rotate()
            self._append(records)
            return
        try:
            self._appender.append(line, seq=head.seq)
        except MilepostError as error:
            self._poison = error
            raise
        self._publish(state, head)
        self._held, self._held_bytes = [], 0

    def _rotate(self) -> None:
        """Go on in the next segment. What is held back follows its header, which moves another part of the state."""
        number, head = self._appender.number, self._head
        closes = ClosedSegment(number=number, length=self._appender.size, seq=head.seq, sum=head.sum, left=0)
        state = self.state
        records = decide(state, RotateSegment(segment=number + 1, closes=(closes,)))
        for record in records:
            state = evolve(state, record)
        header, head = self._pack(records, state)
        try:
            self._appender.rotate(header, seq=head.seq)
        except MilepostError as error:
            self._poison = error
            raise
        self._publish(state, head)

    def _publish(self, state: State, head: Head) -> None:
        self._state, self._head, self._line = state, head, self._line.behind(state.sampling)

    def _pack(self, records: tuple[Record, ...], state: State) -> tuple[bytes, Head]:
        return pack(
            self._head,
            records,
            epoch=state.run.epoch,
            at=timestamp(self._ambient.now()),
            synced=self._appender.synced,
        )

    def _require_sound(self) -> None:
        if self._poison is not None:
            kind = Fenced if isinstance(self._poison, Fenced) else Unavailable
            raise kind(f"this writer has stopped recording: {self._poison}") from self._poison
