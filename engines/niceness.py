"""Threads that yield to the training loop wherever both want a core."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

NICENESS = 10
"""What is added to a background thread's niceness."""


def be_nicer(*, by: int = NICENESS) -> None:
    """Make the calling thread nicer than it is, and the threads that it starts. Refused is merely less polite."""
    if sys.platform != "linux":
        return  # elsewhere it would be the whole process
    thread = threading.get_native_id()
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, min(os.getpriority(os.PRIO_PROCESS, thread) + by, 19))
