"""Stores that speak S3, one of each for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.buckets.benches import Store
from tests.buckets.google import GoogleOnLoopback
from tests.buckets.servers import Ministack, Rclone, SeaweedFS


@contextmanager
def running(kind: type[Store], factory: pytest.TempPathFactory) -> Iterator[Store]:
    if reason := kind.unavailable():
        pytest.skip(reason)
    with kind(factory.mktemp(kind.__name__)) as server:
        yield server


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running(SeaweedFS, tmp_path_factory) as server:
        yield server


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running(Ministack, tmp_path_factory) as server:
        yield server


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running(Rclone, tmp_path_factory) as server:
        yield server


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running(GoogleOnLoopback, tmp_path_factory) as server:
        yield server
