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
from milepost.transitions.errors import Fenced, MilepostError, Unavailable
from milepost.transitions.machine import Command, Effect, Record, State, decide, due, evolve
from milepost.transitions.run import ClosedSegment, RotateSegment
from milepost.transitions.values import Witness


class Driver:
    """One writer's loop. `submit` and `state` may be used from any thread; lanes run one at a time."""

    def __init__(self, *, appender: Appender, engines: Engines, ambient: Ambient, state: State, head: Head) -> None:
        self._appender = appender
        self._engines = engines
        self._ambient = ambient
        self._state = state
        self._head = head
        self._lock = threading.RLock()
        self._poison: MilepostError | None = None
        self._durable: tuple[Mark, State] | None = None

    @property
    def state(self) -> State:
        """The state after the newest record."""
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
        decide(self._state, command)

    def submit(self, command: Command) -> tuple[Record, ...]:
        """Record what the command decides, in one entry. Durable after the next `barrier`."""
        with self._lock:
            self._require_sound()
            records = decide(self._state, command)
            if records:
                self._append(records)
            return records

    def barrier(self) -> Witness:
        """Make every record so far durable and look for a successor; the durable head."""
        with self._lock:
            self._require_sound()
            head, state = self._head, self._state
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
            effect = next((e for e in due(self._state) if e not in tried), None)
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
        self._appender.close()

    def _perform(self, effect: Effect, witness: Witness) -> Command:
        try:
            return self._engines.perform(effect, witness=witness)
        except (Uncertain, Fenced) as error:
            self._poison = error
            raise

    def _append(self, records: tuple[Record, ...]) -> None:
        state = self._state
        for record in records:
            state = evolve(state, record)
        line, head = self._pack(records, state)
        if not self._appender.has_room(len(line)):
            self._rotate()
            self._append(records)
            return
        try:
            self._appender.append(line, seq=head.seq)
        except MilepostError as error:
            self._poison = error
            raise
        self._state, self._head = state, head

    def _rotate(self) -> None:
        number, head = self._appender.number, self._head
        closes = ClosedSegment(number=number, length=self._appender.size, seq=head.seq, sum=head.sum, left=0)
        records = decide(self._state, RotateSegment(segment=number + 1, closes=(closes,)))
        state = self._state
        for record in records:
            state = evolve(state, record)
        header, head = self._pack(records, state)
        try:
            self._appender.rotate(header, seq=head.seq)
        except MilepostError as error:
            self._poison = error
            raise
        self._state, self._head = state, head

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
