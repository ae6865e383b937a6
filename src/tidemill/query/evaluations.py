"""The queue of followed queries that wait for evaluation on changes: one shared job at a time.

A commit wakes every query that reads what it wrote. Each query calls this module from its own thread. The
first caller leads: it collects the waiting requests, runs one job for all, and passes the lead to a caller
that arrived meanwhile. The queue has no thread of its own, so nothing has to be stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.errors import TidemillError
from tidemill.query.linear_changes import ChangePiece, evaluate

if TYPE_CHECKING:
    from tidemill.query.spark import SparkHost

# Pieces of one job. A plan with more takes seconds, and every caller would wait for it.
MAX_PIECES = 256
# A hundred threads that wake together take turns at the interpreter, and some may still be sending the last
# job's results to their readers. So a job waits for the other queries over the same relations: each must
# arrive within the first of these times after the one before, and the whole wait is at most the second. A job
# without them costs each of them as much as all together, and from then on they arrive at different times.
GATHER_GAP = 0.1
GATHER_SECONDS = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A query that is evaluated repeatedly, over changes of these relations."""

    relations: frozenset[str]


class _Task:
    def __init__(self, member: Member, pieces: Sequence[ChangePiece]) -> None:
        self.member = member
        self.pieces = pieces
        self.error: TidemillError | None = None
        # Done, or to lead.
        self.woken = threading.Event()
        self.done = False


class Evaluations:
    """One per server. Used from any thread."""

    def __init__(self, host: SparkHost) -> None:
        self._host = host
        # Guards the fields below; notified when a task arrives.
        self._came = threading.Condition()
        self._waiting: list[_Task] = []
        self._led = False
        self._members: set[Member] = set()
        # Jobs so far; for tests and measurements.
        self.jobs = 0

    def join(self, relations: Iterable[str]) -> Member:
        """A query over the relations will ask from time to time, until it leaves."""
        member = Member(frozenset(relations))
        with self._came:
            self._members.add(member)
        return member

    def come_back(self, member: Member) -> None:
        """After it has left for a while."""
        with self._came:
            self._members.add(member)

    def leave(self, member: Member) -> None:
        """Idempotent."""
        with self._came:
            self._members.discard(member)

    def evaluate(self, member: Member, pieces: Sequence[ChangePiece], *, apart: bool = False) -> None:
        """Fill in the pieces; raises the first one's error. Blocks. `apart`: in a job of its own, because
        they may well fail, which costs those of one job several."""
        if not pieces:
            return
        if apart:
            evaluate(self._host, pieces)
        else:
            self._together(member, pieces)
        for piece in pieces:
            if piece.error is not None:
                raise piece.error

    def _together(self, member: Member, pieces: Sequence[ChangePiece]) -> None:
        task = _Task(member, pieces)
        with self._came:
            self._waiting.append(task)
            lead, self._led = not self._led, True
            self._came.notify()
        if not lead:
            task.woken.wait()
        if not task.done:
            self._lead()
        if task.error is not None:
            raise task.error

    def _lead(self) -> None:
        """One job. The leader's own task is the oldest, and so in it."""
        tasks = self._gather()
        try:
            evaluate(self._host, [piece for task in tasks for piece in task.pieces])
        except TidemillError as e:
            for task in tasks:
                task.error = e
        except BaseException as e:
            for task in tasks:
                task.error = TidemillError(f"{type(e).__name__}: {e}")
            raise
        finally:
            self.jobs += 1
            for task in tasks:
                task.done = True
                task.woken.set()
            with self._came:
                if self._waiting:
                    self._waiting[0].woken.set()
                else:
                    self._led = False

    def _gather(self) -> list[_Task]:
        deadline = time.monotonic() + GATHER_SECONDS
        with self._came:
            while self._more_to_come() and time.monotonic() < deadline:
                if not self._came.wait(GATHER_GAP):
                    break
            count, size = 0, 0
            for task in self._waiting:
                size += len(task.pieces)
                if count and size > MAX_PIECES:
                    break
                count += 1
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            return taken

    def _more_to_come(self) -> bool:
        """Whether a query is missing that sees the same changes."""
        asked = frozenset[str]().union(*(task.member.relations for task in self._waiting))
        here = {task.member for task in self._waiting}
        return any(m not in here and not m.relations.isdisjoint(asked) for m in self._members)
