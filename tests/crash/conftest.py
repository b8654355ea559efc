"""The crash machine runs without the formats' helper threads, and without what the journal says to people."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.threads import inline


@pytest.fixture(autouse=True, scope="module")
def one_thread_and_silence() -> Iterator[None]:
    log = logging.getLogger("milepost")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with inline():
            yield
    finally:
        log.setLevel(before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What the folder counted is looked at when all else in it has run; partial plans are what is tested here."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:rl[.].* is partial:UserWarning"))
    items.sort(key=lambda item: item.name == "test_every_rare_path_was_taken")
