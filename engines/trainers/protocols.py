"""What a trainer, the journal and the formats engine say to each other.

A snapshot holds references to live state, never copies: whoever stages it does so before the next step. Trees
are nested dicts, lists and tuples of tensors and plain Python leaves, such as `torch.load(weights_only=True)`
reads back. Each physical name becomes one file:

    model           model.pt
    optimizer       optim.pt      absent where there is no optimizer
    training_state  trainer.pt    clocks, scheduler, RNG, extra state, identity of the validation
                    data.pt       absent where the data source has no cursor to save
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

from attrs import field, frozen

from milepost.transitions.values import Clocks, Plan

Tree = dict[str, object]

CursorResume = Literal["auto", "strict", "off"]
"""`data.cursor_resume`: continue the data source exactly where that is possible, always, or never."""


@runtime_checkable
class Stateful(Protocol):
    """The protocol of torch.distributed.checkpoint: state out, the same state in."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@frozen(kw_only=True)
class Snapshot:
    """The live state of `components`, by physical name: references, valid until the next step."""

    components: Plan
    trees: Mapping[str, Tree]


class RestoreSource(Protocol):
    """One checkpoint, open for restoring."""

    @property
    def world_size(self) -> int:
        """How many ranks restore now. How many saved is written in the checkpoint itself."""
        ...

    @property
    def where(self) -> str:
        """The checkpoint as a person would name it; for messages."""
        ...

    def names(self) -> tuple[str, ...]:
        """The physical names that the checkpoint holds."""
        ...

    def load(self, name: str, *, into: object | None = None) -> object:
        """The tree of `<name>.pt`.

        A tensor that `into` has at the same path, of the same dtype and shape, is filled in place and returned;
        every other tensor is fresh. `Corrupt` where bytes are wrong: what was filled until then is undefined.
        """
        ...


@frozen(kw_only=True)
class Restored:
    """What a restore did: the update clocks, the parts that continue exactly, and what was skipped and why."""

    clocks: Clocks
    exact: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())


class Trainer(Protocol):
    """Anything that gives its live state and takes it back."""

    def capture(
        self,
        components: Plan,
        *,
        clocks: Clocks,
        cursor_resume: CursorResume = "auto",
        validation: Mapping[str, object] | None = None,
    ) -> Snapshot:
        """References to the live state of `components`, and of nothing else, at a quiescent boundary.

        `validation` is the identity of the run's validation, plain values under names (`Config.validation_identity`);
        it is saved with the training state. `Refused` inside an accumulation window, and for a strict cursor that
        the data source does not have.
        """
        ...

    def restore(
        self,
        source: RestoreSource,
        *,
        cursor_resume: CursorResume = "auto",
        validation: Mapping[str, object] | None = None,
    ) -> Restored:
        """Put a full checkpoint back into the live objects.

        `NotResumable` where it does not fit them or was saved under another `validation`, and `Corrupt` where its
        small trees are malformed: both before a live object is touched. `Corrupt` from the bulk of model or
        optimizer leaves them partly overwritten: restore another checkpoint over them or end.
        """
        ...
