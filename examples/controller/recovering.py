"""The canary's controller: it resumes in the order that its adapter asks for, fetches ahead, and keeps the ledger.

1. Three places are three: how far the loader fetched, what workers own, and the boundary before which everything is
   settled. The last one alone is saved (INV-11).
2. An item is settled when its training is reported, and not when it is fetched or handed out.
3. The ledger and the fence have one execution id, a fresh one for each start.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from attrs import asdict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch.utils.data import DataLoader, SequentialSampler

from milepost.journal import SamplingBoundary, SamplingReplayLedger, SamplingToken
from milepost.journal.controller import ControllerResume, ResumableSampler, ResumeMetadata, Samplers

from .app import Controller, Recovery, serve
from .training import metadata_of, newest

ITEMS = "ABCDEF"
AHEAD = 3
"""How many items are fetched before the first one is asked for."""


class Application:
    """The `ControllerAdapter` of the canary."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def discover(self) -> Path | None:
        return newest(self.folder)

    def load_metadata(self, path: str) -> ResumeMetadata:
        return metadata_of(Path(path))

    def restore(self, sampler: ResumableSampler, metadata: ResumeMetadata) -> None:
        assert isinstance(metadata.sampler_state, dict)
        sampler.load_state_dict(metadata.sampler_state)


def control(folder: Path) -> int:
    """Serve the canary's work, from the newest checkpoint on where there is one; the exit status."""
    resume = ControllerResume(Application(folder))
    sampler = ResumableSampler(SequentialSampler(ITEMS))
    resume.build_samplers(lambda: Samplers(sampler=sampler))
    metadata = resume.select()
    resume.restore()
    resume.build_loader(lambda _: DataLoader(ITEMS, sampler=sampler, batch_size=None))  # type: ignore[arg-type]

    remaining = len(ITEMS) if metadata is None else metadata.remaining_completions
    fetched = SamplingBoundary(sampler.epoch, remaining, sampler.state_dict())
    begins = "begins" if metadata is None else f"goes on from update {metadata.optimizer_updates}"
    print(f"{begins} with {remaining} completions in epoch {fetched.epoch}", flush=True)

    ledger, tokens = SamplingReplayLedger(fetched), dict[str, SamplingToken]()
    for item in islice(resume.iterate(), AHEAD):
        sampler.advance()
        fetched = SamplingBoundary(sampler.epoch, fetched.remaining_completions - 1, sampler.state_dict())
        tokens[item] = ledger.issue(fetched)
    print(f"fetched {', '.join(tokens)}", flush=True)

    def settled(item: str) -> None:
        ledger.settle(tokens.pop(item))

    async def boundary(request: Request) -> Response:
        return JSONResponse(asdict(ledger.boundary))

    async def resumed(request: Request) -> Response:
        return JSONResponse(known)

    known = {} if metadata is None else metadata.to_json()
    recovery = Recovery(known, execution_id=ledger.execution_id, settled=settled)
    controller = Controller(list(tokens), recovery=recovery)
    return serve(controller, also=[Route("/boundary", boundary), Route("/metadata", resumed)])
