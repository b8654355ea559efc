"""What single values cannot say: refused combinations, and the knobs whose engine this version does not have.

1. A rule is judged only when each of its knobs is right by itself, so that one mistake is told once.
2. Nothing that a configuration asks for is ignored: it is done, or refused here.
3. A version that builds an engine takes its line out of `NOT_YET`, and nothing else changes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from attrs import frozen

from milepost.journal.config.kinds import shown
from milepost.transitions.values import Component, Plan, covers, union


@frozen
class Rule:
    """Refuses a combination of the values of `keys`; it is told under the first of them."""

    keys: tuple[str, ...]
    refuses: Callable[..., bool]
    why: str


@frozen
class NotYet:
    """Refuses values of `key` that are right and that this version cannot honour. `what` names them."""

    key: str
    what: str
    refuses: Callable[..., bool]
    instead: str


def with_model(plan: Plan) -> Plan:
    """The plan of an emergency save under `run`: it always carries the weights."""
    return union(plan, (Component.MODEL,))


def _direct(backend: str) -> bool:
    return backend == "object_store"


def _uncovered(emergency: str, saves: bool, validation: Plan, regular: Plan) -> bool:
    return emergency == "run" and saves and not covers(validation, with_model(regular))


RULES = (
    Rule(
        ("rl.checkpoint_format", "rl.checkpoint_store.backend"),
        lambda form, backend: _direct(backend) and form != "dcp",
        "a direct object store takes sharded components only; set rl.checkpoint_format=dcp",
    ),
    Rule(
        ("rl.upload.enabled", "rl.checkpoint_store.backend"),
        lambda enabled, backend: _direct(backend) and enabled,
        "upload archives a local primary, and a direct object store has none; set one of them back",
    ),
    Rule(
        ("rl.keep_optim_last", "rl.checkpoint_store.backend"),
        lambda keep, backend: _direct(backend) and bool(keep),
        "committed remote checkpoints are never deleted; leave it null or 0",
    ),
    Rule(
        ("rl.keep_model_last", "rl.checkpoint_store.backend"),
        lambda keep, backend: _direct(backend) and keep > 0,
        "committed remote checkpoints are never deleted; leave it 0",
    ),
    Rule(
        ("rl.checkpoint_store.bucket", "rl.checkpoint_store.backend"),
        lambda bucket, backend: _direct(backend) and not bucket,
        "a direct object store needs the name of its bucket",
    ),
    Rule(
        ("rl.checkpoint_store.prefix", "rl.checkpoint_store.backend"),
        lambda prefix, backend: _direct(backend) and prefix.rpartition("/")[2] in ("journal", "checkpoint_artifacts"),
        "the prefix names the checkpoint root, and the journal and the artifacts lie beside it under these names; "
        "end it with another one, such as checkpoints",
    ),
    Rule(
        ("rl.resume", "rl.checkpoint_store.backend"),
        lambda resume, backend: resume.startswith("s3://") and not _direct(backend),
        "only a direct object store reads a checkpoint in place; bring this one here with `milepost fetch`, then "
        "resume from the path",
    ),
    Rule(
        ("rl.upload.bucket", "rl.upload.enabled"),
        lambda bucket, enabled: enabled and not bucket,
        "an upload needs the name of its bucket",
    ),
    Rule(
        (
            "rl.emergency_checkpoint_components",
            "rl.validation.save_checkpoint",
            "rl.validation.checkpoint_components",
            "rl.checkpoint_components",
        ),
        _uncovered,
        "the validation artifact of a step stands in for its emergency save and is never written again, so its "
        "plan has to cover rl.checkpoint_components and model; widen it or set the emergency plan to full",
    ),
)

NOT_YET: tuple[NotYet, ...] = ()


def refusals(values: Mapping[str, object]) -> Iterator[str]:
    """Everything that is wrong with `values`: the knobs, by full key, that are right by themselves."""
    for rule in RULES:
        if not values.keys() >= set(rule.keys):
            continue
        first, *others = (values[key] for key in rule.keys)
        if rule.refuses(first, *others):
            beside = ", ".join(f"{key}={shown(one)}" for key, one in zip(rule.keys[1:], others, strict=True))
            yield f"{rule.keys[0]}: found {shown(first)} beside {beside}: {rule.why}"
    for missing in NOT_YET:
        if missing.key in values and missing.refuses(values[missing.key]):
            yield (
                f"{missing.key}: found {shown(values[missing.key])}, which this version of milepost does not do "
                f"yet; set it to {missing.instead}"
            )
