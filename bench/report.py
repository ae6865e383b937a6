"""How a benchmark says what it found: rows of one table, each with the aim beside it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One promise, what was measured, and what was aimed for. `met` is None where there is no aim."""

    what: str
    measured: str
    aim: str
    met: bool | None = None


def percentile(values: Sequence[float], p: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))]


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def p50_p99(values: Sequence[float]) -> str:
    return f"p50 {ms(statistics.median(values))}, p99 {ms(percentile(values, 99))}"


def print_table(figures: Sequence[Figure]) -> None:
    widths = [max(len(getattr(f, n)) for f in figures) for n in ("what", "measured", "aim")]
    for figure in figures:
        mark = {True: "yes", False: "NO", None: ""}[figure.met]
        cells = (figure.what, figure.measured, figure.aim)
        print(
            "| " + " | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)) + f" | {mark} |",
            flush=True,
        )
