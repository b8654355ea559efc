"""Results on disk: one JSON a figure, and a page made from all of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks.measuring import Figure, Judged, Measured

Document = dict[str, Any]

PAGE = "README.md"


def document(
    figure: Figure,
    measured: Measured,
    judged: Sequence[Judged],
    *,
    environment: Mapping[str, object],
    rounds: int,
    profiles: Mapping[str, object],
) -> Document:
    """Everything that was measured for a figure, as JSON."""
    return {
        "figure": figure.name,
        "title": figure.title,
        "environment": dict(environment),
        "rounds": rounds,
        "facts": dict(figure.facts),
        "cases": {name: _by_measure(samples) for name, samples in measured.items()},
        "bars": [_bar(one) for one in judged],
        "profiles": dict(profiles),
    }


def _bar(judged: Judged) -> Document:
    found = {"value": judged.value, "compared_with": judged.against, "met": judged.met}
    return {**attrs.asdict(judged.bar), **found}


def _by_measure(samples: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    return {measure: [sample[measure] for sample in samples] for measure in samples[0]}


def write(folder: Path, result: Document) -> None:
    """Keep one figure's result."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result['figure']}.json").write_text(json.dumps(result, indent=1) + "\n")


def write_page(folder: Path, names: Sequence[str]) -> None:
    """Make the page from the results of the figures that are there, in this order."""
    found = [folder / f"{name}.json" for name in names]
    results = [json.loads(path.read_text()) for path in found if path.exists()]
    (folder / PAGE).write_text("\n".join(_page(results)) + "\n")


def _page(results: Sequence[Document]) -> Iterator[str]:
    bars = [(result, bar) for result in results for bar in result["bars"]]
    met = sum(bar["met"] for _, bar in bars)
    yield "# What milepost costs"
    yield ""
    yield f"Made by `make bench`. {met} of {len(bars)} bars met. Ratios are medians of the ratios within each round,"
    yield "times and rates medians over the rounds; the rules are in `benchmarks/__init__.py`."
    yield ""
    yield "| figure | bar | found | |"
    yield "|---|---|---|---|"
    for result, bar in bars:
        yield f"| {result['figure']} | {bar['says']} | {_found(bar)} | {'met' if bar['met'] else '**missed**'} |"
    yield ""
    for machine in dict.fromkeys(_listed(_surroundings(result)[1]) for result in results):
        yield f"Measured on: {machine}"
    for result in results:
        yield from _section(result)


def _surroundings(result: Document) -> tuple[Document, Document]:
    """What was so at the time, and what the machine is."""
    machine = dict(result["environment"])
    return {key: machine.pop(key) for key in ("date", "load_average")}, machine


def _section(result: Document) -> Iterator[str]:
    moment, _ = _surroundings(result)
    yield ""
    yield f"## {result['title']}"
    yield ""
    yield f"{result['rounds']} rounds; {_listed(moment | result['facts'])}"
    for measures, cases in _grouped(result["cases"]).items():
        yield ""
        yield f"| case | {' | '.join(_heading(measure) for measure in measures)} |"
        yield "|---|" + "---|" * len(measures)
        for name, samples in cases.items():
            yield f"| {name} | {' | '.join(_spread(measure, samples[measure]) for measure in measures)} |"
    for case, threads in result["profiles"].items():
        yield ""
        yield f"Where the time of *{case}* went:"
        yield ""
        for thread, places in threads.items():
            yield f"- {thread}: {'; '.join(f'`{place}`' for place in places)}"


def _grouped(cases: Mapping[str, Mapping[str, list[float]]]) -> dict[tuple[str, ...], dict[str, Any]]:
    """The cases by what was measured of them: one table for each."""
    groups: dict[tuple[str, ...], dict[str, Any]] = {}
    for name, samples in cases.items():
        groups.setdefault(tuple(samples), {})[name] = samples
    return groups


def describe(judged: Judged) -> str:
    """One line for a terminal."""
    return f"{'met   ' if judged.met else 'MISSED'} {judged.bar.says}: {_found(_bar(judged))}"


def _found(bar: Document) -> str:
    if bar["compared_with"]:
        return f"{bar['value']:.2f} x {bar['compared_with']}"
    return _quantity(bar["measure"], bar["value"])


_UNITS = {
    "_bytes_per_s": (1 << 20, " MiB/s"),
    "_per_s": (1, " a second"),
    "_s": (1, " s"),
    "_us": (1, " us"),
    "_bytes": (1 << 20, " MiB"),
}


def _unit(measure: str) -> tuple[str, float, str]:
    """The measure without its unit, the divisor, and the unit as it is shown."""
    for suffix, (divisor, unit) in _UNITS.items():
        if measure.endswith(suffix):
            return measure.removesuffix(suffix), divisor, unit
    return measure, 1, ""


def _heading(measure: str) -> str:
    return _unit(measure)[0].replace("_", " ")


def _quantity(measure: str, value: float) -> str:
    _, divisor, unit = _unit(measure)
    return f"{_number(value / divisor)}{unit}"


def _spread(measure: str, values: Sequence[float]) -> str:
    _, divisor, unit = _unit(measure)
    middle, low, high = (_number(pick(values) / divisor) for pick in (statistics.median, min, max))
    return f"{middle}{unit} ({low} to {high})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _listed(facts: Mapping[str, object]) -> str:
    return "; ".join(f"{name.replace('_', ' ')}: {_fact(value)}" for name, value in facts.items()) + "."


def _fact(value: object) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
