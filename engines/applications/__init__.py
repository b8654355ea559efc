"""Checkpoints that an application writes itself: a manifest beside its files says that they are whole."""

from __future__ import annotations

from milepost.engines.applications.files import MANIFEST, Artifact, shard_names
from milepost.engines.applications.manifest import CheckpointManifest

__all__ = ["MANIFEST", "Artifact", "CheckpointManifest", "shard_names"]
