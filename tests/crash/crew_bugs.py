"""Bugs by name in what ranks and roles are saved and restored with; see `bugs.py`."""

from __future__ import annotations

from tests.crash import ranks, roles
from tests.crash.bugs import LOCAL, PUBLISH, Bug

COMPANY = "engines.crew.company"
MEMBER = "engines.crew.member:Member"
MARKED = 'self._write(f"{staged}/{SUCCESS}", marker)'
WAITED = "for name, slot in units.items():"

UNREQUIRED = Bug(
    "what was planned need not be written",
    f"{COMPANY}:Payload._require",
    (("if missing := [name for name in names if name not in self._files]:", "if missing := ():"),),
)

CREW_BUGS: tuple[Bug, ...] = (
    # --- all roles or none
    Bug(
        "a boundary is sealed without one of its roles",
        f"{MEMBER}._store_files",
        (("images, files = snapshot.images,", "images, files = dict([*self._snapshot.images.items()][:1]),"),),
        beside=UNREQUIRED,
    ),
    Bug(
        "the slot of the second role is not joined",
        "engines.slots:finalize_units",
        ((WAITED, "for name, slot in [*units.items()][:1]:"),),
        beside=UNREQUIRED,
    ),
    Bug(
        "a snapshot that was released is saved as a checkpoint of nothing",
        f"{MEMBER}._store_files",
        (("if not snapshot.ready:", "if False:"),),
        beside=UNREQUIRED,
    ),
    Bug(
        "the checkpoint of other roles is taken",
        "journal.restoring:Restoring._with_roles",
        (("if here != there:", "if False:"),),
    ),
    Bug(
        "roles are restored at whatever counters they have",
        "journal.restoring:Restoring._restore",
        (("if found.mark is not None and (", "if False and ("),),
    ),
    Bug(
        "roles without their marker are a checkpoint like any other",
        "engines.checkpoints.marker:contradiction",
        (("if marker is None:", "if marker is None:\n    return ''\nif False:"),),
    ),
    Bug(
        "the clocks of one role are saved for the other",
        f"{MEMBER}._capture",
        (("clocks=order.clocks[name],", "clocks=next(iter(order.clocks.values())),"),),
    ),
    # --- the marker
    Bug(
        "several roles have no marker",
        f"{LOCAL}.seal",
        (("if marker is not None:", "if False:"),),
    ),
    Bug(
        "the marker comes behind the publishing step",
        f"{LOCAL}.seal",
        (
            (MARKED, "pass"),
            (PUBLISH, f"{PUBLISH}\nif marker is not None:\n    {MARKED.replace('staged', 'final')}"),
        ),
    ),
    Bug(
        "the marker is published before its bytes are durable",
        f"{LOCAL}.seal",
        ((MARKED, 'with self.disk.create(f"{staged}/{SUCCESS}") as sink:\n    write_all(sink, marker)'),),
        by=roles.every_crash_of_a_boundary_is_survived,
    ),
    Bug(
        "the marker has the counter of one role for all",
        "engines.checkpoints.marker:of_boundary",
        (
            (
                "{one.role: one.clocks.optimizer_step for one in roles}",
                "{one.role: roles[0].clocks.optimizer_step for one in roles}",
            ),
        ),
    ),
    Bug(
        "the marker has the counters of the moment at which it is written",
        "transitions.machine:due",
        (("roles=joined.roles if joined", "roles=state.boundary.roles if joined"),),
    ),
    # --- directories
    Bug(
        "of directories in directories only the upper one is synced",
        f"{LOCAL}._sync_below",
        (
            (
                "for folder in folders_of(file.path for file in manifest.files):",
                "for folder in {file.path.partition('/')[0] for file in manifest.files if '/' in file.path}:",
            ),
        ),
        by=roles.every_crash_of_a_boundary_over_members_is_survived,
    ),
    Bug(
        "a release leaves the directories that it emptied",
        "engines.checkpoints.released:remove",
        (("for folder in folders_of(files):", "for folder in ():"),),
    ),
    Bug(
        "the manifest lacks what another rank wrote",
        f"{COMPANY}:Payload._store_together",
        (
            (
                "self._note(file for answer in answers.values() for file in answer.files)",
                "self._note(answers[0].files)",
            ),
        ),
    ),
    Bug(
        "the manifest lacks what says where the shards lie",
        f"{COMPANY}:Payload._store_together",
        (
            (
                'self._note((checkpoints.put_bytes(save, f"{full}/.metadata", data, plan=self.plan),))',
                'checkpoints.put_bytes(save, f"{full}/.metadata", data, plan=self.plan)',
            ),
        ),
    ),
    # --- ranks
    Bug(
        "every rank is given what rank 0 has for itself",
        f"{COMPANY}:Payload._stage",
        (("self._captured[index].locals[role] for index", "self._captured[0].locals[role] for index"),),
    ),
    Bug(
        "every rank goes on as rank 0 did",
        f"{MEMBER}._restore",
        (("rank=role.rank,", "rank=0,"),),
    ),
    Bug(
        "the failure of another rank is swallowed",
        "engines.crew.rounds:Round.hear",
        (
            (
                "self._failures[index] = evolve(answer, member=self._called(index))",
                "from milepost.engines.crew.orders import Stored\n\n"
                "if answer.kind == 'GivenUp':\n"
                "    self._answers[index] = Stored(files=(), entries={})\n"
                "else:\n"
                "    self._failures[index] = evolve(answer, member=self._called(index))",
            ),
        ),
        beside=UNREQUIRED,
        by=roles.a_role_that_fails_takes_all_with_it,
    ),
    Bug(
        "what ranks write together is left to the writer beside the loop",
        "journal.saves:Saves.save",
        (
            ("while payload.together and save in self._opened.engines.held:", "while False:"),
            ("if payload.together:  # it failed while the loop waited, so the loop hears of it now", "if False:"),
        ),
        by=ranks.every_rank_gets_back_its_own,
    ),
    Bug(
        "only rank 0 evaluates",
        f"{COMPANY}:Company.evaluate",
        (("dict.fromkeys(self.everyone, Evaluate(step=step))", "{0: Evaluate(step=step)}"),),
        by=ranks.every_rank_evaluates,
    ),
    Bug(
        "what another rank is told is not heard",
        "journal.boundaries:Told.hear",
        (("enumerate(arrivals)", "enumerate(arrivals[:1])"),),
        by=ranks.what_one_rank_is_told_stops_all,
    ),
    Bug(
        "ranks may restore other checkpoints than rank 0",
        f"{COMPANY}:_agreed",
        (("if other.clocks != first.clocks:", "if False:"),),
        by=ranks.what_ranks_restore_is_compared,
    ),
    Bug(
        "the save of a rank that was lost stays open",
        "engines.perform:Engines._store",
        (("except (GivenUp, Uncertain, Fenced):", "except (GivenUp, Uncertain, Fenced, Lost):"),),
    ),
    Bug(
        "who cannot be told of a release keeps the save from being given up",
        f"{COMPANY}:Payload.release",
        (("with suppress(Lost):", "if others:"),),
        by=roles.every_loss_of_a_role_beside_the_loop_is_survived,
    ),
)
