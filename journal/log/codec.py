"""Records to JSON and back: stable tags, exact types, versions.

1. `kind` is the record's tag and never its class name; `v` is the version of that record's fields.
2. What an older version wrote is read through a chain of pure upcasters, one version at a time. Old bytes are never
   rewritten.
3. An unknown kind or a later version is `NewerVersion`: the bytes may be fine, this milepost cannot tell. Everything
   else that does not fit is `Corrupt`.
4. Nothing is guessed, coerced or defaulted (`shapes`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, cast

from milepost.engines.shapes import Document, Mismatch, Shape, object_of
from milepost.transitions.errors import Corrupt, NewerVersion
from milepost.transitions.machine import RECORDS, Record

Upcaster = Callable[[Document], Document]
"""The fields that version n+1 of a record would have, from those that version n had (`kind` and `v` left out)."""

UPCASTERS: Mapping[tuple[str, int], Upcaster] = MappingProxyType({})
"""By tag and by the version that is read: every record is still at its first version."""


class Codec:
    """The registry of record classes, each compiled once.

    `upcasters` must lead from version 1 of every class to its `VERSION`.
    """

    def __init__(
        self, records: tuple[type, ...], *, upcasters: Mapping[tuple[str, int], Upcaster] = UPCASTERS
    ) -> None:
        self._upcasters = upcasters
        self._classes: dict[str, Any] = {cast(Any, cls).KIND: cls for cls in records}
        assert len(self._classes) == len(records), "two record classes share a tag"
        needed = {(tag, v) for tag, cls in self._classes.items() for v in range(1, cls.VERSION)}
        assert needed == upcasters.keys(), "the upcasters do not lead from version 1 to the present one"
        self._shapes: dict[str, tuple[int, Shape]] = {
            tag: (cls.VERSION, object_of(cls, tags={"kind": tag, "v": cls.VERSION}))
            for tag, cls in self._classes.items()
        }

    def encode(self, record: Record) -> Document:
        """The record as JSON holds it. A value that would not read back is a `Mismatch`, our own bug."""
        document: Document = self._shapes[record.KIND][1].write(record)  # type: ignore[assignment]
        return document

    def decode(self, document: object) -> Record:
        """The record that `encode` was given; `NewerVersion` or `Corrupt` for anything it would not write."""
        if type(document) is not dict:
            raise Corrupt(f"a record is an object with kind and v, found {type(document).__name__}")
        tag, version = document.get("kind"), document.get("v")
        if type(tag) is not str or type(version) is not int or version < 1:
            raise Corrupt(f"a record has a string kind and a version v of 1 or more, found {tag!r} and {version!r}")
        present, shape = self._shapes.get(tag, (0, None))
        if shape is None or version > present:
            raise NewerVersion(
                f"record {tag!r} version {version} was written by a newer milepost (this one knows version "
                f"{present or 'none'}); read this journal with the milepost that wrote it or a later one"
            )
        try:
            record: Record = shape.read(document if version == present else self._upcast(tag, version, document))
            return record
        except Mismatch as mismatch:
            raise Corrupt(f"record {tag!r} version {version}: {mismatch}") from mismatch

    def _upcast(self, tag: str, version: int, document: Document) -> Document:
        fields = {name: value for name, value in document.items() if name not in ("kind", "v")}
        for step in range(version, self._classes[tag].VERSION):
            try:
                fields = self._upcasters[tag, step](fields)
            except (KeyError, TypeError, ValueError) as error:
                raise Corrupt(f"record {tag!r} version {step} cannot be brought forward: {error!r}") from error
        return {"kind": tag, "v": version, **fields}

    def schema(self) -> Document:
        """JSON Schema (2020-12) of a record at its present version, one definition per tag."""
        definitions = {
            tag: {"description": self._classes[tag].__doc__, **shape.schema}
            for tag, (_, shape) in sorted(self._shapes.items())
        }
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "A record of a milepost journal",
            "oneOf": [{"$ref": f"#/$defs/{tag}"} for tag in definitions],
            "$defs": definitions,
        }


CODEC = Codec(RECORDS)
"""Every record of this version of milepost."""
