"""Directories of torch.distributed.checkpoint: one file for each rank and a `.metadata`, that plain torch reads.

1. Pure of communication: every function works on one rank alone; who calls carries plans and entries between them.
   Each rank makes `Shards` and a plan of its own; `plan_together` joins the plans; each rank writes its `ShardImage`
   with `write_image`, and `metadata_file` gives the bytes that are written last.
2. Nothing in such a directory needs milepost to be read: `torch.distributed.checkpoint.load` of any program reads it,
   on any number of ranks, and `read_dcp` reads what torch wrote.
3. What cannot be saved is `Refused` by path before anything is created; what cannot be read is `Corrupt`, and what
   does not fit the live tree is `NotResumable`, both before the first live byte is overwritten, but for a digest that
   differs, which is known when the file was read.
"""

from milepost.engines.formats.dcp.images import Entry, ShardImage, Shards
from milepost.engines.formats.dcp.metadata import metadata_file
from milepost.engines.formats.dcp.planning import LocalPlan, Planner, Together, plan_together
from milepost.engines.formats.dcp.reading import forms_of_dcp, read_dcp

__all__ = [
    "Entry",
    "LocalPlan",
    "Planner",
    "ShardImage",
    "Shards",
    "Together",
    "forms_of_dcp",
    "metadata_file",
    "plan_together",
    "read_dcp",
]
