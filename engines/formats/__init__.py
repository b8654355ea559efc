"""Tensors to bytes and back: snapshots as `.pt` files that plain torch reads.

1. A snapshot maps physical names to state trees; each becomes one file, `<name>.pt`, that
   `torch.load(path, weights_only=True)` reads back with its aliasing, views, strides, dtypes and key order.
2. The file's layout is computed from the sizes of the storages; there is no second copy and no pickling of tensors.
   A staged and a streamed image of equal trees are equal byte for byte.
3. What could not be read back is `Refused` by path before anything is created; what cannot be read is one
   `Corrupt`. Reading never runs what a file names and never allocates more than the file holds.
4. Names become durable elsewhere: a written file is synced, its directory is the caller's.
5. A sharded tensor is filled from a whole file too, each rank's chunk by its offset. Directories of shards are
   `milepost.engines.formats.dcp`, imported by itself: it brings in torch.distributed.
"""

from milepost.engines.digests import Algorithm, Digester, digest_of
from milepost.engines.formats.images import Image
from milepost.engines.formats.proof import Proof, Proven, Unproven
from milepost.engines.formats.reading import forms_of_pt, read_pt
from milepost.engines.formats.staging import Staged, Stager
from milepost.engines.formats.streaming import stream
from milepost.engines.formats.writing import Written, write_image

__all__ = [
    "Algorithm",
    "Digester",
    "Image",
    "Proof",
    "Proven",
    "Staged",
    "Stager",
    "Unproven",
    "Written",
    "digest_of",
    "forms_of_pt",
    "read_pt",
    "stream",
    "write_image",
]
