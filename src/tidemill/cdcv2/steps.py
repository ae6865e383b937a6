"""Steps: a few dozen snapshots of a reader's knowledge, from the first message of a stream to the last.

Created by `Survey` while it reads messages, drawn by `timeline`. A step is one message while there are few,
then two, then four, and so on. For any length of the stream there are between half of `MAX_STEPS` and
`MAX_STEPS` steps, and a snapshot is taken only at the end of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from tidemill.cdcv2.coverage import StatedSpan
from tidemill.cdcv2.messages import Message, Updates
from tidemill.cdcv2.recovery import Recovery
from tidemill.cdcv2.times import Frontier, Time

# Lines of a drawing; an even number.
MAX_STEPS = 32
# The maximum number of times and statements in one picture: more than the columns of a drawing, and all
# pictures together take some megabytes. Beyond that, neighbours are drawn as one.
MAX_MARKS = 5_000
# The length of a message's description in a line.
MAX_TOLD = 3


@dataclass(frozen=True, slots=True)
class StepMark:
    """The state of a time, or of neighbouring times of which it is the first."""

    time: Time
    have: int
    # None: no statement counts it.
    want: int | None
    # Never released.
    wrong: bool


@dataclass(slots=True)
class TimelineStep:
    """A reader's knowledge after some messages."""

    # The number of its last message; the number of its messages, and a description.
    last: int
    messages: int
    told: str
    updates: int
    statements: int
    # The history was complete before it, then and now.
    before: Frontier
    reported: Frontier
    marks: list[StepMark]
    # The statements beyond `reported`.
    stated: list[StatedSpan]
    # Released in this step, by time.
    released: list[tuple[Time, int]]
    released_count: int
    kept: int
    pending_statements: int


class Steps:
    def __init__(self, start: Iterable[Time]) -> None:
        """`start` is the frontier before the first message."""
        self._steps: list[TimelineStep] = []
        # The number of messages in a full step.
        self._size = 1
        # The current step; its picture is taken when it is full.
        self._open: TimelineStep | None = None
        self._times: dict[Time, int] = {}
        self._last: Frontier = tuple(start)

    def add(self, number: int, said: Message, recovery: Recovery, released: dict[Time, int]) -> None:
        """Called after the message of this number was pushed, and these updates were released."""
        if self._open is None:
            self._open = TimelineStep(0, 0, "", 0, 0, self._last, (), [], [], [], 0, 0, 0)
        step = self._open
        step.last = number
        step.messages += 1
        step.told = told(said)
        if isinstance(said, Updates):
            step.updates += len(said.updates)
        else:
            step.statements += 1
        step.released_count += sum(released.values())
        self._times |= released
        if len(self._times) > 2 * MAX_MARKS:
            self._times = dict(_grouped(sorted(self._times.items(), key=_first)))
        if step.messages >= self._size:
            self._close(recovery)

    def all(self, recovery: Recovery) -> list[TimelineStep]:
        if self._open is not None:
            self._close(recovery)
        return self._steps

    def _close(self, recovery: Recovery) -> None:
        step, self._open = self._open, None
        if step is None:
            return
        if step.messages > 1:
            step.told = f"{step.updates} updates, {step.statements} statements"
        step.reported = self._last = tuple(recovery.frontier)
        step.marks = _thinned(recovery)
        step.stated = list(recovery.tally.statements())
        if len(step.stated) > MAX_MARKS:
            step.stated = step.stated[:: ceil(len(step.stated) / MAX_MARKS)]
        step.released = _grouped(sorted(self._times.items(), key=_first))
        step.kept, step.pending_statements = recovery.stashed, recovery.pending_statements
        self._times = {}
        self._steps.append(step)
        if len(self._steps) >= MAX_STEPS:
            self._halve()

    def _halve(self) -> None:
        """Merges two steps into one: the second's picture, and the actions of both."""
        self._steps = [_joined(a, b) for a, b in zip(self._steps[::2], self._steps[1::2], strict=True)]
        self._size *= 2


def _joined(a: TimelineStep, b: TimelineStep) -> TimelineStep:
    b.messages += a.messages
    b.updates += a.updates
    b.statements += a.statements
    b.told = f"{b.updates} updates, {b.statements} statements"
    b.before = a.before
    b.released = _grouped(sorted([*a.released, *b.released], key=_first))
    b.released_count += a.released_count
    return b


def _first(item: tuple[Time, int]) -> tuple[int, ...]:
    return (item[0],) if isinstance(item[0], int) else item[0]


def _grouped(items: list[tuple[Time, int]]) -> list[tuple[Time, int]]:
    if len(items) <= MAX_MARKS:
        return items
    size = ceil(len(items) / MAX_MARKS)
    groups = (items[i : i + size] for i in range(0, len(items), size))
    return [(g[0][0], sum(n for _, n in g)) for g in groups]


def _thinned(recovery: Recovery) -> list[StepMark]:
    tally = recovery.tally
    size = max(1, ceil(tally.pending_times / MAX_MARKS))
    found: list[StepMark] = []
    group: list[StepMark] = []
    for time, have, want, wrong in tally.unreported():
        if not (have or want or wrong):
            continue
        group.append(StepMark(time, have, want, wrong))
        if len(group) >= size:
            found.append(together(group))
            group = []
    return [*found, together(group)] if group else found


def together(marks: list[StepMark]) -> StepMark:
    """The state of several times as one: the worst of them."""
    if len(marks) == 1:
        return marks[0]
    wants = [m.want for m in marks]
    want = None if None in wants else sum(w for w in wants if w is not None)
    return StepMark(marks[0].time, sum(m.have for m in marks), want, any(m.wrong for m in marks))


def told(said: Message) -> str:
    """A short description of a message."""
    if isinstance(said, Updates):
        times: dict[Time, int] = {}
        for _, time, _ in said.updates:
            times[time] = times.get(time, 0) + 1
        number = "1 update" if len(said.updates) == 1 else f"{len(said.updates)} updates"
        return f"{number}: {_listed(times.items())}" if times else "no updates"
    upper = _bound(said.upper) if said.upper else "end"
    counts = f": {_listed(said.counts)}" if said.counts else ""
    return f"progress {_bound(said.lower)} to {upper}{counts}"


def _listed(counts: Iterable[tuple[Time, int]]) -> str:
    shown = [f"{n} at {t}" for t, n in counts]
    more = f" and {len(shown) - MAX_TOLD} more" if len(shown) > MAX_TOLD else ""
    return ", ".join(shown[:MAX_TOLD]) + more


def _bound(times: Iterable[Time]) -> str:
    return ", ".join(map(str, times))
