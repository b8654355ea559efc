"""What a person watching the run sees: one line that moves on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import sys

from milepost.engines.ambient import Ambient
from milepost.transitions.archiving import Archiving
from milepost.transitions.saving import Save
from milepost.transitions.values import FULL, Metric, SaveId

log = logging.getLogger("milepost")

_LINE_EVERY_S = 0.2


class Progress:
    """Shows steps and saves. On a terminal the step line is rewritten in place, a few times a second."""

    def __init__(self, *, ambient: Ambient) -> None:
        self._ambient = ambient
        self._terminal = sys.stderr.isatty()
        self._shown_s = float("-inf")

    def step(self, step: int, metrics: tuple[Metric, ...]) -> None:
        now_s = self._ambient.monotonic_s()
        if not self._terminal or now_s - self._shown_s < _LINE_EVERY_S:
            return
        self._shown_s = now_s
        numbers = "  ".join(f"{metric.name} {float(metric.value):.6g}" for metric in metrics)
        sys.stderr.write(f"\r\x1b[Kstep {step}  {numbers}")
        sys.stderr.flush()

    def save_started(self, save: SaveId) -> float:
        """Seconds on the monotonic clock, to be given to `save_done`."""
        log.debug("save %s begins", save)
        return self._ambient.monotonic_s()

    def save_done(self, save: Save, started_s: float, *, pending: bool) -> None:
        seconds = self._ambient.monotonic_s() - started_s
        what = "saved checkpoint" if save.plan == FULL else f"saved artifact of {' and '.join(_names(save))}"
        then = ", its validation is pending" if pending else ""
        size_mib = save.size / 2**20
        log.info("%s %s: %.1f MiB, durable after %.2f s%s", what, save.id.directory, size_mib, seconds, then)

    def archived(self, archiving: Archiving, save: SaveId) -> None:
        """What came of the archive of a save."""
        done, failed = archiving.marked.get(save), archiving.of(save)
        if done is not None:
            log.info("archived %s: %d files, %.1f MiB", save.directory, done.files, done.size / 2**20)
        elif failed is not None:
            log.warning(
                "%s was not archived at %s (%s: %s): the local copy is kept, and it is tried again behind the next "
                "archive that succeeds",
                save.directory,
                failed.destination,
                failed.code,
                failed.detail,
            )

    def published(self, save: Save) -> None:
        """A checkpoint whose validation is completed."""
        log.info("published checkpoint %s: validated", save.id.directory)


def _names(save: Save) -> tuple[str, ...]:
    return tuple(component.value for component in save.plan)
