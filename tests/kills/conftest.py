"""One server of training processes for all tests that kill them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kills.nursery import Nursery


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("nursery")) as nursery:
        yield nursery
