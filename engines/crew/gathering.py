"""The whole of a tree whose tensors are spread over the ranks of a role, in plain tensors on one of them.

1. All ranks of the role take part, with trees of the same structure; the first of them leads and gets the whole.
2. What is sharded by rows over a one-dimensional mesh (FSDP) goes straight to its rows in the leader's buffer, some
   pieces at a time, and no other rank holds more than its own part. Any other placement is made whole by torch on
   every rank, one tensor after the other.
3. The whole shares no memory with live state, and tensors that are one on the leader (tied weights) stay one.
4. The buffers are used again by the next gathering of that name: whoever was given a tree has to be done with it.
5. It goes over a gloo group of its own, so that the training's groups see none of it; shards of a GPU by way of its
   host's memory.

Bit for bit it is what torch.distributed.checkpoint.state_dict.get_model_state_dict gives for `full_state_dict=True,
cpu_offload=True`.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Self, cast

import torch
import torch.distributed as dist
from attrs import define, field
from torch.distributed.tensor import DTensor, Shard

from milepost.engines.trainers.protocols import Tree
from milepost.transitions.errors import Refused, Unavailable

_PIECE = 16 << 20
_IN_FLIGHT = 8
_PATIENCE_S = 1800.0

_Path = tuple[object, ...]
_Buffers = dict[_Path, torch.Tensor]


@define
class Gatherer:
    """Gathers the trees of one role, and keeps the leader's buffers. One that is not prepared leaves all to torch."""

    _ranks: tuple[int, ...] = ()
    _group: dist.ProcessGroup | None = None
    _buffers: dict[str, _Buffers] = field(factory=dict)

    @classmethod
    def prepare(cls, ranks: Sequence[int], *, timeout_s: float = _PATIENCE_S) -> Self:
        """For the role of these ranks, whose first one leads. Every rank of the world has to make this call.

        A gathering fails where a part of it takes longer than `timeout_s` seconds.
        """
        group = dist.new_group(list(ranks), backend="gloo", timeout=timedelta(seconds=timeout_s))
        return cls(tuple(ranks), group if dist.get_rank() in ranks else None)

    def gather(self, name: str, tree: Tree, *, lead: bool) -> Tree | None:
        """On the rank that leads the whole tree, with plain CPU tensors and copies of other leaves; elsewhere None.

        `name` says whose buffers to use. `Refused` where the leader has no part in a tensor; `Unavailable` where
        another rank does not give its part, after which this role gathers no more.
        """
        whole = _Whole(last=self._buffers.pop(name, {})) if lead else None
        rows: list[tuple[str, DTensor, torch.Tensor | None]] = []
        for path, leaf in _leaves(tree):
            if not isinstance(leaf, DTensor):
                if whole is not None:
                    whole.copy(path, leaf)
                continue
            live = cast(DTensor, leaf.detach())
            buffer = whole.room_for(path, live) if whole is not None else None
            if self._by_rows(live):
                rows.append((".".join(map(str, path)), live, buffer))
            else:
                made = live.full_tensor()
                if buffer is not None:
                    buffer.copy_(made)
        if rows:
            self._bring(rows)
        if whole is None:
            return None
        self._buffers[name] = whole.buffers
        return cast(Tree, _rebuilt(tree, whole.leaves))

    def _by_rows(self, tensor: DTensor) -> bool:
        """Whether its shards are runs of rows that the leader may receive. The same on every rank."""
        mesh, placements = tensor.device_mesh, tensor.placements
        if self._group is None or mesh.ndim != 1 or type(placements[0]) is not Shard or placements[0].dim != 0:
            return False
        if self._ranks[0] not in mesh.mesh.tolist():
            raise Refused(
                f"rank {self._ranks[0]} writes the checkpoint of ranks {list(self._ranks)} but holds no part of a "
                f"tensor that is spread over ranks {mesh.mesh.tolist()}: save with the format `dcp` instead"
            )
        return True

    def _bring(self, rows: Sequence[tuple[str, DTensor, torch.Tensor | None]]) -> None:
        """Each shard to its rows. Sends and receipts are posted in the same order everywhere."""
        own = dist.get_rank()
        under_way: deque[tuple[str, int, dist.Work, torch.Tensor]] = deque()
        for path, tensor, buffer in rows:
            local = tensor.to_local().resolve_conj().resolve_neg()
            for peer, start, stop in _shares(tensor):
                if buffer is not None and peer == own:
                    buffer[start:stop].copy_(local)
                if (peer == own) == (buffer is not None):
                    continue  # the leader has its own part, and others' parts are none of a sender's business
                for piece in _bytes(local if buffer is None else buffer[start:stop]).split(_PIECE):  # type: ignore[no-untyped-call]
                    if len(under_way) == _IN_FLIGHT:
                        _finish(*under_way.popleft())
                    under_way.append((path, peer, *self._post(piece, peer=peer, receive=buffer is not None)))
        while under_way:
            _finish(*under_way.popleft())

    def _post(self, piece: torch.Tensor, *, peer: int, receive: bool) -> tuple[dist.Work, torch.Tensor]:
        """Begin to move these bytes; the tensor has to live until that is over."""
        if receive:
            work = dist.irecv(piece, src=peer, group=self._group)
        else:
            piece = piece.cpu()
            work = dist.isend(piece, dst=self._ranks[0], group=self._group)
        assert work is not None
        return work, piece


