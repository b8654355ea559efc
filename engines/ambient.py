"""The only clock, the only ids and the only randomness. Everything that needs one is given this."""

from __future__ import annotations

import os
import secrets
import socket
import time
import uuid
from datetime import UTC, datetime
from typing import Protocol


class Ambient(Protocol):
    """What a process knows of the world around it."""

    def now(self) -> datetime:
        """The wall clock, UTC. Evidence for people; nothing is ordered by it."""
        ...

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back."""
        ...

    def nonce(self) -> str:
        """32 random hex digits."""
        ...

    def execution_id(self) -> str:
        """A fresh id for one start of the process."""
        ...

    def host(self) -> str: ...
    def pid(self) -> int: ...


class SystemAmbient:
    """The machine's own."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()

    def nonce(self) -> str:
        return secrets.token_hex(16)

    def execution_id(self) -> str:
        return str(uuid.uuid4())

    def host(self) -> str:
        return socket.gethostname()

    def pid(self) -> int:
        return os.getpid()


def timestamp(now: datetime) -> str:
    """`2026-11-29T16:09:04.123456Z`, of an aware time."""
    return f"{now.astimezone(UTC).isoformat(timespec='microseconds').removesuffix('+00:00')}Z"
