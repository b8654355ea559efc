"""An open file as an object: closed once, unusable afterwards."""

from __future__ import annotations

import errno
import os
from types import TracebackType
from typing import Self


class Descriptor:
    """Owns `fd`. A closed one answers EBADF as the kernel would, and never reaches another file of that number."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def fd(self) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, "this file was closed")
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
