"""The trainer of a model that may be spread over ranks: plain parameters, FSDP2, HSDP; one process or many.

1. A capture gives references and communicates with nobody: what a rank holds of a sharded tensor is a DTensor. Names
   are the official ones of `get_model_state_dict`, without the prefixes of wrappers, for the optimizer too, so that
   other programs load both.
2. A restore fills live memory in place, each rank its own chunks, whatever the number of ranks that saved and
   whether they wrote whole files or shards. What a `PlainTrainer` saved is read too.
3. An optimizer is never stepped for a save. For a restore it first becomes never-stepped, with the saved options;
   the optimizer takes its state once all of it was read. A load that fails leaves an optimizer without state.
4. The state to be filled has the form of the file: for an optimizer of torch, whose state is of its parameter's shape
   or a single number, it is made like the parameters. Any other is made by a step of a stand-in
   (`pristine.untouched`), which costs as much as a step and holds gradients meanwhile.
5. A parameter without state, frozen or never stepped, has none after a restore.

Source: the checkpointing contract, "Two formats" and "Never-stepped optimizer marker".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint import state_dict as official
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from milepost.engines.formats.chunks import chunk_of
from milepost.engines.trainers.base import BaseTrainer
from milepost.engines.trainers.inventory import require_fit, tensors
from milepost.engines.trainers.optimizers import OptimizerFile, Outline, load_exactly, save_outline
from milepost.engines.trainers.pristine import Traces, untouched
from milepost.engines.trainers.protocols import RestoreSource, Stateful, Tree
from milepost.engines.trainers.saved import Saved, read_filling
from milepost.transitions.errors import Corrupt, NotResumable, Refused


class ShardedTrainer(BaseTrainer):
    """A module and an optimizer of torch, on as many ranks as there are.

        fully_shard(model)
        optimizer = AdamW(model.parameters())
        trainer = ShardedTrainer(model=model, optimizer=optimizer, scheduler=scheduler, data=batches)

    Every rank builds one, once the model is sharded. `TypeError` where model or optimizer are not of torch, `Refused`
    where the optimizer holds a parameter that the model does not name.
    """

    model: nn.Module
    optimizer: Optimizer | None
    suffix = ""

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        scheduler: Stateful | None = None,
        data: object = None,
        extra: Mapping[str, Stateful] | None = None,
        old: Stateful | None = None,
        ref: Stateful | None = None,
    ) -> None:
        super().__init__(
            model=model, optimizer=optimizer, scheduler=scheduler, data=data, extra=extra, old=old, ref=ref
        )
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"model: expected a torch Module, found {type(model).__qualname__}; PlainTrainer takes any"
            )
        if not isinstance(optimizer, Optimizer | None):
            found = type(optimizer).__qualname__
            raise TypeError(f"optimizer: expected a torch Optimizer, found {found}; PlainTrainer takes any")
        if optimizer is not None:
            _names(model, optimizer)

    def weights_tree(self, part: Stateful) -> Tree:
        return dict(official.get_model_state_dict(part)) if isinstance(part, nn.Module) else part.state_dict()

    def optimizer_tree(self) -> Tree:
        assert self.optimizer is not None
        tree = self.optimizer.state_dict()
        if more := sorted(tree.keys() - {"state", "param_groups"}):
            raise Refused(
                f"{type(self.optimizer).__qualname__} keeps {', '.join(more)} beside state and param_groups, and the "
                "official form has no place for it: keep it in the state, or pass an object that holds it as extra"
            )
        names = [name for group in _names(self.model, self.optimizer) for name in group]
        return {
            "state": {names[key] if isinstance(key, int) else key: value for key, value in tree["state"].items()},
            "param_groups": [
                {**group, "params": [names[key] for key in group["params"]]} for group in tree["param_groups"]
            ],
        }

    def optimizer_outline(self) -> Tree | None:
        if self.optimizer is None:
            return None
        groups, without = [], []
        for group, names in zip(self.optimizer.param_groups, _names(self.model, self.optimizer), strict=True):
            options = {option: value for option, value in group.items() if option != "params"}
            groups.append({**options, "params": names})  # in the order of state_dict
            members = zip(names, group["params"], strict=True)
            without += [name for name, parameter in members if not self.optimizer.state.get(parameter)]
        return save_outline(groups, without_state=without)

    def load_weights(self, source: RestoreSource, part: Stateful, *, name: str, fits: bool) -> None:
        live = self.weights_tree(part)
        where = f"{source.where}/{name}"
        tree = read_filling(source, name, into=live if fits else None, where=where).tree
        if not fits:
            require_fit(where, saved=tensors(tree), here=tensors(live))
        elif tensors(tree) != tensors(live):
            raise Corrupt(f"{where} does not hold what trainer.pt describes: they are not of one save")
        filled: dict[str, Any] = {key: _in_chunks(value, like=live.get(key)) for key, value in tree.items()}
        if not isinstance(part, nn.Module):
            part.load_state_dict(filled)
            return
        try:
            official.set_model_state_dict(part, filled)
        except RuntimeError as error:
            raise NotResumable(f"{where} does not fit the module: {error}") from error

    def check_outline(self, outline: Outline | None) -> None:
        if outline is not None and self.optimizer is not None:
            outline.file.numbered(_names(self.model, self.optimizer))

    def load_optimizer(self, source: RestoreSource, *, fits: bool, pristine: bool, outline: Outline | None) -> None:
        assert self.optimizer is not None
        assert self.traces is not None
        names = _names(self.model, self.optimizer)
        described = self.optimizer.state_dict()["param_groups"] if outline is None else outline.file.groups
        self._reset(self.traces, outline, names)
        state = {} if pristine else self._target(source, names, outline=outline, legacy=not fits)
        into: Tree | None = None if state is None else {"state": state, "param_groups": described}
        file = OptimizerFile.read(read_filling(source, "optim", into=into, where=f"{source.where}/optim"))
        if pristine:
            file.require_no_state()
        elif outline is not None:
            _require_outlined(file, outline)
        file = file.numbered(names)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        filled = {
            key: _in_chunks(value, like=parameters[key]) if isinstance(key, int) else value
            for key, value in file.state.items()
        }
        load_exactly(self.optimizer, {"state": filled, "param_groups": file.groups}, where=file.where)

    def _reset(self, traces: Traces, outline: Outline | None, names: list[list[str]]) -> None:
        """Never stepped, with the saved options where they are known before the file is read."""
        assert self.optimizer is not None
        if outline is None:
            traces.reset(self.optimizer.state_dict()["param_groups"])
        else:
            traces.reset(outline.file.numbered(names).groups)

    def _target(
        self, source: RestoreSource, names: list[list[str]], *, outline: Outline | None, legacy: bool
    ) -> dict[Any, Any] | None:
        """State to be filled, under the keys of the file: names, numbers, or both where nobody knows.

        None where only a real step makes state.
        """
        assert self.optimizer is not None
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        flat = [name for group in names for name in group]
        without = frozenset() if outline is None else outline.without_state
        stated = {parameter for name, parameter in zip(flat, parameters, strict=True) if name not in without}
        made = _made_like(source, self.optimizer, dict(zip(flat, parameters, strict=True)), outline=outline)
        if made is None:
            made = _made_by_a_step(self.model, self.optimizer, stated=() if outline is None else stated)
        if made is None:
            return None
        target: dict[Any, Any] = {}
        for number, (name, parameter) in enumerate(zip(flat, parameters, strict=True)):
            if parameter in made and parameter in stated:
                if outline is not None or legacy:
                    target[name] = made[parameter]
                if outline is None:
                    target[number] = made[parameter]
        return target


def _names(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """The official name of every parameter of the optimizer, group by group."""
    known = {}
    for raw, parameter in model.named_parameters():
        names = official._get_fqns(model, raw)
        if len(names) != 1:
            raise Refused(f"{raw} stands for {len(names)} parameters: flat parameters are not saved, use fully_shard")
        known[parameter] = next(iter(names))
    for at, group in enumerate(optimizer.param_groups):
        for number, parameter in enumerate(group["params"]):
            if parameter not in known:
                raise Refused(
                    f"parameter {number} of group {at} of the optimizer is none of the model's: build the optimizer "
                    "from the parameters of the model, once it is sharded"
                )
    return [[known[parameter] for parameter in group["params"]] for group in optimizer.param_groups]


def _made_like(
    source: RestoreSource, optimizer: Optimizer, parameters: Mapping[str, Tensor], *, outline: Outline | None
) -> Mapping[Tensor, Tree] | None:
    """State of the form that the file has, each tensor like its parameter or a number; None where that is not so.

    The file's keys are names, or numbers of parameters, which a directory of shards spells as text.
    """
    if not type(optimizer).__module__.startswith("torch.optim."):
        return None
    forms = Saved.read(f"{source.where}/optim", source.forms("optim"))
    saved: dict[Any, Any] = forms.need("state", dict) if "state" in forms else {}
    made: dict[Tensor, Tree] = {}
    for number, (name, parameter) in enumerate(parameters.items()):
        state = next((saved[key] for key in (name, number, str(number)) if key in saved), None)
        if state is None and (outline is None or name in outline.without_state):
            continue
        if not isinstance(state, dict):
            return None
        made[parameter] = {key: _like(form, parameter) for key, form in state.items()}
        if any(value is _OTHER for value in made[parameter].values()):
            return None
    return made if made or not saved else None


_OTHER = object()


def _like(form: object, parameter: Tensor) -> object:
    """A tensor to be filled; `_OTHER` where it is neither of the parameter's shape nor a number."""
    if not isinstance(form, Tensor):
        return form
    if form.dim() == 0:
        return torch.empty((), dtype=form.dtype)
    return torch.empty_like(parameter, dtype=form.dtype) if form.shape == parameter.shape else _OTHER


