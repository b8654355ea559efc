"""What counts as a key: relative, `/`-separated, the same object in every store and a possible path on a disk.

Stores differ in what they do with an empty segment, `.` or `..`, some keep objects as files whose names end at 255
bytes, and XML cannot carry control characters. Such a key is a bug of the caller or an attack: it is refused, never
repaired. Source: Amazon S3 user guide, "Naming Amazon S3 objects".
"""

from __future__ import annotations

import unicodedata

KEY_BYTES = 1024
SEGMENT_BYTES = 255


def check_key(key: str) -> str:
    """The key itself; `ValueError` says what is wrong with it."""
    if not key:
        raise ValueError("an empty key names no object; give names joined by single slashes")
    _check_text(key)
    for segment in key.split("/"):
        if segment in ("", ".", ".."):
            raise _refused(key, f"the segment {segment!r} is not a name")
    return key


def check_prefix(prefix: str) -> str:
    """The start of a key: nothing, whole segments each with its slash, and perhaps the beginning of another."""
    _check_text(prefix)
    *whole, _begun = prefix.split("/")
    for segment in whole:
        if segment in ("", ".", ".."):
            raise _refused(prefix, f"the segment {segment!r} is not a name")
    return prefix


def _check_text(key: str) -> None:
    if bad := [c for c in key if c == "\\" or unicodedata.category(c) in ("Cc", "Cs")]:
        raise _refused(key, f"it holds {bad[0]!r}")
    if (size := len(key.encode())) > KEY_BYTES:
        raise _refused(key, f"it has {size} bytes, at most {KEY_BYTES} are allowed")
    for segment in key.split("/"):
        if (size := len(segment.encode())) > SEGMENT_BYTES:
            raise _refused(key, f"a segment has {size} bytes, at most {SEGMENT_BYTES} are allowed")


def _refused(key: str, why: str) -> ValueError:
    return ValueError(f"not a key below a bucket's prefix: {key[:80]!r} ({why}); give names joined by single slashes")
