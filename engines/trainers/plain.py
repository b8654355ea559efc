"""The trainer of one process whose model and optimizer give their whole state: plain `state_dict`."""

from __future__ import annotations

from torch.optim import Optimizer

from milepost.engines.trainers.base import BaseTrainer
from milepost.engines.trainers.inventory import require_fit, tensors
from milepost.engines.trainers.optimizers import OptimizerFile, Outline, load_exactly
from milepost.engines.trainers.protocols import RestoreSource, Stateful, Tree
from milepost.engines.trainers.saved import read_filling
from milepost.transitions.errors import Corrupt, NotResumable


class PlainTrainer(BaseTrainer):
    """Model, optimizer, scheduler and data as they are.

        trainer = PlainTrainer(model=model, optimizer=optimizer, scheduler=scheduler, data=batches)

    Weights are restored in place: references to parameters stay good. `TypeError` for a part that is not
    Stateful.
    """

    def weights_tree(self, part: Stateful) -> Tree:
        return part.state_dict()

    def optimizer_tree(self) -> Tree:
        assert self.optimizer is not None
        return self.optimizer.state_dict()

    def optimizer_outline(self) -> Tree | None:
        return None

    def load_weights(self, source: RestoreSource, part: Stateful, *, name: str, fits: bool) -> None:
        live = self.weights_tree(part)
        where = f"{source.where}/{name}.pt"
        tree = read_filling(source, name, into=live if fits else None, where=where).tree
        if not fits:
            require_fit(where, saved=tensors(tree), here=tensors(live))
        elif tensors(tree) != tensors(live):
            raise Corrupt(f"{where} does not hold what trainer.pt describes: they are not of one save")
        part.load_state_dict(tree)

    def check_outline(self, outline: Outline | None) -> None:
        if outline is not None:
            raise _by_names(outline.file.where)

    def load_optimizer(self, source: RestoreSource, *, fits: bool, pristine: bool, outline: Outline | None) -> None:
        assert self.optimizer is not None
        live = self.optimizer_tree()
        fill = fits and live.get("state")
        saved = read_filling(source, "optim", into=live if fill else None, where=f"{source.where}/optim.pt")
        tree = saved.tree
        if isinstance(self.optimizer, Optimizer):
            file = OptimizerFile.read(saved)
            if file.named:
                raise _by_names(saved.where)
            if pristine and self.traces is not None:
                file.require_no_state()
                self.traces.reset(file.groups)
                return
            tree = {**tree, "state": file.state, "param_groups": file.groups}
        load_exactly(self.optimizer, tree, where=saved.where)


def _by_names(where: str) -> NotResumable:
    return NotResumable(
        f"{where}: the optimizer was saved by the names of its parameters, PlainTrainer takes it by their numbers: "
        "build a ShardedTrainer, for one process too"
    )