def _made_by_a_step(
    model: nn.Module, optimizer: Optimizer, *, stated: Collection[Tensor]
) -> Mapping[Tensor, Tree] | None:
    """The state that a first step would make, on a stand-in: the optimizer stays never-stepped.

    It makes state for all of `stated`, which had some, though frozen by now. None where it fails.
    """
    thawed = [parameter for parameter in stated if not parameter.requires_grad]
    with untouched(optimizer):
        try:
            for parameter in thawed:
                parameter.requires_grad_(True)
            official.get_optimizer_state_dict(model, optimizer)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # noqa: BLE001 - a step that asks for more than gradients, such as a closure
            return None
        finally:
            for parameter in thawed:
                parameter.requires_grad_(False)
        return optimizer.state


def _require_outlined(file: OptimizerFile, outline: Outline) -> None:
    names = set(outline.file.keys)
    saved = {name for name, state in file.state.items() if state and name in names}
    if file.keys != outline.file.keys or saved != names - outline.without_state:
        raise Corrupt(f"{file.where} does not hold what trainer.pt describes: they are not of one save")


def _in_chunks(value: Any, *, like: object) -> Any:
    """What was read whole because nothing live could be filled, cut to the chunks of a DTensor of that shape."""
    if isinstance(value, dict):
        return {key: _in_chunks(inner, like=like) for key, inner in value.items()}
    if not isinstance(value, Tensor) or not isinstance(like, DTensor) or isinstance(value, DTensor):
        return value
    try:
        if value.shape != like.shape or (chunk := chunk_of(like)) is None:
            return value
    except ValueError as error:
        raise NotResumable(
            f"a tensor of shape {tuple(like.shape)} cannot be cut from a whole one: {error}"
        ) from error
    box = zip(chunk.offsets, chunk.sizes, strict=True)
    local = value[tuple(slice(start, start + size) for start, size in box)]
    return DTensor.from_local(
        local.to(like.device).clone(memory_format=torch.contiguous_format),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
