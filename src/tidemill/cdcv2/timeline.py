"""Timeline of a stream: the puzzle of docs/cdcv2.md, drawn for real messages.

It shows which times are stated, which updates have arrived, and how far the stream is complete. Built from
`Steps`; drawn by the command line in the terminal and by `svg`. Integer times: one line per step, times from
left to right. Pairs: the plane after the last step. More components are not drawn. Columns are the times at
which something happens, regardless of their distance. If there are too many, each column combines an equal
number of them.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from tidemill.cdcv2.coverage import StatedSpan
from tidemill.cdcv2.steps import StepMark, TimelineStep, together
from tidemill.cdcv2.times import INTEGERS, Frontier, Time, beyond, kind_of, within

# Columns with space for numbers, and columns of one character each: the width that a terminal has beside the
# text.
WIDE_COLUMNS = 12
MAX_COLUMNS = 60
# Lines of a plane.
MAX_LINES = 24


class TimelineState(Enum):
    """The state of the times of a cell; the value is its sign if numbers do not fit."""

    DONE = "━"
    READY = "●"
    EMPTY = "·"
    MISSING = "○"
    UNSTATED = "?"
    GAP = "▒"
    WRONG = "✗"


MEANINGS = {
    TimelineState.DONE: "complete, handed out and forgotten",
    TimelineState.READY: "all its updates are there; it waits for an earlier time",
    TimelineState.EMPTY: "stated, and without updates",
    TimelineState.MISSING: "updates are missing",
    TimelineState.UNSTATED: "updates that no statement counts yet",
    TimelineState.GAP: "no statement",
    TimelineState.WRONG: "a contradiction: never handed out",
}


@dataclass(frozen=True, slots=True)
class Cell:
    state: TimelineState
    # "2/3": two of three updates; empty if nothing is counted.
    text: str = ""
    # The history is complete before this column.
    frontier: bool = False


@dataclass(frozen=True, slots=True)
class TimelineLine:
    label: str
    cells: list[Cell]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    # The heading of the line labels; the first time of each column.
    corner: str
    heads: list[str]
    lines: list[TimelineLine]

    @property
    def wide(self) -> bool:
        return len(self.heads) <= WIDE_COLUMNS

    def states(self) -> list[TimelineState]:
        """The states that occur in the picture."""
        seen = {cell.state for line in self.lines for cell in line.cells}
        return [state for state in TimelineState if state in seen]


def picture(steps: Sequence[TimelineStep]) -> Picture | None:
    """None if there is nothing to draw, or if times have three or more components."""
    if not steps:
        return None
    # A stream whose first message completes it contains no times; until the kind is known, integers are
    # assumed.
    kind = next((kind_of(t) for s in reversed(steps) for t in _mentioned(s)), INTEGERS)
    if kind == INTEGERS:
        return _line_by_line(steps)
    return _plane(steps[-1]) if kind == 2 else None


def _mentioned(step: TimelineStep) -> Iterable[Time]:
    for statement in step.stated:
        yield from (*statement.lower, *statement.upper)
    yield from (mark.time for mark in step.marks)
    yield from (time for time, _ in step.released)
    yield from step.reported


# -- integers


def _line_by_line(steps: Sequence[TimelineStep]) -> Picture:
    points: set[int] = {0}
    for step in steps:
        points.update(cast("Iterable[int]", (*step.before, *step.reported)))
        for statement in step.stated:
            points.update(cast("Iterable[int]", (*statement.lower, *statement.upper)))
        for time in (*(m.time for m in step.marks), *(t for t, _ in step.released)):
            points.update((cast("int", time), cast("int", time) + 1))
    starts = _columns(sorted(points), MAX_COLUMNS)
    lines = [TimelineLine(f"{s.last}  {s.told}", _cells(s, starts), _note(s)) for s in steps]
    return Picture("message", [str(s) for s in starts], lines)


def _columns(points: list[int], most: int) -> list[int]:
    """The first times of the columns; the last column is everything beyond the known times."""
    if len(points) <= most:
        return points
    return [*(points[i * (len(points) - 1) // (most - 1)] for i in range(most - 1)), points[-1]]


def _cells(step: TimelineStep, starts: list[int]) -> list[Cell]:
    ends = [*starts[1:], math.inf]
    reported = cast("int", step.reported[0]) if step.reported else math.inf
    before = cast("int", step.before[0]) if step.before else math.inf
    stated = _stretches(step.stated)
    marks: list[list[StepMark]] = [[] for _ in starts]
    for mark in step.marks:
        marks[bisect_right(starts, cast("int", mark.time)) - 1].append(mark)
    released = [0] * len(starts)
    for time, count in step.released:
        released[bisect_right(starts, cast("int", time)) - 1] += count
    cells: list[Cell] = []
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        here = start <= reported < end and reported != math.inf
        if end <= reported:
            text = f"{released[i]}/{released[i]}" if released[i] and end > before else ""
            cells.append(Cell(TimelineState.DONE, text))
        else:
            covered = _covered(stated, max(start, int(reported)), end)
            cells.append(_known(marks[i], covered, here))
    return cells


def _stretches(statements: Sequence[StatedSpan]) -> tuple[list[int], list[float]]:
    """The coverage of all statements, as ordered intervals that do not touch."""
    starts: list[int] = []
    ends: list[float] = []
    for low, high in sorted(
        (cast("int", s.lower[0]), cast("float", s.upper[0]) if s.upper else math.inf) for s in statements
    ):
        if ends and low <= ends[-1]:
            ends[-1] = max(ends[-1], high)
        else:
            starts.append(low)
            ends.append(high)
    return starts, ends


def _covered(stretches: tuple[list[int], list[float]], start: int, end: float) -> bool:
    at = bisect_right(stretches[0], start) - 1
    return at >= 0 and stretches[1][at] >= end


def _known(marks: list[StepMark], covered: bool, frontier: bool) -> Cell:
    if not marks:
        return Cell(TimelineState.EMPTY if covered else TimelineState.GAP, "", frontier)
    mark = together(marks)
    if mark.wrong:
        return Cell(TimelineState.WRONG, "✗", frontier)
    if mark.want is None:
        return Cell(TimelineState.UNSTATED, f"{mark.have}/?", frontier)
    state = (
        TimelineState.MISSING
        if mark.have < mark.want
        else TimelineState.READY
        if covered
        else TimelineState.GAP
    )
    if mark.want == 0:
        state = TimelineState.EMPTY if covered else TimelineState.GAP
    return Cell(state, f"{mark.have}/{mark.want}" if mark.want else "", frontier)


def _note(step: TimelineStep) -> str:
    parts: list[str] = []
    if step.before != step.reported:
        where = f"complete before {step.reported[0]}" if step.reported else "complete for ever"
        parts.append(f"hands out {step.released_count}, {where}" if step.released_count else where)
    kept = [_number(step.kept, "update"), _number(step.pending_statements, "statement")]
    if kept := [text for text in kept if text]:
        parts.append(f"keeps {' and '.join(kept)}")
    return "; ".join(parts)


def _number(number: int, what: str) -> str:
    return "" if not number else f"{number} {what}{'' if number == 1 else 's'}"


# -- pairs


def _plane(step: TimelineStep) -> Picture:
    axes: list[list[int]] = []
    for axis in (0, 1):
        points = {0}
        for time in _mentioned(step):
            points.add(cast("tuple[int, int]", time)[axis])
        for time in (*(m.time for m in step.marks), *(t for t, _ in step.released)):
            points.add(cast("tuple[int, int]", time)[axis] + 1)
        axes.append(_columns(sorted(points), MAX_COLUMNS if axis == 0 else MAX_LINES))
    across, up = axes
    marks: dict[tuple[int, int], list[StepMark]] = {}
    for mark in step.marks:
        x, y = cast("tuple[int, int]", mark.time)
        marks.setdefault((bisect_right(across, x), bisect_right(up, y)), []).append(mark)
    lines: list[TimelineLine] = []
    for j in reversed(range(len(up))):
        cells = [
            _corner(step.reported, step.stated, (x, up[j]), marks.get((i + 1, j + 1), []))
            for i, x in enumerate(across)
        ]
        lines.append(TimelineLine(str(up[j]), cells))
    return Picture("second / first", [str(x) for x in across], lines)


def _corner(
    reported: Frontier, stated: Sequence[StatedSpan], at: tuple[int, int], marks: list[StepMark]
) -> Cell:
    """A cell of the plane, by its least time."""
    if not beyond(reported, at):
        return Cell(TimelineState.DONE)
    covered = any(within(s.lower, s.upper, at) for s in stated)
    return _known(marks, covered, at in cast("Sequence[Any]", reported))
