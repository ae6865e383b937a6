"""What waits to be evaluated on changes, from whoever follows a query: together, one job at a time.

A commit wakes every query over what it wrote. Each asks here, from a thread of its own; the first runs a job
for all that wait at that moment, and those who come meanwhile are the next. No thread of its own, nothing to
stop.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.errors import TidemillError
from tidemill.query.changed import Piece, evaluate

if TYPE_CHECKING:
    from tidemill.query.spark import SparkHost

# Pieces of one job. A plan of more takes seconds, and everybody would wait for it.
MAX_PIECES = 256


@dataclass(eq=False, slots=True)
class _Task:
    pieces: Sequence[Piece]
    done: bool = False
    error: TidemillError | None = None


class Evaluations:
    """One per server. Used from any thread."""

    def __init__(self, host: SparkHost) -> None:
        self._host = host
        # Guards `_waiting`.
        self._lock = threading.Lock()
        self._waiting: list[_Task] = []
        # Held by whoever runs a job.
        self._turn = threading.Lock()
        # Jobs so far, and pieces in them; for tests and whoever measures.
        self.jobs = 0
        self.pieces = 0

    def evaluate(self, pieces: Sequence[Piece]) -> None:
        """Fill in the pieces; raises the first one's error. Blocks."""
        if not pieces:
            return
        task = _Task(pieces)
        with self._lock:
            self._waiting.append(task)
        while not task.done:
            with self._turn:
                if not task.done:
                    self._run()
        if task.error is not None:
            raise task.error
        for piece in pieces:
            if piece.error is not None:
                raise piece.error

    def _run(self) -> None:
        tasks = self._take()
        pieces = [piece for task in tasks for piece in task.pieces]
        self.jobs += 1
        self.pieces += len(pieces)
        try:
            evaluate(self._host, pieces)
        except TidemillError as e:
            for task in tasks:
                task.error = e
        except BaseException as e:
            for task in tasks:
                task.error = TidemillError(f"{type(e).__name__}: {e}")
            raise
        finally:
            for task in tasks:
                task.done = True

    def _take(self) -> list[_Task]:
        with self._lock:
            count, size = 0, 0
            for task in self._waiting:
                size += len(task.pieces)
                if count and size > MAX_PIECES:
                    break
                count += 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            return taken
