"""Every knob of the checkpointing contract, read once and checked whole.

1. A knob has the contract's name: `rl.upload.enabled` in YAML and in dotlists, `config.upload.enabled` in
   Python. Its kind, its default and its meaning stand in one place, its field below.
2. A `Config` that exists is right. Loading one and constructing one run the same check, and the check tells
   everything that is wrong at once.
3. A group is checked where it joins a `Config`, not before.
4. A knob whose engine this version does not have is refused (`rules.NOT_YET`), never ignored.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import attrs
from attrs import field, fields, frozen

from milepost.journal.config import kinds
from milepost.journal.config.kinds import Kind, shown
from milepost.journal.config.rules import NOT_YET, refusals, with_model
from milepost.journal.config.sources import read_overrides, read_source
from milepost.transitions.errors import Misconfigured
from milepost.transitions.values import FULL, Plan


def _knob(default: object, kind: Kind, meaning: str, *, spelled: str = "") -> Any:
    """A field that is a knob. `spelled` is its default for people where `default` is computed."""
    return field(
        default=default,
        converter=kind.settled,
        metadata={"kind": kind, "meaning": meaning, "default": spelled or default},
    )


def _group(cls: type, *, key: str = "") -> Any:
    """A field that holds a group of knobs. `key` is given where the group is a section of its own."""
    kind = kinds.group(cls, [one.name for one in fields(cls)])
    return field(factory=cls, metadata={"kind": kind, "group": cls, "key": key})


def _output_root(environ: Mapping[str, str]) -> str:
    return environ.get("IMAGINAIRE_OUTPUT_ROOT") or "./outputs"


@frozen(kw_only=True)
class Run:
    """Where the run lives: `<output_root>/<project>/<group>/<name>/<RUN_TS>/`.

    Without any of them a run is `./outputs/milepost/default/run`. Two experiments need two names: the same
    command started again continues the run that it finds there.
    """

    output_root: str = _knob(
        attrs.Factory(lambda: _output_root(os.environ)),
        kinds.PATH,
        "the folder of all runs",
        spelled="$IMAGINAIRE_OUTPUT_ROOT, else ./outputs",
    )
    project: str = _knob("milepost", kinds.SEGMENT, "the project the run belongs to")
    group: str = _knob("default", kinds.SEGMENT, "the group of runs within the project")
    name: str = _knob("run", kinds.SEGMENT, "the name of the run, the same for each of its attempts")


@frozen(kw_only=True)
class Data:
    """How the data source continues."""

    cursor_resume: Literal["auto", "strict", "off"] = _knob(
        "auto",
        kinds.choice("auto", "strict", "off"),
        "the source cursor: auto restores it where source and world size match and otherwise restarts the "
        "source; strict refuses to; off neither saves nor restores it",
    )


@frozen(kw_only=True)
class CheckpointStore:
    """Where the primary, resumable checkpoints live."""

    backend: Literal["local", "object_store"] = _knob(
        "local", kinds.choice("local", "object_store"), "the primary store; object_store needs dcp and a bucket"
    )
    bucket: str = _knob("", kinds.BUCKET, "the bucket of a direct object store; ignored for a local primary")
    credentials: str = _knob("", kinds.TEXT, "the path of its credentials; empty: the client's own chain")
    prefix: str = _knob("", kinds.PREFIX, "its checkpoint root; empty mirrors the local layout")


@frozen(kw_only=True)
class Upload:
    """The archive beside a local primary."""

    enabled: bool = _knob(False, kinds.SWITCH, "archive each completed checkpoint of a local primary")
    bucket: str = _knob("", kinds.BUCKET, "the bucket of the archive")
    credentials: str = _knob("", kinds.TEXT, "the path of its credentials; empty: the client's own chain")
    prefix: str = _knob("", kinds.PREFIX, "its checkpoint root; empty mirrors the local layout")


@frozen(kw_only=True)
class Validation:
    """When the loop validates, on what, and whether that saves."""

    every_steps: int = _knob(0, kinds.COUNT, "validate every so many steps; 0: neither so nor at the end")
    before_training: bool = _knob(
        False, kinds.SWITCH, "also validate a fresh run before its first step; that never saves while steps remain"
    )
    at_end: bool = _knob(
        True, kinds.SWITCH, "also validate after the last step, on cadence or not; unused while every_steps is 0"
    )
    source: str = _knob(
        "", kinds.TEXT, "a name for the held-out data; part of the identity that a resume must find unchanged"
    )
    save_checkpoint: bool = _knob(
        False,
        kinds.SWITCH,
        "each validation asks for a save: with the full plan a checkpoint that is published as pending, evaluated, "
        "and only then announced; with a partial one an artifact behind the evaluation. false: it only measures",
    )
    checkpoint_components: Plan = _knob(
        FULL, kinds.PLAN, "the plan of that save, joined with that of a save due at the same step"
    )

    @property
    def enabled(self) -> bool:
        """Whether the loop validates by itself at all."""
        return self.every_steps > 0 or self.before_training


@frozen(kw_only=True)
class Sampling:
    """The replay ledger of sampled work."""

    max_outstanding: int = _knob(
        0,
        kinds.COUNT,
        "at most so many pieces of issued work may wait for a settlement, and one more is refused, with the piece "
        "that holds the boundary back; 0: no bound",
    )


@frozen(kw_only=True)
class Config:
    """One field for each knob of the `rl` section, and `run`. `knobs()` lists them with their meaning.

    Values are of the exact type: `"7"` is not 7 and `True` is not 1. A plan may be given as a list of names; it
    is held in table order. Raises `Misconfigured`, whose `problems` are one line for each wrong value, with its
    key, what was found and what is allowed.
    """

    run: Run = _group(Run, key="run")
    save_every: int = _knob(
        0,
        kinds.COUNT,
        "save every so many steps; 0: no cadence and no normal-final save, only those of emergency and validation",
    )
    resume: str = _knob(
        "auto",
        kinds.RESUME,
        "auto: the latest checkpoint of this run, fresh if there is none; off or empty: a new attempt beside the "
        "older ones; a path: that checkpoint, which must exist",
    )
    data: Data = _group(Data)
    run_ts: str = _knob("", kinds.RUN_TS, "the attempt's timestamp; empty: found or minted at the start")
    checkpoint_format: Literal["consolidated", "dcp"] = _knob(
        "consolidated",
        kinds.choice("consolidated", "dcp"),
        "consolidated: one portable .pt for each component; dcp: shards",
    )
    checkpoint_components: Plan = _knob(
        FULL,
        kinds.PLAN,
        "the plan of cadence and normal-final saves; a partial one warns and makes artifacts beside the checkpoints, "
        "which are never resumed from and never pruned",
    )
    emergency_checkpoint_components: Literal["full", "run"] = _knob(
        "full",
        kinds.choice("full", "run"),
        "the plan of an emergency save: full, or run for checkpoint_components and model, where the full plan does "
        "not fit the grace; that is an artifact unless it adds up to the full plan",
    )
    checkpoint_store: CheckpointStore = _group(CheckpointStore)
    save_async: bool = _knob(True, kinds.SWITCH, "write snapshots in the background while training goes on")
    keep_optim_last: int | None = _knob(
        None,
        kinds.OPTIONAL_COUNT,
        "newest full checkpoints that keep their optimizer state, without which they are no resume source; 0: all; "
        "null: 1 for a local primary, 0 for an object store",
    )
    keep_model_last: int = _knob(
        0, kinds.COUNT, "newest full checkpoints that are kept at all, older ones are deleted; 0: all"
    )
    upload: Upload = _group(Upload)
    validation: Validation = _group(Validation)
    sampling: Sampling = _group(Sampling)
    digest: Literal["blake3", "sha256"] = _knob(
        "blake3", kinds.choice("blake3", "sha256"), "the digest that manifests hold of each payload file"
    )
    archive_crc32: bool = _knob(
        False, kinds.SWITCH, "also write the zip crc32s into .pt files; torch never checks them, 13 to 16 % dearer"
    )
    verify_on_resume: bool = _knob(True, kinds.SWITCH, "check every digest of a checkpoint before restoring it")
    rank_timeout_s: int = _knob(
        1800,
        kinds.POSITIVE,
        "seconds that ranks may be apart before the missing one is named and the call fails on all of them; longer "
        "than what one rank does while the others wait, such as writing the whole model",
    )
    emergency_grace_s: int = _knob(
        300, kinds.COUNT, "seconds before $SLURM_JOB_END_TIME at which the run is asked to save and stop"
    )

    def __attrs_post_init__(self) -> None:
        values, problems = _examined(self, "rl")
        problems.extend(refusals(values))
        if problems:
            raise Misconfigured(tuple(problems))

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str] | Mapping[str, object] | None = None,
        overrides: Sequence[str] = (),
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Read `source`, a YAML path or a mapping with the sections `run` and `rl`, or nothing.

        `overrides` are dotlist strings (`run.name=x`, `rl.save_every=100`, or `save_every=100`) whose values are
        YAML scalars or lists; they win over `source`. Without `run.output_root` it is `$IMAGINAIRE_OUTPUT_ROOT`
        of `environ`, else `./outputs`. Raises `Misconfigured`.
        """
        given = read_source(source)
        values, problems = read_overrides(overrides)
        problems.extend(_unknown(key, _KNOBS) for key in values if key not in _KNOBS)
        problems.extend(_unknown(key, _KEYS) for key in _texts(given) if key not in ("run", "rl"))
        run = _arguments(Run, given.get("run", {}), "run", values, problems)
        run.setdefault("output_root", _output_root(environ))
        rl = _arguments(cls, given.get("rl", {}), "rl", values, problems)
        try:
            config = cls(run=Run(**run), **rl)
        except Misconfigured as error:
            problems.extend(error.problems)
        if problems:
            raise Misconfigured(tuple(problems))
        return config

    def by_key(self) -> dict[str, object]:
        """The value of every knob by its full key, `rl.upload.enabled`."""
        return _examined(self, "rl")[0]

    def to_mapping(self) -> dict[str, object]:
        """The configuration as plain YAML values, every knob spelled out; `load` reads it back unchanged."""
        rl = attrs.asdict(self, value_serializer=_plain)
        return {"run": rl.pop("run"), "rl": rl}

    @property
    def resolved_keep_optim_last(self) -> int:
        """`keep_optim_last` with its null resolved: 1 for a local primary, 0 (all) for an object store."""
        if self.keep_optim_last is not None:
            return self.keep_optim_last
        return 1 if self.checkpoint_store.backend == "local" else 0

    @property
    def validation_identity(self) -> dict[str, object]:
        """What a resume must find unchanged: whether the run validates, and if so on what and when.

        Plain values. Whether a validation saves is no part of it: that changes nothing that is measured.
        """
        validation = self.validation
        if not validation.enabled:
            return {"enabled": False, "source": "", "config": {}}
        when = {name: getattr(validation, name) for name in ("every_steps", "before_training", "at_end")}
        return {"enabled": True, "source": validation.source, "config": when}

    def warnings(self) -> tuple[str, ...]:
        """One text for each partial plan that is put to use: what it saves is no source of an exact resume."""
        texts, saves = [], []
        if self.save_every > 0 and self.checkpoint_components != FULL:
            saves.append("cadence and normal-final saves")
        if self.emergency_checkpoint_components == "run" and with_model(self.checkpoint_components) != FULL:
            saves.append("emergency saves (rl.emergency_checkpoint_components=run)")
        if saves:
            texts.append(_partial("rl.checkpoint_components", self.checkpoint_components, " and ".join(saves)))
        validation = self.validation
        if validation.save_checkpoint and validation.every_steps > 0 and validation.checkpoint_components != FULL:
            key = "rl.validation.checkpoint_components"
            texts.append(_partial(key, validation.checkpoint_components, "saves that validation alone asks for"))
        return tuple(texts)


