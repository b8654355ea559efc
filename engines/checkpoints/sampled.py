"""The sampling boundary that a checkpoint carries, `sampling.json`: where its sampling goes on without losing work.

    {"format":"milepost.sampling.v1","epoch":2,"remaining":96,"sampler_state":"{\\"offset\\":32}","sum":"blake3:…"}

1. It is payload: a file of the training state, written with it into the private staging, recorded with it and listed
   by the manifest with its digest. So copies, archives and buckets carry it, and `verify` proves it.
2. A checkpoint of a run that never began to sample has none, and no artifact has one.
3. `sampler_state` is the canonical JSON text that the journal recorded.
"""

from __future__ import annotations

import json

from milepost.engines.checkpoints import Checkpoints
from milepost.engines.checkpoints.manifest import Manifest
from milepost.engines.checkpoints.parts import SAMPLING, is_sampling
from milepost.engines.checkpoints.proven import Form
from milepost.engines.digests import Digester
from milepost.engines.disks import Disk
from milepost.transitions.errors import Corrupt
from milepost.transitions.values import FULL, FileDigest, SamplingPoint, SaveId

LIMIT_BYTES = 1 << 20

_FORM = Form(content=SamplingPoint, tag="milepost.sampling.v1", called="a sampling boundary")


def put(checkpoints: Checkpoints, save: SaveId, point: SamplingPoint) -> FileDigest:
    """Write the file into the staging of the full save; raises as `put_bytes` does."""
    return checkpoints.put_bytes(save, SAMPLING, _FORM.encode(point), plan=FULL)


def listed(manifest: Manifest) -> FileDigest | None:
    """The file as the manifest lists it, None where the checkpoint carries none."""
    return next((one for one in manifest.files if is_sampling(one.path)), None)


def read(disk: Disk, path: str, *, file: FileDigest) -> SamplingPoint:
    """What this file of the checkpoint directory `path` says.

    `Corrupt` where the bytes are not those that are listed, `NewerVersion` for a later format, or `OSError`.
    """
    where, data = disk.where(f"{path}/{file.path}"), disk.read(f"{path}/{file.path}", limit=LIMIT_BYTES)
    digester = Digester(file.digest.partition(":")[0], size=len(data))
    digester.update(data)
    if digester.digest != file.digest:
        raise Corrupt(
            f"{where}: expected {file.size} bytes with digest {file.digest}, found {len(data)} bytes with "
            f"{digester.digest}. Restore the file from a copy, or resume from another checkpoint by its path"
        )
    point = _FORM.decode(data, where=where)
    if point.epoch < 1 or point.remaining < 0 or not _is_json(point.sampler_state):
        raise Corrupt(
            f"{where}: expected an epoch from 1, a budget that is not negative and a sampler state in JSON, "
            f"found {point}"
        )
    return point


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
