"""STUB"""

from __future__ import annotations
from pathlib import Path
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from milepost.journal import SamplingBoundary, SamplingReplayLedger
from .app import Controller, Recovery, serve
from .training import metadata_of, newest

ITEMS = "ABCDEF"
AHEAD = 3


def control(folder: Path) -> int:
    checkpoint = newest(folder)
    if checkpoint:
        m = metadata_of(checkpoint)
        begin = SamplingBoundary(m.epoch, m.remaining_completions, m.sampler_state)
        metadata = m.to_json()
        head = (
            f"goes on from update {m.optimizer_updates} with {m.remaining_completions} completions in epoch {m.epoch}"
        )
    else:
        begin = SamplingBoundary(1, 6, {"position": 0})
        metadata = {}
        head = "begins with 6 completions in epoch 1"
    ledger = SamplingReplayLedger(begin)
    tokens = {}
    at = begin.sampler_state["position"]
    fetched = begin
    for k in range(AHEAD):
        fetched = SamplingBoundary(1, fetched.remaining_completions - 1, {"position": at + k + 1})
        tokens[ITEMS[at + k]] = ledger.issue(fetched)
    recovery = Recovery(
        metadata, execution_id=ledger.execution_id, settled=lambda item: (ledger.settle(tokens.pop(item)), None)[1]
    )

    async def boundary(request: Request) -> Response:
        b = ledger.boundary
        return JSONResponse(
            {"epoch": b.epoch, "remaining_completions": b.remaining_completions, "sampler_state": b.sampler_state}
        )

    async def meta(request: Request) -> Response:
        return JSONResponse(dict(metadata))

    def told():
        print(head, flush=True)
        print("fetched", ", ".join(tokens), flush=True)

    names = list(tokens)
    import functools

    print(f"{head}\nfetched {', '.join(names)}", flush=True)
    return serve(Controller(names, recovery=recovery), also=[Route("/boundary", boundary), Route("/metadata", meta)])