@frozen(kw_only=True)
class Knob:
    """One row of the table of knobs, all of it text. `not_yet` are the values that this version refuses."""

    key: str
    type: str
    default: str
    allowed: str
    meaning: str
    not_yet: tuple[str, ...]

    @property
    def built(self) -> bool:
        """Whether every allowed value is honoured."""
        return not self.not_yet


def knobs() -> Iterator[Knob]:
    """Every knob in the order of the table, from the fields themselves, so that a page cannot drift."""
    for key, one in _leaves(Config, "rl"):
        kind, default = one.metadata["kind"], one.metadata["default"]
        yield Knob(
            key=key,
            type=kind.type,
            default=default if isinstance(default, str) and default else shown(default),
            allowed=kind.allowed,
            meaning=one.metadata["meaning"],
            not_yet=tuple(line.what for line in NOT_YET if line.key == key),
        )


def _entries(cls: type, prefix: str) -> Iterator[tuple[str, attrs.Attribute[Any]]]:
    """The fields of `cls`, knobs and groups, with their full keys."""
    for one in fields(cls):
        yield one.metadata.get("key") or f"{prefix}.{one.name}", one


def _leaves(cls: type, prefix: str) -> Iterator[tuple[str, attrs.Attribute[Any]]]:
    """The knobs of `cls` and of the groups below it, with their full keys."""
    for key, one in _entries(cls, prefix):
        if "group" in one.metadata:
            yield from _leaves(one.metadata["group"], key)
        else:
            yield key, one


