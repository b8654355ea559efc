"""Whether a process of this machine still runs, which a record in a journal names by its number.

1. A number is given out again. A process that began well after the record was written is another one.
2. One that has ended and was not waited for yet runs no more.
3. Where the machine does not say, whatever has the number counts as running: to wait is safe.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from datetime import datetime

SLACK_S = 60.0
"""How far the clock may have been set between the record and now."""


def runs(pid: int, *, since: datetime) -> bool:
    """Whether process `pid` runs, where it is the one that had this number at the aware time `since`."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    with suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # proc_pid_stat(5): from the state on
        if fields[0] in "ZX":
            return False
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return time.time() - age_s <= since.timestamp() + SLACK_S
    return True
