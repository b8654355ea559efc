"""The checks of two writers that every planted bug has to get past; `gauntlet.py` lists all of them."""

from __future__ import annotations

from typing import cast

from milepost.engines.simulated import SimulatedDisk
from milepost.journal import Config
from tests.crash.explore import Explorer
from tests.crash.histories import RELEASES, REMOVES, VALIDATES, WEIGHTS, a_death_in_an_evaluation
from tests.crash.promised import Saved, promises
from tests.crash.promises import LATEST
from tests.crash.published import need
from tests.crash.puppets import TWO_RANKS, TWO_ROLES, Cast
from tests.crash.world import Form, Run, config
from tests.crash.writers import (
    Point,
    Program,
    Stage,
    When,
    Writer,
    idles,
    judge,
    saves_once,
    saves_twice,
    settles,
    stage,
    validates,
)

PARTIAL = config(save_async=False, plan=WEIGHTS)
CREWS: tuple[tuple[Cast, Form], ...] = ((TWO_RANKS, "dcp"), (TWO_ROLES, "consolidated"))


def two_writers_never_lie() -> None:
    """The older one is paused before each of its operations while the newer one takes over, and saves or does not."""
    explorer = Explorer(renames=("separate",), goes_on=False)
    for program in (idles, saves_once):
        number: int | None = 0
        while number is not None:
            number = _older_paused(number, program, explorer)


def _older_paused(number: int, program: Program, explorer: Explorer) -> int | None:
    """Play it with the first pause from `number` on; where the next one may be, None at the end."""
    with stage() as both:
        older = both.enter("a", saves_twice)
        if not older.go(lambda point: point.number >= number and point.shared and _is_due(point, program)):
            return None
        reached = cast(Point, older.at).number
        newer = both.enter("b", program)
        newer.go()
        older.go()
        settle(both, newest=newer, explorer=explorer)
    return reached + 1


def _is_due(point: Point, program: Program) -> bool:
    return program is idles or point.verb in ("mkdir", "names", "create", "publish", "rename")


def a_newcomer_is_never_deceived() -> None:
    """The newer one is paused before each operation from its claim on, while the older one goes on with its save."""
    explorer = Explorer(renames=("separate",), goes_on=False)
    for verb in ("mkdir", "publish", "rename"):
        number: int | None = 0
        while number is not None:
            number = _newer_paused(verb, number, explorer)


def _newer_paused(verb: str, number: int, explorer: Explorer) -> int | None:
    """The same for the newer one, from its claim on."""
    with stage() as both:
        older = both.enter("a", saves_twice)
        older.go(lambda point: point.verb == verb and _published(both) and "/checkpoints/" in point.path)
        newer = both.enter("b", idles)
        if not newer.go(lambda point: point.number >= number and (point.acts if number else point.verb == "create")):
            return None
        reached = cast(Point, newer.at).number
        older.go()
        newer.go()
        settle(both, newest=newer, explorer=explorer)
    return reached + 1


def _published(setting: Stage) -> bool:
    """Whether the first save is through."""
    return any(isinstance(promise, Saved) for promise in promises(setting.disk))


def an_overtaken_sweep_spares_its_successor() -> None:
    """The older one is about to sweep while the newer one has a save in its staging."""
    with stage() as both:
        older = both.enter("a", idles)
        older.go(lambda point: point.verb == "names" and point.name == ".staging")
        newer = both.enter("b", saves_once)
        newer.go(lambda point: point.verb == "publish")
        older.go()
        newer.go()
        settle(both, newest=newer)


def what_is_found_published_is_made_durable_first() -> None:
    """The older one publishes while the newer one is about to look, and never gets to sync what it did."""
    with stage() as both:
        older = both.enter("a", saves_twice)
        older.go(lambda point: point.verb == "publish" and _published(both))
        newer = both.enter("b", idles)
        newer.go(lambda point: point.verb == "rename")
        older.go(lambda point: point.verb == "sync_dir")
        begun = len(both.disk.trace)
        newer.go()
        judge(both, newest=newer)
        Explorer(renames=("separate",), goes_on=False).every_crash(both.disk, start=begun)


