"""`python -m benchmarks [FIGURE …] [--rounds N] [--quick]`.

Several figures run one after the other, each in a process of its own, so that none inherits memory, threads or
caches of another.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks import report
from benchmarks.figures import FIGURES
from benchmarks.machine import environment
from benchmarks.measuring import Figure, Judged, Options, judge, measure, ready
from benchmarks.profiling import Profile, profile

RESULTS = Path(__file__).parent / "results"
WORK = Path("outputs")
"""Where states are saved while they are measured: a disk, which a temporary folder need not be."""

_ROUNDS, _MIB, _ENTRIES = 5, 2048, (10_000, 100_000, 1_000_000)
_QUICK_ROUNDS, _QUICK_MIB, _QUICK_ENTRIES = 3, 512, (1_000, 10_000)


@click.command()
@click.argument("figures", nargs=-1, type=click.Choice(list(FIGURES)))
@click.option("--rounds", type=click.IntRange(min=1), help=f"Rounds of each figure: {_ROUNDS}, or {_QUICK_ROUNDS}.")
@click.option("--quick", is_flag=True, help="A smaller state, shorter journals, fewer rounds: a smoke test.")
@click.option("--mib", type=click.IntRange(min=1), help=f"Size of the training state: {_MIB}, or {_QUICK_MIB}.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the results go: benchmarks/results, or outputs/benchmarks for a quick run.",
)
def main(figures: tuple[str, ...], rounds: int | None, quick: bool, mib: int | None, output: Path | None) -> None:
    """Measure the FIGURES, all of them by default, and say which bars are met."""
    output = output or (WORK / "benchmarks" if quick else RESULTS)
    if len(figures) == 1:
        measure_one(
            figures[0],
            rounds=rounds or (_QUICK_ROUNDS if quick else _ROUNDS),
            mib=mib or (_QUICK_MIB if quick else _MIB),
            entries=_QUICK_ENTRIES if quick else _ENTRIES,
            output=output,
        )
        return
    shared = [f"--output={output}", *(["--quick"] if quick else [])]
    shared += [f"--{name}={value}" for name, value in (("rounds", rounds), ("mib", mib)) if value is not None]
    for name in figures or FIGURES:
        subprocess.run([sys.executable, "-m", "benchmarks", name, *shared], check=True)


def measure_one(name: str, *, rounds: int, mib: int, entries: tuple[int, ...], output: Path) -> None:
    """Measure one figure in this process, keep its result and renew the page."""
    WORK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=WORK, prefix=f"bench-{name}-") as scratch:
        options = Options(rounds=rounds, mib=mib, entries=entries, scratch=Path(scratch).resolve())
        surroundings = environment(options.scratch)
        with FIGURES[name](options) as figure:
            click.echo(f"{figure.title}, {rounds} rounds")
            measured = measure(figure, rounds=rounds)
            judged = [judge(bar, measured) for bar in figure.bars]
            profiles = explain(figure, judged)
    result = report.document(figure, measured, judged, environment=surroundings, rounds=rounds, profiles=profiles)
    report.write(output, result)
    report.write_page(output, list(FIGURES))
    for one in judged:
        click.echo(f"  {report.describe(one)}")


def explain(figure: Figure, judged: Sequence[Judged]) -> dict[str, Profile]:
    """A profile of one more run of each case that missed a bar."""
    missed = {one.bar.case for one in judged if not one.met} if figure.profiled else set()
    profiles: dict[str, Profile] = {}
    for case in figure.cases:
        if case.name in missed:
            with ready(case, figure):
                profiles[case.name] = profile(case.run)
    return profiles


if __name__ == "__main__":
    main()