def _examined(part: Any, prefix: str) -> tuple[dict[str, object], list[str]]:
    """The knobs of `part` and below that are right by themselves, by full key, and what is wrong with the rest."""
    values: dict[str, object] = {}
    problems: list[str] = []
    for key, one in _entries(type(part), prefix):
        kind, value = one.metadata["kind"], getattr(part, one.name)
        try:
            kind.read(value)
        except ValueError as error:
            detail = f" ({error})" if error.args else ""
            problems.append(f"{key}: found {shown(value)}{detail}, expected {kind.allowed}")
            continue
        if "group" in one.metadata:
            below, wrong = _examined(value, key)
            values.update(below)
            problems.extend(wrong)
        else:
            values[key] = value
    return values, problems


def _arguments(
    cls: type, given: object, prefix: str, overrides: Mapping[str, object], problems: list[str]
) -> dict[str, Any]:
    """What to construct `cls` with: `given`, below the `overrides`. Shapes and names that are wrong are told."""
    entries = {one.name: (key, one) for key, one in _entries(cls, prefix) if key.startswith(f"{prefix}.")}
    if not isinstance(given, Mapping):
        problems.append(f"{prefix}: found {shown(given)}, expected a group of {', '.join(entries)}")
        given = {}
    problems.extend(_unknown(f"{prefix}.{name}", _KEYS) for name in _texts(given) if name not in entries)
    arguments: dict[str, Any] = {}
    for name, (key, one) in entries.items():
        group = one.metadata.get("group")
        if group is not None:
            arguments[name] = group(**_arguments(group, given.get(name, {}), key, overrides, problems))
        elif key in overrides:
            arguments[name] = overrides[key]
        elif name in given:
            arguments[name] = given[name]
    return arguments


def _texts(keys: Iterable[object]) -> Iterator[str]:
    """Keys as a message can show them."""
    for key in keys:
        yield key if isinstance(key, str) and key and key.isprintable() else shown(key)


def _unknown(key: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
    if nearest == key:
        return f"{key}: written with dots inside one name; nest it, section by section"
    return f"{key}: no such key; the nearest known one is {nearest}"


def _partial(key: str, plan: Plan, saves: str) -> str:
    return (
        f"{key}={shown(plan)} is partial: {saves} make artifacts, which rl.resume does not take; to go on from one "
        f"is a warm start that begins anew with what it lacks. Only {shown(FULL)} resumes exactly"
    )


def _plain(_owner: object, _field: object, value: object) -> object:
    return [component.value for component in value] if isinstance(value, tuple) else value


_KNOBS = tuple(key for key, _ in _leaves(Config, "rl"))
_KEYS = ("run", "rl", *(key for key, _ in _entries(Config, "rl")), *_KNOBS)
