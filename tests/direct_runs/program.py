"""A run in a real store that kills itself before it makes a certain request.

    python -m tests.direct_runs.program ROOT CREDENTIALS BUCKET PREFIX UNTIL [DYING]

DYING is the end of a key: the request that would make or replace such an object is not made; SIGKILL comes first. It
prints one line of JSON when it ends: where it went on from and what it has become.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from milepost.engines.ambient import SystemAmbient
from milepost.engines.buckets import Bucket
from milepost.engines.buckets.remote import Remote, remotes
from milepost.journal import Config, Journal
from tests.journal.runs import Training


@frozen
class Deadly:
    """A bucket whose process dies before it makes an object whose key ends so."""

    _bucket: Bucket
    _dying: str

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._bucket, name)
        if name not in ("create", "swap", "upload"):
            return verb

        def called(key: str, *args: Any, **kwargs: Any) -> Any:
            if key.endswith(self._dying):
                os.kill(os.getpid(), signal.SIGKILL)
            return verb(key, *args, **kwargs)

        return called


def main(root: str, credentials: str, bucket: str, prefix: str, until: str, dying: str = "") -> None:
    real = remotes(SystemAmbient())

    def opening(uri: str, path: Path | None) -> Remote:
        remote = real(uri, path)
        return evolve(remote, bucket=Deadly(remote.bucket, dying)) if dying else remote

    store = {"backend": "object_store", "bucket": bucket, "credentials": credentials, "prefix": prefix}
    rl = {"save_every": 2, "checkpoint_format": "dcp", "checkpoint_store": store}
    config = Config.load({"run": {"output_root": root}, "rl": rl})
    training = Training()
    with Journal.open(config, trainer=training.trainer(), remotes=opening) as journal:
        for _ in journal.steps(until=int(until)):
            training.step()
    print(json.dumps({"from": journal.resumption.step, "digest": training.digest(), "run_dir": journal.run_dir}))


if __name__ == "__main__":
    main(*sys.argv[1:])
