"""What a controller needs to go on from a checkpoint: typed, versioned, and of one checkpoint alone.

    schema_version          1
    training_commands       training commands that were sent, an int >= 0
    optimizer_updates       updates that were applied, an int >= 0
    remaining_completions   completions that are still to be generated, an int >= 0
    epoch                   the epoch of the sampler, an int >= 1
    sampling_owner          which one is restored: "sampler" or "batch_sampler"
    sampler_state           what that one gave, a value of JSON
    checkpoint_identity     the immutable identity of the checkpoint, such as `CheckpointManifest.identity`

1. Exactly these fields and exactly these types: True is no int, "7" is none, and an unknown field is refused.
2. Commands and updates are two counters: a command may come to no update, and a step of zero is one like any other.
3. Two ranks are of one checkpoint only where all of this is equal, the identity included. In a state 1, 1.0 and True
   are three values.

Source: the specification of application checkpoints, "Typed, versioned metadata".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from attrs import Attribute, field, fields, frozen

from milepost.engines import plainjson
from milepost.engines.plainjson import Json
from milepost.transitions.errors import Corrupt, NewerVersion, Refused

SCHEMA_VERSION = 1

SamplingOwner = Literal["sampler", "batch_sampler"]
"""The one whose state is saved and restored: the sampler, or the batch sampler above it."""


def _require_integer(attribute: Attribute[int], value: object, *, minimum: int) -> None:
    if type(value) is not int or value < minimum:
        raise Refused(f"{attribute.name}: expected an integer of at least {minimum}, found {value!r}")


def _a_count(_metadata: object, attribute: Attribute[int], value: object) -> None:
    _require_integer(attribute, value, minimum=0)


def _an_epoch(_metadata: object, attribute: Attribute[int], value: object) -> None:
    _require_integer(attribute, value, minimum=1)


def _the_version(_metadata: object, attribute: Attribute[int], value: object) -> None:
    if type(value) is not int or value != SCHEMA_VERSION:
        raise Refused(f"{attribute.name}: expected {SCHEMA_VERSION}, found {value!r}")


def _an_owner(_metadata: object, attribute: Attribute[str], value: object) -> None:
    if type(value) is not str or value not in ("sampler", "batch_sampler"):
        raise Refused(f"{attribute.name}: expected sampler or batch_sampler, found {value!r}")


def _an_identity(_metadata: object, attribute: Attribute[str], value: object) -> None:
    if type(value) is not str or not value:
        raise Refused(f"{attribute.name}: expected the identity of a checkpoint, found {value!r}")


def _state(value: object) -> Json:
    try:
        return plainjson.copied(value, where="sampler_state")
    except ValueError as error:
        raise Refused(f"{error}; expected a value of JSON") from error


@frozen(kw_only=True)
class ResumeMetadata:
    """See the fields at the top of this module. A value of another type or range is `Refused` by its name."""

    schema_version: int = field(default=SCHEMA_VERSION, validator=_the_version)
    training_commands: int = field(validator=_a_count)
    optimizer_updates: int = field(validator=_a_count)
    remaining_completions: int = field(validator=_a_count)
    epoch: int = field(validator=_an_epoch)
    sampling_owner: SamplingOwner = field(validator=_an_owner)
    sampler_state: Json = field(converter=_state, eq=plainjson.write)
    checkpoint_identity: str = field(validator=_an_identity)

    def to_json(self) -> dict[str, Json]:
        """A value of JSON that `from_json` reads; changing it changes nothing here."""
        document = {name: getattr(self, name) for name in _NAMES}
        return cast("dict[str, Json]", plainjson.copied(document, where="metadata"))

    @classmethod
    def from_json(cls, document: Mapping[str, object]) -> ResumeMetadata:
        """The metadata of a value that `to_json` gave.

        `NewerVersion` for a later schema; `Corrupt`, with the names, for unknown and missing fields and for values of
        another type or range.
        """
        if not isinstance(document, Mapping):
            raise Corrupt(f"expected resume metadata, found a {type(document).__name__}")
        version = document.get("schema_version")
        if type(version) is int and version > SCHEMA_VERSION:
            raise NewerVersion(f"resume metadata of schema {version}; this milepost reads {SCHEMA_VERSION}")
        missing = sorted(set(_NAMES) - document.keys())
        unknown = sorted(document.keys() - set(_NAMES), key=str)
        if missing or unknown:
            raise Corrupt(f"expected exactly the fields of resume metadata; missing {missing}, unknown {unknown}")
        try:
            return cls(**document)  # type: ignore[arg-type] # every field checks its own
        except Refused as error:
            raise Corrupt(f"resume metadata: {error}") from error


_NAMES = tuple(one.name for one in fields(ResumeMetadata))
