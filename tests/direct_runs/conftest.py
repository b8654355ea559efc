"""A store that speaks S3, one for all tests here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.buckets.conftest import running
from tests.buckets.servers import SeaweedFS


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedFS]:
    with running(SeaweedFS, tmp_path_factory) as server:
        assert isinstance(server, SeaweedFS)
        yield server