def what_is_read_is_made_durable_afterwards() -> None:
    """The older one appends while the newer one is about to read, and never gets to sync the line."""
    with stage() as both:
        older = both.enter("a", saves_twice)
        older.go(lambda point: point.verb == "write" and point.path.endswith(".jsonl") and _published(both))
        newer = both.enter("b", idles)
        newer.go(lambda point: point.verb == "open" and point.path.endswith(".jsonl"))
        older.go(lambda point: point.verb == "sync")
        newer.go()
        settle(both, newest=newer)


def two_first_starts_agree() -> None:
    """Both make the directories that neither found."""
    with stage() as both:
        older, newer = both.enter("a", idles), both.enter("b", idles)
        for writer in (older, newer):
            writer.go(lambda point: point.verb == "mkdir" and point.name == "checkpoints")
        older.go()
        newer.go()
        settle(both, newest=newer)


def two_sweeps_of_one_debris_agree() -> None:
    """An overtaken sweep and its successor's remove the same directory, each paused before each operation."""
    for pausing, going in (("b", "c"), ("c", "b")):
        number = 0
        while _sweeping(pausing, going, number):
            number += 1


def _sweeping(pausing: str, going: str, number: int) -> bool:
    disk = SimulatedDisk()
    first = Run(disk, "a", config=config())
    first.train()
    first.save()
    first.tick()
    first.tick()
    first.process.kill()
    with stage(disk) as both:
        writers = {name: both.enter(name, idles) for name in ("b", "c")}
        for writer in writers.values():
            writer.go(lambda point: point.verb == "names" and point.name == ".staging")
        begun = len(disk.trace)
        if not writers[pausing].go(lambda point: len(disk.trace) >= begun + number):
            return False
        writers[going].go(lambda point: any(o.verb == "unlink" and o.process == going for o in disk.trace[begun:]))
        writers[pausing].go()
        need(
            pausing == "b" or not any("/.staging/" in path for path in disk.tree()),
            "INV-14",
            "debris is left, and was reported gone",
        )
        writers[going].go()
        settle(both, newest=writers["c"])
    return True


# --- generations, artifacts and prunes ------------------------------------------------------------------------


def a_writer_that_sleeps_in_a_validation_is_overtaken() -> None:
    """Paused before each operation behind its pending checkpoint, while the newer one does what is pending."""
    for newer in (idles, validates):
        _older_anywhere(validates, VALIDATES, newer, from_pointer=1)


def a_writer_that_sleeps_in_a_prune_is_overtaken() -> None:
    """Paused before each operation behind its second checkpoint, while the newer one finishes the prune."""
    for knobs in (RELEASES, REMOVES):
        for newer in (idles, saves_once):
            _older_anywhere(saves_twice, knobs, newer, from_pointer=2)


def a_writer_that_sleeps_over_an_artifact_is_overtaken() -> None:
    """Paused before each operation of its second artifact; who comes after it is kept out or not."""
    _older_anywhere(saves_twice, PARTIAL, idles, from_pointer=0, verbs=("mkdir", "create", "publish", "sync_dir"))


def _older_anywhere(
    older: Program, knobs: Config, newer: Program, *, from_pointer: int, verbs: tuple[str, ...] = ()
) -> None:
    """Pause the older one at each shared operation (of these verbs) once the pointer moved so often."""
    explorer = Explorer(renames=("separate",), losses=(), goes_on=False)
    number: int | None = 0
    while number is not None:
        number = _overtaken_at(number, older, knobs, newer, from_pointer, verbs, explorer)


