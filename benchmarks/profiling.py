"""Where the time of one run goes: what every thread is doing, looked at each millisecond."""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType

Profile = dict[str, list[str]]
"""For each thread, its most frequent places: `63% stage > _copy_all > _drain (staging.py:186)`."""

_EVERY_S = 0.001
_SWITCH_S = 0.0001
"""How soon a thread in Python code has to let the watcher look. At the usual 5 ms most looks would fall where threads
wait or read, for there they let go by themselves."""

_DEPTH = 3
_SHOWN = 6


def profile(run: Callable[[], object]) -> Profile:
    """Run it once and look at every thread meanwhile; a thread that waits is seen waiting."""
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(seen, done), name="profile")
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    watcher.start()
    try:
        run()
    finally:
        done.set()
        watcher.join()
        sys.setswitchinterval(interval)
    return {
        thread: [f"{count / places.total():.0%} {place}" for place, count in places.most_common(_SHOWN)]
        for thread, places in sorted(seen.items())
    }


def _watch(seen: dict[str, Counter[str]], done: threading.Event) -> None:
    while not done.wait(_EVERY_S):
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            if ident != threading.get_ident():
                seen[names.get(ident, "unnamed")][_place(frame)] += 1


def _place(innermost: FrameType) -> str:
    chain: list[str] = []
    frame: FrameType | None = innermost
    while frame is not None and len(chain) < _DEPTH:
        chain.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return f"{' > '.join(reversed(chain))} ({Path(innermost.f_code.co_filename).name}:{innermost.f_lineno})"
