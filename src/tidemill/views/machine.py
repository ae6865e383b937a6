"""The maintenance of one materialized view: its shard follows its query.

The shard is the only state. Its upper is the time up to which the view is done. Its rows just before the
upper are the result to which the next changes are added. Nothing before the upper is ever computed again. A
step follows the query as far as its inputs are complete and appends the changes, with one compare-and-append
for the whole span. What was appended is readable. If no input has changed since, time advances for readers
without an entry in the log, because after a crash the same empty result would be found again.

Inputs are held (`Shard.hold`) just before the view's upper, so that the next process can continue from there.
Not thread-safe except for `readable` and `hydrated`: the caller steps each view from one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidemill import failpoints
from tidemill.catalog.items import MaterializedView
from tidemill.catalog.retention import follow
from tidemill.errors import DataCorrupted, TidemillError
from tidemill.inputs.data_errors import is_of_data
from tidemill.inputs.view_failures import error_since
from tidemill.persist.holds import Hold
from tidemill.persist.part import Part
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.persist.snapshot import InvalidAsOf
from tidemill.query.multiset import add_up, check_counts, negated
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.follower import Follower
from tidemill.subscribe.leaping import CannotLeap, LeapingFollower
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN, shard_schema
from tidemill.types.identity import canonical_table, consolidate
from tidemill.types.kernels import pc
from tidemill.types.names import physical_names
from tidemill.views.error_follower import CarefulFollower, Span, answered, stamped
from tidemill.views.leaping_errors import LeapingErrors
from tidemill.views.program import ViewQuery

FP_BEFORE_APPEND = failpoints.register("view.before_append", "a view's changes are known, none is durable")
FP_PART = failpoints.register("view.part_written", "a view's changes are in a part that nobody names")
FP_APPENDED = failpoints.register("view.appended", "a view's changes are durable, nobody knows yet")

# Spans are gathered for so long, or until they have so many bytes, before they are appended: a view that
# catches up writes few parts, and one that keeps up is late by no more than this.
GATHER_SECONDS = 0.1
GATHER_BYTES = 32 << 20


class ViewHome(Protocol):
    """The protocol of a machine's environment."""

    def begin_job(self) -> str: ...

    def end_job(self, job: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ViewHealth:
    """What the query gives at the latest readable time: rows, or this error; and since when (0: always)."""

    error: str | None = None
    since: int = 0


class ViewMachine:
    def __init__(self, item: MaterializedView, shard: Shard, program: ViewQuery, home: ViewHome) -> None:
        """The shard is fenced by us, its upper where the last process left it. Takes holds on the inputs of a
        view that is under way: raises where one is not open yet."""
        self.item = item
        self.shard = shard
        self.program = program
        self._home = home
        self._names = physical_names(shard.desc)
        self._follower: Follower | CarefulFollower | LeapingErrors | None = None
        # One per input, just before upper; none before the view has its first rows.
        self._holds: list[Hold] = []
        # Complete before it: upper, and times after it that passed without a change. 0 before the first rows.
        self.readable = 0
        # Set before `readable`. Rows until the first step of this process has looked.
        self.health = ViewHealth()
        self._look()

    @property
    def hydrated(self) -> bool:
        """It has its first rows, and can be read."""
        return upper_of(self.shard) > self.item.created

    @property
    def holding(self) -> bool:
        """The times that a restart needs are held, or none exist yet."""
        return bool(self._holds) or not self.hydrated or not self.program.inputs

    def _look(self) -> None:
        """The shard's position, after another writer may have changed it: an earlier process, or an own
        append whose outcome was unknown."""
        self.shard.refresh()
        if self.hydrated:
            self.readable = max(self.readable, upper_of(self.shard))
            if not self._holds:
                self._holds = self._hold(upper_of(self.shard) - 1)

    def _hold(self, at: int) -> list[Hold]:
        holds: list[Hold] = []
        try:
            for each in self.program.inputs:
                holds.append(each.hold(at))
        except BaseException:
            _release(holds)
            raise
        return holds

    # -- steps

    def step(self) -> bool:
        """Continue as far as the inputs are complete, for a while; returns whether more can be done at once.
        After an error the next step starts from the contents of the shard."""
        try:
            if not self.program.ready:
                return False
            if not self.hydrated:
                return self._begin()
            if self._follower is None:
                self._look()
                self._follower = self._open()
            if isinstance(self._follower, CarefulFollower):
                return self._step_carefully(self._follower)
            if isinstance(self._follower, LeapingErrors):
                return self._leap(self._follower)
            return self._step(self._follower)
        except BaseException:
            self._let_go()
            raise

    def _begin(self) -> bool:
        """The first rows: at the time of creation, or the first at which all inputs can be read."""
        inputs = self.program.inputs
        if any(each.complete() == 0 for each in inputs):
            return False
        at = max([self.item.created, *(each.first() for each in inputs)])
        if any(each.complete() <= at for each in inputs) or (not inputs and self.program.now() <= at):
            return False
        try:
            holds = self._hold(at)
        except InvalidAsOf:
            return True  # an input's history went on meanwhile
        try:
            self._write_first(at)
        except BaseException:
            if self.hydrated:
                self._holds = holds  # it is durable in any case
            else:
                _release(holds)
            raise
        self._holds = holds
        self.readable = at + 1
        return True

    def _write_first(self, at: int) -> None:
        with self._job() as job:
            first, error = answered(lambda at: self.program.first(at, self.shard, job), at)
            # In one entry with the rows: it is never read before its first time.
            self.shard.downgrade_since(at)
            if first is None:
                first = shard_schema(self.shard.desc).empty_table().select([*self._names, DIFF_COLUMN])
            if isinstance(first, pa.Table):
                errors = () if error is None else ((error, at, 1),)
                first = self._write(self._table([Span(stamped(first, at), at + 1, errors)]), job)
            self._append(first, at + 1)
            self.health = ViewHealth(error, at)

    def _open(self) -> Follower | CarefulFollower:
        from_, error = self.readable, self._stored_error()
        if error != self.health.error:
            self.health = ViewHealth(error, self._stored_since(error))
        if error is not None:
            return CarefulFollower(self.program, from_, self._stored_rows(), error)
        try:
            return self.program.follow(from_, self._stored_rows)
        except TidemillError as e:
            if not is_of_data(e):
                raise
            return CarefulFollower(self.program, from_, self._stored_rows(), None)

    def _step(self, follower: Follower) -> bool:
        began, size = time.monotonic(), 0
        spans: list[Span] = []
        failed: TidemillError | None = None
        more = False
        while True:
            try:
                changes = follower.advance()
            except TidemillError as e:
                failed = e
                break
            if changes is None:
                break
            span, error_at = _span(changes)
            spans.append(span)
            size += span.updates.nbytes
            if error_at is not None:
                self._commit([s for s in spans if s.upper > self.readable])
                return self._be_careful()
            if changes.idle:
                break
            if size >= GATHER_BYTES or time.monotonic() - began >= GATHER_SECONDS:
                more = True
                break
        self._commit(spans)
        if failed is None:
            return more
        if not is_of_data(failed):
            raise failed
        if isinstance(follower, LeapingFollower) and follower.frontier == self.readable:
            rows, error = answered(self.program.answer, self.readable)
            if rows is None and error is not None:
                empty = (
                    shard_schema(self.shard.desc)
                    .empty_table()
                    .select([*self._names, TIME_COLUMN, DIFF_COLUMN])
                )
                self._follower = LeapingErrors(follower, self.program.answer, error, empty)
                return True
        return self._be_careful()

    def _leap(self, follower: LeapingErrors) -> bool:
        try:
            span = follower.advance()
        except CannotLeap:
            return self._be_careful(self.health.error)
        if span is None:
            return False
        self._commit([span])
        if follower.settled:
            self._follower = follower.follower
        return True

    def _be_careful(self, error: str | None = None) -> bool:
        """The query has an error at some time from here on, and perhaps this one before."""
        self._let_go()
        self._follower = CarefulFollower(self.program, self.readable, self._stored_rows(), error)
        return True

    def _step_carefully(self, follower: CarefulFollower) -> bool:
        span = follower.advance()
        if span is None:
            return False
        self._commit([span])
        if follower.settled:
            rows = follower.rows
            self._let_go()
            try:
                self._follower = self.program.follow(self.readable, lambda: rows)
            except TidemillError as e:
                if not is_of_data(e):
                    raise
                self._follower = CarefulFollower(self.program, self.readable, rows, None)
            return True
        return follower.behind

    def jump(self, at: int) -> bool:
        """Continue with the result at `at`, without those of the times before that were not computed: only
        for a view that nobody reads. False while an input is not complete there."""
        if any(each.complete() <= at for each in self.program.inputs) or self.program.now() <= at:
            return False
        old, rows = self._stored_error(), self._stored_rows()
        self._let_go()
        answer, new = answered(self.program.answer, at)
        updates = rows.slice(0, 0) if answer is None else add_up([answer, negated(rows)])
        changed = [(old, -1), (new, 1)] if old != new else []
        errors = tuple((text, at, diff) for text, diff in changed if text is not None)
        self._commit([Span(stamped(updates, at), at + 1, errors)])
        return True

    def _let_go(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            follower.close()

    # -- writing

    def _commit(self, spans: Sequence[Span]) -> None:
        if not spans:
            return
        upper, done = spans[-1].upper, upper_of(self.shard)
        changed = [span for span in spans if span.updates.num_rows or span.errors]
        table = self._table(changed) if changed else shard_schema(self.shard.desc).empty_table()
        # Also if it is empty: a computed result is not computed again, because another order of the same sum
        # may give another number.
        moved = any(upper_of(each.shard) > done for each in self.program.inputs)
        if upper > done and (table.num_rows or moved):
            with self._job() as job:
                self._append(self._write(table, job), upper)
            for hold in self._holds:
                hold.advance(max(hold.at, upper - 1))
        for error, at, diff in (each for span in spans for each in span.errors):
            self.health = ViewHealth(error if diff > 0 else None, at)
        self.readable = max(self.readable, upper)

    @contextmanager
    def _job(self) -> Generator[str]:
        """The name under which parts are written, while they are not swept."""
        job = self._home.begin_job()
        try:
            yield job
        finally:
            self._home.end_job(job)

    def _write(self, table: pa.Table, job: str) -> Sequence[Part]:
        failpoints.hit(FP_BEFORE_APPEND)
        return [self.shard.write_part(table, job=job)] if table.num_rows else []

    def _append(self, parts: Sequence[Part], upper: int) -> None:
        """Raises a commit's outcomes."""
        failpoints.hit(FP_PART)
        self.shard.compare_and_append(parts, upper_of(self.shard), upper)
        failpoints.hit(FP_APPENDED)

    def _table(self, spans: Sequence[Span]) -> pa.Table:
        """The spans as updates of the shard, consolidated."""
        desc, schema = self.shard.desc, shard_schema(self.shard.desc)
        tables: list[pa.Table] = []
        for span in spans:
            rows = span.updates.append_column(ERROR_COLUMN, pa.nulls(span.updates.num_rows, pa.string()))
            tables.append(pa.table([rows.column(f.name) for f in schema], schema=schema))
            if span.errors:
                texts, times, diffs = zip(*span.errors, strict=True)
                given = {TIME_COLUMN: times, DIFF_COLUMN: diffs, ERROR_COLUMN: texts}
                columns = [pa.array(given.get(f.name, [None] * len(texts)), f.type) for f in schema]
                tables.append(pa.table(columns, schema=schema))
        return consolidate(canonical_table(pa.concat_tables(tables), desc), desc)

    # -- the view's own contents

    def _stored(self) -> pa.Table:
        """Its rows and errors just before upper, each once. (They are the same at every later time that is
        readable.)"""
        at = upper_of(self.shard) - 1
        with self.shard.snapshot(at, readable=at + 1) as snapshot:
            return add_up([snapshot.read(self._names)])

    def _stored_rows(self) -> pa.Table:
        table = self._stored()
        table = table.filter(pc.is_null(table.column(ERROR_COLUMN)))
        check_counts(table, self._names)
        rows = table.select(self._names)
        return rows.append_column(DIFF_COLUMN, table.column(DIFF_COLUMN))

    def _stored_error(self) -> str | None:
        at = upper_of(self.shard) - 1
        with self.shard.snapshot(at, readable=at + 1) as snapshot:
            if not snapshot.has_errors:
                return None
        table = self._stored()
        texts = table.filter(pc.is_valid(table.column(ERROR_COLUMN))).column(ERROR_COLUMN).to_pylist()
        if len(texts) > 1:
            raise DataCorrupted(f'materialized view "{self.item.name}" holds {len(texts)} errors at once')
        return texts[0] if texts else None

    def _stored_since(self, error: str | None) -> int:
        at = upper_of(self.shard) - 1
        if error is None:
            return at
        with self.shard.snapshot(at, readable=at + 1) as snapshot:
            return error_since(snapshot, error)

    # -- history

    def retain(self, now: int, milliseconds: int) -> None:
        """Release history that is older than requested, except what the next process starts from."""
        if self.hydrated:
            follow(self.shard, min(now, upper_of(self.shard) - 1 + milliseconds), milliseconds)

    def close(self) -> None:
        """Idempotent."""
        self._let_go()
        holds, self._holds = self._holds, []
        _release(holds)


def _span(changes: CollectionChanges) -> tuple[Span, int | None]:
    """The changes, up to the error if there is one, and the time of that."""
    if changes.error is None:
        return Span(changes.updates, changes.upper), None
    at = changes.error[0]
    return Span(changes.updates, at), at


def _release(holds: Sequence[Hold]) -> None:
    for hold in holds:
        hold.release()
