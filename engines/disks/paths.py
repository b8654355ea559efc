"""What counts as a path on a disk: relative, `/`-separated, below the root. Both disks split paths here."""

from __future__ import annotations


def split(path: str) -> tuple[str, ...]:
    """The parts of `path`; the root, which is the empty path, has none.

    `ValueError` for an absolute path, for an empty part, `.` or `..`, and for a NUL: such a path is a bug of
    the caller or an attack, never something to be repaired.
    """
    if not path:
        return ()
    parts = tuple(path.split("/"))
    for part in parts:
        if part in ("", ".", "..") or "\0" in part:
            raise ValueError(
                f"not a path below a disk's root: {path!r} (the part {part!r} is not a name); "
                "give names joined by single slashes"
            )
    return parts


def split_last(path: str) -> tuple[tuple[str, ...], str]:
    """The parts above the last name, and that name; `ValueError` for the root, which has no name."""
    parts = split(path)
    if not parts:
        raise ValueError("the root of a disk cannot be created, opened, renamed or removed; name something in it")
    return parts[:-1], parts[-1]
