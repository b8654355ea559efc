"""What a store can promise, tried on the store itself before anything rests on it.

1. Tried are: a create; the same create again with other bytes, which has to be refused and to change nothing; a swap
   by the right version, by an overtaken one, and of nothing; a create and a swap that begin, are held back before
   their last byte and are overtaken (a store that looks at the condition when a request begins lets both happen);
   racers that send their last byte together (a store that looks just before it writes lets several happen).
2. Fail closed: a promise that was not seen to be kept is not kept. An answer that stays unclear is one of those.
3. The keys of a probe carry a nonce, and are removed. One that fails in between leaves nothing that anybody reads.
4. A kept race proves nothing; a broken one does. Racers that were not together would prove even less, so they wait
   for each other at the last byte, and a race in which they did not meet does not count as kept.
5. Where a store's answer cannot be read at all (no permission, no bucket) the error of the verb is raised. An object
   whose bytes are not those of one writer is an answer: the store let several write it at once.

Source: Amazon S3 user guide, "Conditional requests"; stores that break each of these promises were met on loopback.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from attrs import fields, frozen

from milepost.engines.ambient import Ambient
from milepost.engines.buckets import Answer, Bucket, Committed, Conflict, Gate, Version
from milepost.transitions.errors import Corrupt, MilepostError, Misconfigured

RACERS = 4
DEADLINE_S = 30.0
MEET_S = 20.0

OVERTAKE_S = 5.0
"""How long an overtaker may take: a store that locks the key makes it wait for the one that is held."""

_LIMIT = 1024

Seen = Answer | Corrupt
"""What came of a conditional request."""


@frozen(kw_only=True)
class Tried:
    """One promise: whether it was kept, how that was tried, and what was seen."""

    kept: bool
    how: str
    seen: str


@frozen(kw_only=True)
class Promises:
    """What the store was seen to keep."""

    create: Tried
    swap: Tried
    overtaken_create: Tried
    overtaken_swap: Tried
    racing_creates: Tried

    def items(self) -> tuple[tuple[str, Tried], ...]:
        """Each promise by its name, in the order of trying."""
        return tuple((item.name, getattr(self, item.name)) for item in fields(Promises))

    @property
    def kept(self) -> bool:
        return all(tried.kept for _, tried in self.items())

    def require(self, where: str) -> None:
        """`Misconfigured` names each promise that the store does not keep."""
        broken = [
            f"{where}: the store does not keep {name.replace('_', ' ')} ({tried.how}): {tried.seen}; two writers "
            "could destroy each other's checkpoints: use a store with conditional writes (on Google: provider google)"
            for name, tried in self.items()
            if not tried.kept
        ]
        if broken:
            raise Misconfigured(tuple(broken))


def probe(bucket: Bucket, prefix: str, *, ambient: Ambient, racers: int = RACERS, meet_s: float = MEET_S) -> Promises:
    """Try everything below `prefix`, which is empty or ends with a slash; about a second on a store nearby.

    `meet_s` is how long a held request waits for its release, and racers wait for each other. Raises what the verbs
    raise where the store cannot be asked.
    """
    trial = _Trial(bucket, f"{prefix}probe-{ambient.nonce()}", meet_s=meet_s)
    try:
        bucket.stat(trial.key("absent"))  # without the permission to list, this is a refusal and not None
        return Promises(
            create=trial.create(),
            swap=trial.swap(),
            overtaken_create=trial.overtaken_create(),
            overtaken_swap=trial.overtaken_swap(),
            racing_creates=trial.racing_creates(racers),
        )
    finally:
        trial.clean_up()


class _Trial:
    def __init__(self, bucket: Bucket, stem: str, *, meet_s: float) -> None:
        self._meet_s = meet_s
        self._bucket = bucket
        self._stem = stem
        self._keys: list[str] = []

    def key(self, name: str) -> str:
        self._keys.append(f"{self._stem}/{name}")
        return self._keys[-1]

    def clean_up(self) -> None:
        with suppress(MilepostError, OSError):  # what went wrong before is what is told
            for key in self._keys:
                self._bucket.delete(key)

    def _found(self, key: str) -> bytes | Corrupt | None:
        try:
            return self._bucket.read(key, limit=_LIMIT)[0]
        except FileNotFoundError:
            return None
        except Corrupt as mixed:  # rule 5
            return mixed

    def create(self) -> Tried:
        key = self.key("create")
        answers = [self._create(key, b"first"), self._create(key, b"second")]
        found = self._found(key)
        return Tried(
            kept=_kinds(answers) == ["committed", "conflict"] and found == b"first",
            how="a create, then another one with other bytes",
            seen=f"{', '.join(_kinds(answers))}; the object holds {_named(found)}",
        )

    def swap(self) -> Tried:
        key, missing = self.key("swap"), self.key("missing")
        answers = [self._create(key, b"first")]
        first = _version(answers[0])
        answers.append(self._swap(key, b"second", first))
        answers.append(self._swap(key, b"third", first))
        answers.append(self._swap(missing, b"fourth", first))
        found = self._found(key)
        absent = self._bucket.stat(missing) is None
        return Tried(
            kept=_kinds(answers) == ["committed", "committed", "conflict", "conflict"]
            and found == b"second"
            and absent,
            how="a swap by the right version, by an overtaken one, and of nothing",
            seen=f"{', '.join(_kinds(answers[1:]))}; the object holds {_named(found)}"
            + ("" if absent else ", and there is one where nothing was"),
        )

    def overtaken_create(self) -> Tried:
        key = self.key("overtaken-create")
        return self._overtaken(
            key,
            held=lambda gate: self._create(key, b"held", gate),
            overtaker=lambda: self._create(key, b"overtaker"),
            how="a create held back before its last byte while another one commits",
        )

    def overtaken_swap(self) -> Tried:
        key = self.key("overtaken-swap")
        first = _version(self._create(key, b"first"))
        return self._overtaken(
            key,
            held=lambda gate: self._swap(key, b"held", first, gate),
            overtaker=lambda: self._swap(key, b"overtaker", first),
            how="a swap held back before its last byte while another one commits",
        )

    def _overtaken(self, key: str, *, held: Callable[[Gate], Seen], overtaker: Callable[[], Seen], how: str) -> Tried:
        begun, released = threading.Event(), threading.Event()
        met = False

        def gate() -> None:
            nonlocal met
            met = True
            begun.set()
            released.wait(self._meet_s)

        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(held, gate)
            first.add_done_callback(lambda _first: begun.set())  # one that fails is not waited for
            try:
                begun.wait(self._meet_s)
                second = pool.submit(overtaker)
                _finish(second, within_s=OVERTAKE_S)
            finally:
                released.set()
            answers: list[Seen] = [first.result(), second.result()]
        return self._one_winner(key, answers, [b"held", b"overtaker"], met=met, how=how)

    def racing_creates(self, racers: int) -> Tried:
        key = self.key("race")
        together = threading.Barrier(racers)
        bodies = [f"racer {number}".encode() for number in range(racers)]
        met: set[bytes] = set()

        def race(body: bytes) -> Seen:
            first = True

            def gate() -> None:
                nonlocal first
                if first:  # a second attempt does not wait for anybody
                    first = False
                    with suppress(threading.BrokenBarrierError):
                        together.wait(self._meet_s)
                        met.add(body)

            try:
                return self._create(key, body, gate)
            except BaseException:
                together.abort()  # nobody waits for one that failed
                raise

        with ThreadPoolExecutor(racers) as pool:
            answers = list(pool.map(race, bodies))
        how = f"{racers} creates that send their last byte together"
        return self._one_winner(key, answers, bodies, met=len(met) == racers, how=how)

    def _one_winner(
        self, key: str, answers: Sequence[Seen], bodies: Sequence[bytes], *, met: bool, how: str
    ) -> Tried:
        found = self._found(key)
        kinds = _kinds(answers)
        won = [body for kind, body in zip(kinds, bodies, strict=True) if kind == "committed"]
        clear = kinds.count("conflict") == len(kinds) - 1
        return Tried(
            kept=met and clear and won == [found],
            how=how,
            seen=f"{', '.join(kinds)}; the object holds {_named(found)}" + ("" if met else "; they did not meet"),
        )

    def _create(self, key: str, data: bytes, gate: Gate | None = None) -> Seen:
        try:
            return self._bucket.create(key, data, deadline_s=DEADLINE_S, gate=gate)
        except Corrupt as mixed:  # what a refusal found (rule 5)
            return mixed

    def _swap(self, key: str, data: bytes, expected: Version, gate: Gate | None = None) -> Seen:
        try:
            return self._bucket.swap(key, data, expected=expected, deadline_s=DEADLINE_S, gate=gate)
        except Corrupt as mixed:
            return mixed


def _finish(future: Future[Seen], *, within_s: float) -> None:
    with suppress(TimeoutError):
        future.exception(within_s)


def _kinds(answers: Sequence[Seen]) -> list[str]:
    return [type(answer).__name__.lower() for answer in answers]


def _version(answer: Seen) -> Version:
    """The version of something that was just created; of something else where it could not be."""
    match answer:
        case Committed(version=version):
            return version
        case Conflict(version=Version() as version):
            return version
        case _:
            return Version(token='"none"')


def _named(found: bytes | Corrupt | None) -> str:
    match found:
        case None:
            return "nothing"
        case Corrupt():
            return "bytes that it does not vouch for itself"
        case _:
            return found.decode(errors="replace")