def _overtaken_at(
    number: int,
    older: Program,
    knobs: Config,
    newer: Program,
    from_pointer: int,
    verbs: tuple[str, ...],
    explorer: Explorer,
) -> int | None:
    with stage() as both:
        sleeper = both.enter("a", older, knobs=knobs)

        def here(point: Point) -> bool:
            wanted = not verbs or point.verb in verbs
            return point.number >= number and point.shared and wanted and _pointed(both) >= from_pointer

        if not sleeper.go(here):
            return None
        reached = cast(Point, sleeper.at).number
        waking = both.enter("b", newer, knobs=VALIDATES if newer is validates else knobs)
        waking.go()
        sleeper.go()
        settle(both, newest=waking, explorer=explorer)
    return reached + 1


def a_crew_that_sleeps_is_overtaken() -> None:
    """Paused before any of its members' operations on the second save, while another crew takes over."""
    for crew, form in CREWS:
        for newer in (idles, saves_once):
            explorer = Explorer(renames=("separate",), losses=(), goes_on=False, cast=crew, form=form)
            number: int | None = 0
            while number is not None:
                number = _crew_overtaken_at(number, newer, crew, explorer)


def _crew_overtaken_at(number: int, newer: Program, crew: Cast, explorer: Explorer) -> int | None:
    knobs = config(save_async=False, form=explorer.form)
    with stage() as both:
        sleeper = both.enter("a", saves_twice, knobs=knobs, cast=crew)
        if not sleeper.go(lambda point: point.number >= number and _of_a_save(point) and _pointed(both) >= 1):
            return None
        assert sleeper.at is not None
        reached = sleeper.at.number
        waking = both.enter("b", newer, knobs=knobs, cast=crew)
        waking.go()
        sleeper.go()
        settle(both, newest=waking, explorer=explorer)
    return reached + 1


def _of_a_save(point: Point) -> bool:
    return point.shared and point.verb in ("mkdir", "create", "publish", "sync_dir")


def _pointed(setting: Stage) -> int:
    """How often the pointer moved."""
    return sum(one.verb == "rename" and one.path.endswith(LATEST) for one in setting.disk.trace)


def a_newcomer_is_not_deceived_by_a_prune() -> None:
    """The newer one is paused before each operation on the checkpoints, while the older one prunes on."""
    for knobs, verb in ((RELEASES, "unlink"), (REMOVES, "rename")):
        number: int | None = 0
        while number is not None:
            number = _newer_in_a_prune(number, verb, knobs)


def _newer_in_a_prune(number: int, verb: str, knobs: Config) -> int | None:
    with stage() as both:
        older = both.enter("a", saves_twice, knobs=knobs)
        older.go(lambda point: point.verb == verb and "/checkpoints/" in point.path and _pointed(both) > 1)
        newer = both.enter("b", idles, knobs=knobs)
        if not newer.go(_on_checkpoints(number)):
            return None
        reached = cast(Point, newer.at).number
        older.go()
        newer.go()
        judge(both, newest=newer)
    return reached + 1


def _on_checkpoints(number: int) -> When:
    return lambda point: point.number >= number and "/checkpoints" in point.path and point.verb != "free"


def an_overtaken_sweep_spares_its_successors_notes() -> None:
    """The older one is about to sweep while the newer one has a note for a checkpoint of an earlier epoch."""
    disk = SimulatedDisk()
    a_death_in_an_evaluation(disk)
    with stage(disk) as both:
        older = both.enter("b", idles)
        older.go(lambda point: point.verb == "names" and point.name == ".staging")
        newer = both.enter("c", settles)
        newer.go(lambda point: point.verb == "link")
        older.go()
        newer.go()
        settle(both, newest=newer)


def settle(setting: Stage, *, newest: Writer, explorer: Explorer | None = None) -> None:
    """Judge the play, and once more after a power loss that takes all it can. Many plays share an explorer."""
    judge(setting, newest=newest)
    explorer = explorer if explorer is not None else Explorer(renames=("separate",), goes_on=False)
    explorer.poorest(setting.disk)
