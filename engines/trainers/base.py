"""The shared half of every trainer: the small trees, what must fit, and the order of a restore.

1. A restore reads and checks all small trees (trainer.pt, data.pt) before it touches a live object: clocks, the
   fit of model, moving copies and optimizer, the identities of scheduler and validation, extra state, random
   streams, the data cursor.
2. Then the live objects change, in this order: model, moving copies, optimizer, scheduler, extra, data, and the
   random streams last, since anything before may draw from them.
3. trainer.pt says what the weights and the optimizer look like, so that rule 1 needs no bulk. Shapes are global ones,
   which do not depend on how many ranks there are, unless a tensor is padded to their number.
4. Everything that is skipped is noted in `Restored.notes`; everything that does not fit is refused.
5. A capture walks no state that its plan does not name; the shapes of rule 3 are part of the training state.

    trainer.pt   format "milepost.trainer.v1" (absent: legacy), the update clocks (`clocks.py`),
                 fits {model, optimizer, old?, ref?}, named_optimizer? (`optimizers.py`),
                 scheduler? (`scheduling.py`), optimizer_pristine? (`pristine.py`),
                 validation? (`validating.py`), rng (`streams.py`, of all ranks: `joining.py`), extra {name: state}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from attrs import frozen
from torch.optim import Optimizer

from milepost.engines.trainers.clocks import read_clocks, require_quiescent, save_clocks
from milepost.engines.trainers.cursors import load_cursor, read_cursor, save_cursor
from milepost.engines.trainers.inventory import require_fit, shape_of, tensors
from milepost.engines.trainers.optimizers import NAMED, Outline, read_outline
from milepost.engines.trainers.pristine import Traces
from milepost.engines.trainers.protocols import CursorResume, Restored, RestoreSource, Snapshot, Stateful, Tree
from milepost.engines.trainers.saved import Saved, malformed, require_format
from milepost.engines.trainers.scheduling import read_scheduler, save_scheduler
from milepost.engines.trainers.streams import Streams, read_streams, save_streams, saved_ranks
from milepost.engines.trainers.validating import compare_validation, save_validation
from milepost.transitions.errors import NotResumable
from milepost.transitions.values import Clocks, Component, Plan

FORMAT = "milepost.trainer.v1"


@frozen(kw_only=True)
class _Checked:
    """The small trees of a checkpoint, proven to fit; `str` is the reason why a part is skipped."""

    clocks: Clocks
    fits: bool
    pristine: bool
    outline: Outline | None
    scheduler: Tree | None
    validation: str | None
    extra: Mapping[str, Tree]
    streams: Streams | str
    cursor: Tree | str | None


class BaseTrainer(ABC):
    """A trainer made of Stateful objects; a subclass says how model and optimizer state are read and put back.

    `scheduler` may offer `identity()` (`scheduling.py`), `data` `fingerprint()` (`cursors.py`); `data` may also be
    an object without state, which then restarts. `extra` names everything else that has to continue: EMA
    weights, a gradient scaler, counters.

    `old` and `ref` are moving copies of the policy, an old policy or a reference that training refreshes: they are
    part of the training state, each a tree of its own. A frozen one is built anew at every start and not passed.
    """

    suffix = ".pt"
    """What messages add to the name of a bulk tree."""

    def __init__(
        self,
        *,
        model: Stateful,
        optimizer: Stateful | None = None,
        scheduler: Stateful | None = None,
        data: object = None,
        extra: Mapping[str, Stateful] | None = None,
        old: Stateful | None = None,
        ref: Stateful | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.data = data
        self.extra = dict(extra or {})
        copies = {"old": old, "ref": ref}
        self.copies = {name: part for name, part in copies.items() if part is not None}
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, **copies, **self.extra}
        for name, part in parts.items():
            if not isinstance(part, Stateful) and (part is not None or name == "model"):
                found = type(part).__qualname__
                raise TypeError(f"{name}: {found} has no state_dict() and load_state_dict()")
        self.traces = Traces(optimizer) if isinstance(optimizer, Optimizer) else None

    @abstractmethod
    def weights_tree(self, part: Stateful) -> Tree:
        """The live state of the model, or of a moving copy."""

    @abstractmethod
    def optimizer_tree(self) -> Tree:
        """The live state of the optimizer, without materialising any."""

    @abstractmethod
    def optimizer_outline(self) -> Tree | None:
        """What trainer.pt says of an optimizer whose state is saved by names (`optimizers.py`); None by numbers."""

    @abstractmethod
    def load_weights(self, source: RestoreSource, part: Stateful, *, name: str, fits: bool) -> None:
        """Fill `part` from the tree `name`. Unless it `fits` (a legacy checkpoint does not say), compare first."""

    @abstractmethod
    def check_outline(self, outline: Outline | None) -> None:
        """`NotResumable` for an optimizer file of a form, or of parameters, that this trainer cannot take."""

    @abstractmethod
    def load_optimizer(self, source: RestoreSource, *, fits: bool, pristine: bool, outline: Outline | None) -> None:
        """Fill the optimizer, or make it never-stepped with the saved options if it was `pristine`."""

    def capture(
        self,
        components: Plan,
        *,
        clocks: Clocks,
        cursor_resume: CursorResume = "auto",
        validation: Mapping[str, object] | None = None,
    ) -> Snapshot:
        """See `Trainer.capture`."""
        require_quiescent(clocks)
        trees: dict[str, Tree] = {}
        local: Tree = {}
        if Component.MODEL in components:
            trees["model"] = self.weights_tree(self.model)
        if Component.OPTIMIZER in components and self.optimizer is not None:
            trees["optim"] = self.optimizer_tree()
        if Component.TRAINING_STATE in components:
            model = trees.get("model") or self.weights_tree(self.model)
            copies = {name: self.weights_tree(part) for name, part in self.copies.items()}
            trees |= copies
            trees["trainer"] = self._trainer_tree(clocks, model=model, copies=copies, validation=validation)
            local = {"rng": save_streams(), **(save_cursor(self.data, cursor_resume=cursor_resume) or {})}
        return Snapshot(components=components, trees=trees, local=local)

    def restore(
        self,
        source: RestoreSource,
        *,
        cursor_resume: CursorResume = "auto",
        validation: Mapping[str, object] | None = None,
    ) -> Restored:
        """See `Trainer.restore`."""
        checked = self._check(source, cursor_resume=cursor_resume, validation=validation)
        exact = ["model"]
        notes = [] if checked.validation is None else [checked.validation]
        self.load_weights(source, self.model, name="model", fits=checked.fits)
        for name, part in self.copies.items():
            self.load_weights(source, part, name=name, fits=checked.fits)
            exact.append(name)
        if self.optimizer is not None:
            self.load_optimizer(source, fits=checked.fits, pristine=checked.pristine, outline=checked.outline)
            exact.append("optimizer")
        if self.scheduler is not None and checked.scheduler is not None:
            self.scheduler.load_state_dict(checked.scheduler)
            exact.append("scheduler")
        for name, state in checked.extra.items():
            self.extra[name].load_state_dict(state)
            exact.append(f"extra.{name}")
        if isinstance(checked.cursor, str):
            notes.append(checked.cursor)
        elif isinstance(self.data, Stateful) and checked.cursor is not None:
            load_cursor(self.data, checked.cursor, where=f"{source.where}/data.pt")
            exact.append("data")
        skipped = (checked.streams,) if isinstance(checked.streams, str) else checked.streams.resume()
        if skipped:
            notes.extend(skipped)
        else:
            exact.append("rng")
        return Restored(clocks=checked.clocks, exact=tuple(exact), notes=tuple(notes))

    def _trainer_tree(
        self, clocks: Clocks, *, model: Tree, copies: Mapping[str, Tree], validation: Mapping[str, object] | None
    ) -> Tree:
        fits: Tree = {"model": tensors(model), "optimizer": _describe(self.optimizer)}
        tree: Tree = {
            "format": FORMAT,
            **save_clocks(clocks),
            "fits": fits | {name: tensors(copied) for name, copied in copies.items()},
            "extra": {name: part.state_dict() for name, part in self.extra.items()},
        }
        if (outline := self.optimizer_outline()) is not None:
            tree[NAMED] = outline
        if self.scheduler is not None:
            tree["scheduler"] = save_scheduler(self.scheduler)
        if self.traces is not None and self.traces.pristine():
            tree["optimizer_pristine"] = True
        if validation is not None:
            tree["validation"] = save_validation(validation)
        return tree

    def _check(
        self, source: RestoreSource, *, cursor_resume: CursorResume, validation: Mapping[str, object] | None
    ) -> _Checked:
        self._require_parts(source)
        trainer = Saved.read(f"{source.where}/trainer.pt", source.load("trainer"))
        legacy = "format" not in trainer
        if not legacy:
            require_format(trainer, expected=FORMAT)
        clocks = read_clocks(trainer, legacy=legacy)
        fits = not (legacy and "fits" not in trainer)
        if fits:
            self._require_fit(source, trainer, saved_by=saved_ranks(trainer, legacy=legacy))
        outline = read_outline(trainer)
        self.check_outline(outline)
        return _Checked(
            clocks=clocks,
            fits=fits,
            outline=outline,
            pristine=_read_pristine(trainer),
            scheduler=read_scheduler(trainer, scheduler=self.scheduler),
            validation=compare_validation(trainer, here=validation),
            extra=self._read_extra(trainer, legacy=legacy),
            streams=read_streams(trainer, legacy=legacy, world_size=source.world_size, rank=source.rank),
            cursor=read_cursor(source, self.data, cursor_resume=cursor_resume),
        )

    def _require_fit(self, source: RestoreSource, trainer: Saved, *, saved_by: int | None) -> None:
        saved = trainer.inner("fits")
        ranks = None if saved_by is None else (saved_by, source.world_size)
        where = {name: f"{source.where}/{name}{self.suffix}" for name in ("model", "optim", *self.copies)}
        for name, part in {"model": self.model, **self.copies}.items():
            here = tensors(self.weights_tree(part))
            require_fit(where[name], saved=saved.inner(name).tree, here=here, ranks=ranks)
        require_fit(where["optim"], saved=saved.inner("optimizer").tree, here=_describe(self.optimizer), ranks=ranks)

    def _require_parts(self, source: RestoreSource) -> None:
        optim = () if self.optimizer is None else ("optim",)
        needed = ("model", *optim, *self.copies, "trainer")
        if more := [name for name in ("old", "ref") if name in source.names() and name not in needed]:
            raise NotResumable(
                f"{source.where}: has {', '.join(more)}, a moving copy of the policy that this trainer has not; "
                "build the trainer as the run that saved it did"
            )
        if missing := [name for name in needed if name not in source.names()]:
            raise NotResumable(
                f"{source.where}: has {', '.join(source.names()) or 'nothing'}, lacks {', '.join(missing)}; "
                "only a full checkpoint continues exactly: take one that still has all its parts"
            )

    def _read_extra(self, trainer: Saved, *, legacy: bool) -> dict[str, Tree]:
        saved = Saved(trainer.where, {}) if legacy and "extra" not in trainer else trainer.inner("extra")
        require_fit(saved.where, saved=dict.fromkeys(saved.tree), here=dict.fromkeys(self.extra))
        return {name: saved.need(name, dict) for name in saved.tree}


def _describe(optimizer: Stateful | None) -> Tree:
    """The class and, group by group, dtype and shape of the parameters; empty where there is no optimizer."""
    if optimizer is None:
        return {}
    described: Tree = {"class": type(optimizer).__qualname__}
    if isinstance(optimizer, Optimizer):
        for at, group in enumerate(optimizer.param_groups):
            described[f"group {at}"] = [shape_of(parameter) for parameter in group["params"]]
    return described


def _read_pristine(trainer: Saved) -> bool:
    if "optimizer_pristine" not in trainer:
        return False
    if trainer.need("optimizer_pristine", bool) is not True:
        raise malformed(f"{trainer.where}.optimizer_pristine", expected="True or no such key", found=False)
    return True
