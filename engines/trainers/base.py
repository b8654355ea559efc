"""The shared half of every trainer: the small trees, what must fit, and the order of a restore.

1. A restore reads and checks all small trees (trainer.pt, data.pt) before it touches a live object: clocks, the
   fit of model and optimizer, the identities of scheduler and validation, extra state, random streams, the data
   cursor.
2. Then the live objects change, in this order: model, optimizer, scheduler, extra, data, and the random streams
   last, since anything before may draw from them.
3. trainer.pt says what the model and the optimizer look like, so that rule 1 needs no bulk.
4. Everything that is skipped is noted in `Restored.notes`; everything that does not fit is refused.
5. A capture walks no state that its plan does not name; the shapes of rule 3 are part of the training state.

    trainer.pt   format "milepost.trainer.v1" (absent: legacy), the update clocks (`clocks.py`),
                 fits {model, optimizer}, scheduler? (`scheduling.py`), optimizer_pristine? (`pristine.py`),
                 validation? (`validating.py`), rng (`streams.py`), extra {name: state}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from attrs import frozen
from torch.optim import Optimizer

from milepost.engines.trainers.clocks import read_clocks, require_quiescent, save_clocks
from milepost.engines.trainers.cursors import load_cursor, read_cursor, save_cursor
from milepost.engines.trainers.inventory import require_fit, shape_of, tensors
from milepost.engines.trainers.pristine import Traces
from milepost.engines.trainers.protocols import CursorResume, Restored, RestoreSource, Snapshot, Stateful, Tree
from milepost.engines.trainers.saved import Saved, malformed, require_format
from milepost.engines.trainers.scheduling import read_scheduler, save_scheduler
from milepost.engines.trainers.streams import Streams, read_streams, save_streams
from milepost.engines.trainers.validating import compare_validation, save_validation
from milepost.transitions.errors import NotResumable, Refused
from milepost.transitions.values import Clocks, Component, Plan

FORMAT = "milepost.trainer.v1"


@frozen(kw_only=True)
class _Checked:
    """The small trees of a checkpoint, proven to fit; `str` is the reason why a part is skipped."""

    clocks: Clocks
    fits: bool
    pristine: bool
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
    """

    def __init__(
        self,
        *,
        model: Stateful,
        optimizer: Stateful | None = None,
        scheduler: Stateful | None = None,
        data: object = None,
        extra: Mapping[str, Stateful] | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.data = data
        self.extra = dict(extra or {})
        parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, **self.extra}
        for name, part in parts.items():
            if not isinstance(part, Stateful) and (part is not None or name == "model"):
                found = type(part).__qualname__
                raise TypeError(f"{name}: {found} has no state_dict() and load_state_dict()")
        self.traces = Traces(optimizer) if isinstance(optimizer, Optimizer) else None

    @abstractmethod
    def model_tree(self) -> Tree:
        """The live state of the model."""

    @abstractmethod
    def optimizer_tree(self) -> Tree:
        """The live state of the optimizer, without materialising any."""

    @abstractmethod
    def load_model(self, source: RestoreSource, *, fits: bool) -> None:
        """Fill the model. Unless it `fits` (a legacy checkpoint does not say), compare before filling."""

    @abstractmethod
    def load_optimizer(self, source: RestoreSource, *, fits: bool, pristine: bool) -> None:
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
        _require_one_process()
        require_quiescent(clocks)
        trees: dict[str, Tree] = {}
        if Component.MODEL in components:
            trees["model"] = self.model_tree()
        if Component.OPTIMIZER in components and self.optimizer is not None:
            trees["optim"] = self.optimizer_tree()
        if Component.TRAINING_STATE in components:
            model = trees.get("model") or self.model_tree()
            trees["trainer"] = self._trainer_tree(clocks, model=model, validation=validation)
            cursor = save_cursor(self.data, cursor_resume=cursor_resume)
            if cursor is not None:
                trees["data"] = cursor
        return Snapshot(components=components, trees=trees)

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
        self.load_model(source, fits=checked.fits)
        if self.optimizer is not None:
            self.load_optimizer(source, fits=checked.fits, pristine=checked.pristine)
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

    def _trainer_tree(self, clocks: Clocks, *, model: Tree, validation: Mapping[str, object] | None) -> Tree:
        tree: Tree = {
            "format": FORMAT,
            **save_clocks(clocks),
            "fits": {"model": tensors(model), "optimizer": _describe(self.optimizer)},
            "rng": save_streams(),
            "extra": {name: part.state_dict() for name, part in self.extra.items()},
        }
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
            saved = trainer.inner("fits")
            require_fit(f"{source.where}/model.pt", saved=saved.inner("model").tree, here=tensors(self.model_tree()))
            require_fit(
                f"{source.where}/optim.pt", saved=saved.inner("optimizer").tree, here=_describe(self.optimizer)
            )
        return _Checked(
            clocks=clocks,
            fits=fits,
            pristine=_read_pristine(trainer),
            scheduler=read_scheduler(trainer, scheduler=self.scheduler),
            validation=compare_validation(trainer, here=validation),
            extra=self._read_extra(trainer, legacy=legacy),
            streams=read_streams(trainer, legacy=legacy, world_size=source.world_size, rank=_rank()),
            cursor=read_cursor(source, self.data, cursor_resume=cursor_resume),
        )

    def _require_parts(self, source: RestoreSource) -> None:
        needed = ("model", "trainer") if self.optimizer is None else ("model", "optim", "trainer")
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


def _rank() -> int:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if distributed else 0


def _require_one_process() -> None:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if distributed and torch.distributed.get_world_size() > 1:
        raise Refused(
            f"this version saves runs of one process, this one has {torch.distributed.get_world_size()}: "
            "run a single process"
        )