@define
class _Whole:
    """The tree as it comes together on the leader."""

    _last: _Buffers
    buffers: _Buffers = field(factory=dict)
    leaves: dict[_Path, object] = field(factory=dict)
    _known: dict[tuple[object, ...], torch.Tensor] = field(factory=dict)

    def copy(self, path: _Path, leaf: object) -> None:
        if isinstance(leaf, torch.Tensor):
            self.room_for(path, leaf.detach()).copy_(leaf.detach())
        else:
            self.leaves[path] = copy.deepcopy(leaf)

    def room_for(self, path: _Path, live: torch.Tensor) -> torch.Tensor:
        """The buffer of a tensor: another one's where both are the same memory, or the last one of its shape."""
        local = live.to_local() if isinstance(live, DTensor) else live
        same = (type(live), local.device, local.data_ptr(), local.dtype, live.shape, local.shape, local.stride())
        buffer = self._known.get(same) if local.numel() else None
        if buffer is None:
            layout = torch.empty(live.shape, dtype=live.dtype, device="meta")
            if not isinstance(live, DTensor):
                layout = torch.empty_like(live, device="meta")
            buffer = self._last.get(path)
            if buffer is None or _form(buffer) != _form(layout):
                buffer = torch.empty_like(layout, device="cpu")
            self._known[same] = self.buffers[path] = buffer
        self.leaves[path] = buffer
        return buffer


def _shares(tensor: DTensor) -> Iterator[tuple[int, int, int]]:
    """Which rank has which rows, without those that have none: torch.chunk's shares, by the mesh's order."""
    ranks = tensor.device_mesh.mesh.tolist()
    count = tensor.shape[0]
    share = -(-count // len(ranks))
    for index, rank in enumerate(ranks):
        start, stop = min(index * share, count), min((index + 1) * share, count)
        if start < stop and tensor.numel():
            yield rank, start, stop


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in its order, shared with it where it is contiguous. Gloo does not move every dtype."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def _finish(path: str, peer: int, work: dist.Work, piece: torch.Tensor) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise Unavailable(
            f"the part of {path} that rank {peer} holds did not reach the rank that writes: {error}"
        ) from error


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.stride()


def _leaves(tree: object, path: _Path = ()) -> Iterator[tuple[_Path, object]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from _leaves(value, (*path, index))
    else:
        yield path, tree


def _rebuilt(tree: object, leaves: Mapping[_Path, object], path: _Path = ()) -> object:
    if isinstance(tree, Mapping):
        return {key: _rebuilt(value, leaves, (*path, key)) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [_rebuilt(value, leaves, (*path, index)) for index, value in enumerate(tree)]
        return parts if isinstance(tree, list) else tuple(parts)
    return leaves[path]
