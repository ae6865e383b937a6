"""One query's work on Spark: cancellation and errors.

`run` and `read` do everything that touches the JVM inside `Job.running()`. It marks the thread's jobs with
the query's group and scheduling pool, and converts what Spark raises into a `TidemillError`. Any thread may
call `cancel` at any moment, before, during or after the work. It stops the running jobs of the group and
refuses later ones; the query raises `QueryCanceled`.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidemill.errors import DataCorrupted, QueryCanceled, TidemillError, Unavailable
from tidemill.query.multiset import NegativeMultiplicity

if TYPE_CHECKING:
    from tidemill.query.spark import SparkHost

# Spark never forgets a pool, so queries share a fixed set: with more queries than this, two share one pool.
POOLS = 32

# `multiset.NEGATIVE_TEXT` as Spark's raise_error reports it.
_NEGATIVE = re.compile(
    r"saw retractions \((\d+)\) for row that does not exist: (.*?)(?: SQLSTATE: \w+)?$", re.MULTILINE
)
_ids = itertools.count(1)
# The JVM generation that this thread's session settings were passed to, see `_propagate`.
_thread = threading.local()


class Job:
    """The Spark jobs of one query. Made by `run`, or by a caller that must be able to cancel before `run`
    returns."""

    def __init__(
        self,
        host: SparkHost,
        description: str = "query",
        parent: Job | None = None,
        pool: str | None = None,
    ) -> None:
        """`pool` is a scheduling pool by name; without it one of those that queries share."""
        self._host = host
        self._description = description
        number = next(_ids)
        # Unique over restarts of the JVM and over servers that share a cluster.
        self.group = f"tidemill-{os.getpid()}-{number}"
        self._pool = pool or f"q{number % POOLS}"
        self._cancelled = threading.Event()
        self._parent = parent
        self._lock = threading.Lock()
        self._children: list[Job] = []  # cancelled with this one; they end with the query, so few gather

    def child(self) -> Job:
        """A step of this query that can be stopped alone; it is cancelled with the query."""
        job = Job(self._host, self._description, self)
        with self._lock:
            self._children.append(job)
            cancelled = self._cancelled.is_set()
        if cancelled:
            job.cancel()
        return job

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Stop it; returns at once (the call to the JVM is made on another thread). Idempotent."""
        with self._lock:
            if self._cancelled.is_set():
                return
            self._cancelled.set()
            children = list(self._children)
        for job in children:
            job.cancel()
        if self._parent is None:
            self._host.metrics.add(cancelled=1)
        self.stop_jobs()

    def stop_jobs(self) -> None:
        """Stop the query's Spark jobs without marking it cancelled: its reader is gone."""
        self._host.background(self._cancel_in_jvm)

    def _cancel_in_jvm(self) -> None:
        try:
            session = self._host.session
            session.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(self.group)
        except Exception:
            # No JVM any more, so no job either: the query's own thread finds out and reports it.
            return

    def check(self) -> None:
        if self._cancelled.is_set():
            raise QueryCanceled("canceling statement due to user request")

    @contextmanager
    def running(self) -> Generator[Any]:
        """The session, with this thread's jobs marked as the query's; errors leave as `TidemillError`. The
        marks stay on the thread: clearing them is a call to the JVM, and every job is started in here."""
        with self.guarded():
            session = self._host.session
            _propagate(self._host, session)
            context = session.sparkContext
            # Interrupting is safe: these jobs only read, and from local files or sockets of ours.
            context._jsc.setJobGroup(self.group, self._description, True)
            context._jsc.setLocalProperty("spark.scheduler.pool", self._pool)
            yield session

    @contextmanager
    def guarded(self) -> Generator[None]:
        """Like `running`, for code that starts no job."""
        self.check()
        try:
            yield
        except TidemillError:
            raise
        except Exception as e:
            self.check()
            raise self.describe(e) from e

    def describe(self, e: Exception) -> TidemillError:
        """The error that a client receives for an exception of Spark, py4j or the sockets between."""
        from py4j.protocol import Py4JError, Py4JJavaError

        self._host.metrics.add(failed=1)
        failure = self._host.failure
        if failure is not None:
            return failure
        # An error of py4j that carries no exception of Java means that the call itself failed.
        broken = isinstance(e, Py4JError) and not isinstance(e, Py4JJavaError)
        if broken or isinstance(e, (ConnectionError, EOFError)):
            # The connection broke before the death of the process was noticed.
            return self._host.settle_death() or Unavailable(
                "the connection to Spark broke", detail=str(e), hint="run the statement again"
            )
        negative = _NEGATIVE.search(str(e))
        if negative:
            return NegativeMultiplicity(int(negative.group(1)), negative.group(2))
        damaged = _damaged_part(str(e))
        if damaged is not None:
            return damaged
        told = _mapper()(e)
        if told.sqlstate == "53200":
            self._host.ran_out_of_memory()
        return told


def _propagate(host: SparkHost, session: Any) -> None:
    """Pass the session's SQL settings to this thread's jobs. Spark does so for `collect`, but not for the
    plans that `run` executes partition by partition: tasks would see Spark's defaults instead."""
    if getattr(_thread, "session", None) is session:
        return
    context = session.sparkContext
    for key, value in host.sql_settings.items():
        context._jsc.setLocalProperty(key, value)
    _thread.session = session


# How Spark names a part that vanished or broke while it was read, and how our own reader in a task does.
_DAMAGED = tuple(
    re.compile(pattern)
    for pattern in (
        r"DataCorrupted: part \"([^\"]+)\"",
        r"FAILED_READ_FILE[^\n]*?(file:[^\s'\"]+?\.parquet)",
        r"(file:[^\s'\"]+?\.parquet) (?:is not a Parquet file|does not exist)",
        r"PATH_NOT_FOUND[^\n]*?(file:[^\s'\"]+?\.parquet)",
        r"(?:FileNotFound|ParquetDecoding)Exception[^\n]*?(/[^\s'\"]+?\.parquet)",
    )
)


def _damaged_part(text: str) -> DataCorrupted | None:
    for pattern in _DAMAGED:
        found = pattern.search(text)
        if found:
            path = re.sub(r"^file:/+", "/", found.group(1))
            return DataCorrupted(
                f'part "{path}" is missing or corrupt',
                hint="The data directory is damaged: restore the file.",
            )
    return None


def _mapper() -> Callable[[Exception], TidemillError]:
    from tidemill.sql.bind import map_spark_error

    return map_spark_error
