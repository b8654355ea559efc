"""openat2(2): a directory below another in one system call, through no symlink. Linux 5.6 and later."""

from __future__ import annotations

import ctypes
import errno
import os
import sys

_SYS_OPENAT2 = 437
"""The same number on every architecture: the call is younger than the common table."""

_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_MISSING = (errno.ENOSYS, errno.EPERM, errno.E2BIG)  # an old kernel, or a sandbox that does not know the call

_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW = _How(os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH)
_there = sys.platform == "linux"


def open_beneath(root: int, path: str) -> int | None:
    """A descriptor (O_PATH) of the directory `path` below `root`; None where the system has no such call.

    A symlink on the way is `OSError` with `ELOOP`; other errors are those of open(2).
    """
    global _there
    if not _there:
        return None
    fd: int = _libc.syscall(_SYS_OPENAT2, root, os.fsencode(path), ctypes.byref(_HOW), ctypes.sizeof(_HOW))
    if fd >= 0:
        return fd
    code = ctypes.get_errno()
    if code in _MISSING:
        _there = False
        return None
    raise OSError(code, os.strerror(code))
