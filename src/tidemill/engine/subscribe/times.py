"""The first and last time of a subscription.

The time of AS OF is chosen first and held in every input. So it stays readable during slow work (an
expression of UP TO on Spark, the start of Spark, a late source). UP TO is evaluated second, so it
counts from a moment that is not over yet. Called by `subscribe.statement` only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from tidemill.engine.read import reading
from tidemill.engine.read.completeness import latest_complete
from tidemill.engine.read.reader import Reader
from tidemill.engine.read.time_expressions import evaluate_time
from tidemill.engine.read.timelines import latest_on
from tidemill.engine.read.waiting import SourceRelation
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Value
from tidemill.errors import TidemillError
from tidemill.inputs.opened import QueryInputs
from tidemill.inputs.timelines import timeline_of
from tidemill.persist.holds import Hold
from tidemill.persist.shard import Shard
from tidemill.persist.snapshot import InvalidAsOf
from tidemill.sql import ast
from tidemill.sql.bind import SessionInfo
from tidemill.subscribe.stream import Bounds
from tidemill.time.shown import show_time

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Times:
    """The statement's times and inputs. `sources` are the inputs that may be late."""

    reader: Reader
    view: CatalogView
    statement: ast.Subscribe
    inputs: QueryInputs
    sources: Sequence[SourceRelation]
    params: Sequence[Value] = ()

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[Bounds]:
        """The bounds. Within the block the first time stays readable; it has passed, and the inputs can be
        read."""
        begin, holds = await self._begin()
        try:
            bounds = Bounds(begin, await self._end(begin))
            self._check_order(bounds)
            if self.statement.as_of is not None and not self._foreign:
                await reading.until_come(self.reader, begin, self.sources)
            yield bounds
        finally:
            if holds:
                self.reader.execution.release(lambda: _release(holds))

    @property
    def _foreign(self) -> bool:
        """The times are those of a stream with its own timeline."""
        return timeline_of(self.inputs.items) is not None

    async def _evaluated(self, time: ast.Expr) -> int:
        return await evaluate_time(self.reader, self.view, time, self.params)

    # -- AS OF

    async def _begin(self) -> tuple[int, list[Hold]]:
        as_of = self.statement.as_of
        if as_of is None:
            begin = await reading.choose_time(self.reader, None, self.sources)
            return await self._taken(lambda: self._hold(begin))
        first = as_of is ast.TimeBound.EARLIEST or as_of.at_least
        time = 0 if as_of is ast.TimeBound.EARLIEST else await self._evaluated(as_of.time)
        if self.inputs.system and not first:
            await self._check_present(time)
        hold = self._hold_first if first else self._hold
        begin, holds = await self._taken(lambda: hold(time))
        if self.reader.transactions.current.explicit:
            timeline = timeline_of(self.inputs.items)
            if timeline is None:
                self.reader.transactions.current.read_ts = begin
            else:
                self.reader.transactions.current.on_timelines[timeline] = begin
        return begin, holds

    async def _taken(self, take: Callable[[], tuple[int, list[Hold]]]) -> tuple[int, list[Hold]]:
        return await self.reader.execution.open(take, lambda taken: _release(taken[1]))

    def _hold(self, at: int) -> tuple[int, list[Hold]]:
        """Holds the time in the inputs. A time before since is not held: opening the input raises the error.
        Blocks."""
        shards = [self.reader.runtime.collections.shard(item) for item in self.inputs.items]
        return at, _holds(shards, at)

    def _hold_first(self, at: int) -> tuple[int, list[Hold]]:
        """Holds the first time from `at` on at which all inputs can be read. Blocks."""
        if self.inputs.system or not self.inputs.items:
            at = max(at, self.reader.runtime.oracle.read_ts())
        collections = self.reader.runtime.collections
        shards = [collections.shard(item) for item in self.inputs.items]
        while True:
            # Since may advance between the check and the hold.
            at = max([at, *(collections.first(item) for item in self.inputs.items)])
            holds = _holds(shards, at)
            if len(holds) == len(shards):
                return at, holds
            _release(holds)

    async def _check_present(self, time: int) -> None:
        """System relations show the current state; their earlier changes are not stored. A client that
        continues from an earlier time gets the error for a time before since."""
        now = await self.reader.now()
        if time < now:
            gone = InvalidAsOf("system", time, now, None)
            gone.detail = f"System relations have no history: they show what is now, {now}."
            gone.hint = "Leave AS OF out."
            raise gone

    # -- UP TO

    async def _end(self, begin: int) -> int | None:
        up_to = self.statement.up_to
        end: int | None = None
        if up_to is ast.TimeBound.LATEST:
            # At least the snapshot: it may be at a future time.
            end = max(await self._latest(), begin) + 1
        elif up_to is not None:
            info = await self._moment(begin)
            end = await evaluate_time(
                self.reader, self.view, up_to, self.params, info, example="now() + interval '2 s'"
            )
        if not self.inputs.items and not self.inputs.system:
            # Nothing will ever change.
            end = begin + 1 if end is None else min(end, begin + 1)
        return end

    def _check_order(self, bounds: Bounds) -> None:
        begin, end = bounds.as_of, bounds.up_to
        if end is not None and begin > end:
            raise TidemillError(
                "subscription lower bound (`AS OF`) is greater than its upper bound (`UP TO`): "
                f"{begin} > {end}",
                detail=self._both(begin, end),
                hint="Without AS OF it begins now. AS OF AT LEAST tells an earlier time."
                if self.statement.as_of is None
                else None,
                sqlstate="22000",
            )

    def _both(self, begin: int, end: int) -> str:
        timeline = timeline_of(self.inputs.items)
        return f"It would begin at {show_time(begin, timeline)} and end before {show_time(end, timeline)}."

    async def _moment(self, begin: int) -> SessionInfo:
        """`now()` and `mz_now()` of UP TO. If AS OF is not an exact time, they are no earlier than the
        beginning: the transaction may have started long before, or may have waited for a source."""
        info, as_of = self.view.info(), self.statement.as_of
        if self._foreign or (isinstance(as_of, ast.AsOf) and not as_of.at_least):
            return info
        now = begin if as_of is None else await self.reader.now()
        return replace(info, now=max(info.now, _EPOCH + timedelta(milliseconds=now)), mz_now=now)

    async def _latest(self) -> int:
        """The time that a SELECT would read at now."""
        if self._foreign:
            return latest_on(self.reader.readiness.ingestion, self.sources)
        now = await self.reader.now()
        if self.reader.transactions.current.isolation == "serializable":
            return latest_complete(self.reader.readiness, self.sources, now)
        return now


def _holds(shards: Sequence[Shard], at: int) -> list[Hold]:
    holds: list[Hold] = []
    for shard in shards:
        with suppress(InvalidAsOf):
            holds.append(shard.hold(at))
    return holds


def _release(holds: Sequence[Hold]) -> None:
    for hold in holds:
        hold.release()
