"""FSDP2 on real ranks: saved by two of them, read by one, three and four, equal in every byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.formats.four_ranks import WORLD


@pytest.mark.slow
def test_what_two_ranks_save_any_number_reads_equal_and_torch_too(tmp_path: Path) -> None:
    environ = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    logs = [(tmp_path / f"log.{rank}").open("w+") for rank in range(WORLD)]
    command = [sys.executable, "-m", "tests.formats.four_ranks", str(tmp_path)]
    ranks = [
        subprocess.Popen([*command, str(rank)], env=environ, stdout=log, stderr=log) for rank, log in enumerate(logs)
    ]
    try:
        codes = [process.wait(timeout=240) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
        texts = []
        for log in logs:
            log.seek(0)
            texts.append(log.read()[-3000:])
            log.close()
    assert codes == [0] * WORLD, "\n".join(texts)
