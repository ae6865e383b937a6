"""The followers that wait for a stage of one text: one evaluation at a time for all of them (`stage_jobs`).

A commit wakes every query that reads what it wrote, and each evaluates its stages from its own thread. For
each text the first caller leads: it takes what waits, runs it, and passes the lead to a caller that came
meanwhile. A leader waits for others only if there were some a short time ago: who is alone does not wait.
Stages of different texts never wait for each other, and one that held up others is evaluated apart for a
while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.errors import Internal, TidemillError
from tidemill.query.keyed_changes import evaluate_keys
from tidemill.query.stage_jobs import StagePiece, evaluate

if TYPE_CHECKING:
    from tidemill.query.spark import SparkHost

# Larger pieces are evaluated by themselves: they would keep the others waiting.
SHARED_ROWS = 50_000
# What one leader takes.
MAX_PIECES = 256
# As many as had come together within the last of these times are waited for: each must come within the first
# after the one before, and all within the second.
GATHER_GAP = 0.03
GATHER_SECONDS = 0.3
COMPANY_SECONDS = 3.0
# A stage that failed or made more rows than SHARED_ROWS, and all of a turn that was slower than SLOW_SECONDS,
# are evaluated by themselves for so long.
APART_SECONDS = 60.0
SLOW_SECONDS = 10.0
# Texts that nobody waits for are forgotten when there are so many.
MAX_LINES = 1000

Evaluate = Callable[["SparkHost", Sequence[StagePiece]], None]


class _Task:
    def __init__(self, piece: StagePiece, of: int) -> None:
        self.piece = piece
        self.of = of
        # Done, or to lead.
        self.woken = threading.Event()
        self.done = False


@dataclass(eq=False, slots=True)
class _Line:
    """Those who wait for one text."""

    waiting: list[_Task] = field(default_factory=list[_Task])
    led: bool = False
    # The largest number that one leader took, and when (monotonic) that was.
    most: int = 0
    at: float = 0.0


class StageQueue:
    """One per server. Used from any thread."""

    def __init__(self, host: SparkHost, run: Evaluate = evaluate) -> None:
        self._host = host
        self._run = run
        # Guards the fields below; notified when a task arrives.
        self._came = threading.Condition()
        self._lines: dict[object, _Line] = {}
        # The stages that are evaluated by themselves, and until when (monotonic).
        self._apart: dict[int, float] = {}
        # What leaders have taken so far, and in how many turns; for tests and measurements.
        self.pieces = 0
        self.turns = 0

    def evaluate(
        self,
        text: str,
        tables: Mapping[str, pa.Table],
        schema: pa.Schema,
        *,
        of: int,
        row_by_row: bool = False,
        alike: bool = True,
    ) -> pa.Table:
        """As `evaluate_keys`. `of` is a number of the stage; `alike`: all tables number their versions in the
        same way. Blocks."""
        piece = StagePiece(text, tables, schema, row_by_row)
        if not alike or piece.rows > SHARED_ROWS or time.monotonic() < self._apart.get(of, 0.0):
            return evaluate_keys(self._host, text, tables, schema, row_by_row=row_by_row)
        forms = tuple((n, tuple(t.schema.names), tuple(t.schema.types)) for n, t in tables.items())
        task = _Task(piece, of)
        with self._came:
            line = self._line((text, forms))
            line.waiting.append(task)
            lead, line.led = not line.led, True
            self._came.notify_all()
        if not lead:
            task.woken.wait()
        if not task.done:
            self._lead(line)
        if piece.error is not None:
            raise piece.error
        if piece.result is None:
            raise Internal("a stage was not evaluated")
        return piece.result

    def _line(self, key: object) -> _Line:
        if key not in self._lines and len(self._lines) >= MAX_LINES:
            self._lines = {k: line for k, line in self._lines.items() if line.led}
        return self._lines.setdefault(key, _Line())

    def _lead(self, line: _Line) -> None:
        """One turn. The leader's own task is the oldest, and so in it."""
        tasks = self._gather(line)
        began = time.monotonic()
        try:
            self._run(self._host, [task.piece for task in tasks])
        except TidemillError as e:
            for task in tasks:
                task.piece.error = e
        except BaseException as e:
            for task in tasks:
                task.piece.error = TidemillError(f"{type(e).__name__}: {e}")
            raise
        finally:
            with self._came:
                self._part(tasks, time.monotonic() - began)
                for task in tasks:
                    task.done = True
                    task.woken.set()
                if line.waiting:
                    line.waiting[0].woken.set()
                else:
                    line.led = False

    def _part(self, tasks: Sequence[_Task], took: float) -> None:
        """Those that should not be evaluated with others the next time."""
        held_up = [
            task.of
            for task in tasks
            if took > SLOW_SECONDS
            or task.piece.error is not None
            or (task.piece.result is not None and task.piece.result.num_rows > SHARED_ROWS)
        ]
        if held_up:
            now = time.monotonic()
            kept = {of: until for of, until in self._apart.items() if until > now}
            self._apart = kept | dict.fromkeys(held_up, now + APART_SECONDS)

    def _gather(self, line: _Line) -> list[_Task]:
        began = time.monotonic()
        with self._came:
            most = line.most if began - line.at <= COMPANY_SECONDS else 0
            here, gap = len(line.waiting), began + GATHER_GAP
            while here < most and time.monotonic() < min(gap, began + GATHER_SECONDS):
                # (Also woken by those of other texts.)
                self._came.wait(GATHER_GAP)
                if len(line.waiting) > here:
                    here, gap = len(line.waiting), time.monotonic() + GATHER_GAP
            taken, line.waiting = line.waiting[:MAX_PIECES], line.waiting[MAX_PIECES:]
            if len(taken) >= most:
                line.most, line.at = len(taken), time.monotonic()
            self.turns += 1
            self.pieces += len(taken)
            return taken
