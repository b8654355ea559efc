"""What a trainer, the journal and the formats engine say to each other.

A snapshot holds references to live state, never copies: whoever stages it does so before the next step. Trees
are nested dicts, lists and tuples of tensors, DTensors and plain Python leaves, such as
`torch.load(weights_only=True)` reads back. Each physical name becomes one file, or one directory of
torch.distributed.checkpoint:

    model           model.pt
    optimizer       optim.pt      absent where there is no optimizer
    training_state  trainer.pt    clocks, scheduler, RNG, extra state, identity of the validation
                    data.pt       absent where the data source has no cursor to save
                    old.pt        absent where training refreshes no old policy; ref.pt likewise, a reference

Every rank captures and none of them communicates for it. What belongs to one rank alone, its random streams and
its data cursor, is `Snapshot.local`; `joining.py` puts that of all ranks into the trees.
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
    """The live state of `components`, by physical name: references, valid until the next step.

    `local` is what this rank alone has: picklable plain values and small CPU tensors, as `joining.py` takes them.
    A trainer whose trees are whole leaves it empty.
    """

    components: Plan
    trees: Mapping[str, Tree]
    local: Tree = field(factory=dict)


class RestoreSource(Protocol):
    """One checkpoint, open for restoring."""

    @property
    def world_size(self) -> int:
        """How many ranks of this role restore now. How many saved is written in the checkpoint itself."""
        ...

    @property
    def rank(self) -> int:
        """The index of this process among those."""
        ...

    @property
    def where(self) -> str:
        """The checkpoint as a person would name it; for messages."""
        ...

    def names(self) -> tuple[str, ...]:
        """The physical names that the checkpoint holds."""
        ...

    def load(self, name: str, *, into: object | None = None) -> object:
        """The tree of `<name>.pt`, or of the directory `<name>/` of torch.distributed.checkpoint.

        A tensor that `into` has at the same path, of the same dtype and (global) shape, is filled in place and
        returned, a DTensor with the chunks of this rank alone; every other tensor is fresh, whole and on the CPU.
        A directory is filled only into exactly its own names, dtypes and shapes; anything else is `NotResumable` with
        nothing touched. `Corrupt` where bytes are wrong: what was filled until then is undefined.
        """
        ...

    def forms(self, name: str) -> object:
        """The tree of `name` without its bytes: tensors of the dtypes and shapes that it has, on any device.

        A plain value may be None in the place of what it is. Raises `Corrupt` as `load` does.
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
