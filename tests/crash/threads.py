"""The helper threads of the formats, run in the caller's: a crash finds the operations in one order, and quickly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import pytest

from milepost.engines.formats import reading, writing


@contextmanager
def inline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "Relay", _Relay)
        patch.setattr(reading, "ThreadPoolExecutor", _Pool)
        yield


class _Relay:
    """What `milepost.engines.relay.Relay` does, without threads."""

    def __init__(self, followers: Mapping[str, Callable[[memoryview], object]], *, depth: int) -> None:
        self._followers = tuple(followers.values())

    def put(self, block: memoryview) -> None:
        for follow in self._followers:
            follow(block)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class _Pool:
    def __init__(self, workers: int, *, thread_name_prefix: str) -> None: ...

    def submit(self, call: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args))
        except Exception as error:  # noqa: BLE001 - raised where the result is asked for
            future.set_exception(error)
        return future

    def shutdown(self, *, cancel_futures: bool) -> None: ...
