"""FETCH ... FROM SUBSCRIPTION and ACKNOWLEDGE: reading a durable subscription. (HTTP reads without end.)

The changes come from the same streams as those of SUBSCRIBE (`statement.SubscribePlan`), from the
acknowledged position on; `reading` hands them out by FETCH. Promises that nothing is lost: the inputs are
held at the position before a stream is opened, and nobody can acknowledge what has not come yet. An
ACKNOWLEDGE in a transaction follows its commit: if that fails, the changes come again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial

import pyarrow as pa
from sqlglot import exp

from tidemill.catalog.items import Subscription
from tidemill.engine.api import Complete, Outcome, Rows
from tidemill.engine.read.reader import Reader
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.durations import timeout_ms
from tidemill.engine.session.plan import ActionOf, Plan, Value
from tidemill.engine.subscribe.first_rows import Collection
from tidemill.engine.subscribe.reading import Reading, Readings
from tidemill.engine.subscribe.statement import SubscribePlan
from tidemill.errors import InvalidTransactionState, InvalidValue, WrongObjectType
from tidemill.inputs.opened import QueryInputs
from tidemill.sql import ast
from tidemill.subscribe.shape import progress_row
from tidemill.subscribe.stream import SubscriptionStream
from tidemill.subscriptions.positions import Position
from tidemill.subscriptions.query import (
    SUBSCRIPTION_SESSION,
    Place,
    bind_subscription,
    subscription_spec,
)
from tidemill.subscriptions.service import DurableSubscriptions, SubscriptionLost
from tidemill.time.shown import show_time
from tidemill.types.model import INT8, Column, RelationDesc, SqlType

# How long FETCH waits for a change, unless it says otherwise. Its reader then learns, and can acknowledge,
# that nothing has changed; what is kept for it does not grow while its query filters all changes out.
TIMEOUT_MS = 10_000


@dataclass(slots=True)
class FetchPlan:
    statement: ast.FetchSubscription | ast.ReadSubscription
    place: Place
    service: DurableSubscriptions
    readings: Readings
    # Its `statement` is replaced for each stream.
    changes: SubscribePlan
    timeout_ms: int
    param_types: tuple[SqlType, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.changes.spec.output_columns

    async def run(self, params: Sequence[Value]) -> Outcome:
        reading = await self._reading(_position(self.statement.position, params))
        if isinstance(self.statement, ast.ReadSubscription):
            return Rows(self.columns, self._endless(reading), tag="SUBSCRIBE", endless=True)
        return Rows(self.columns, self._fetched(reading, self.statement.count), tag="FETCH")

    def _fetched(self, reading: Reading, count: int | None) -> AsyncGenerator[pa.RecordBatch]:
        until = self.changes.reader.runtime.oracle.now()
        return reading.fetch(count, self.timeout_ms / 1000, until, self._open)

    async def _endless(self, reading: Reading) -> AsyncGenerator[pa.RecordBatch]:
        yield progress_row(reading.frontier, self.changes.spec)
        while True:
            async for batch in self._fetched(reading, 1):
                yield batch

    async def _reading(self, position: int | None) -> Reading:
        """The session's place, which is moved to `position`."""
        execution, reading = self.changes.reader.execution, self.readings.find(self.place)
        if reading is not None and reading.error is not None:
            self.readings.remove(self.place)
            raise reading.error
        if position is not None and (reading is None or reading.frontier != position):
            known = await execution.blocking(self.service.keep, self.place)
            if position < known.frontier:
                raise _gone(self.place, position, known)
            if position > known.frontier:
                await execution.blocking(check_reached, self.service, self.place, position)
        if reading is None:
            begin = self.service.position(self.place).frontier if position is None else position
            reading = Reading(self.place, begin, partial(self.service.detach, self.place))
            self.service.attach(self.place, reading)
            self.readings.add(reading)
        elif position is not None:
            reading.seek(position)
        return reading

    async def _open(self, frontier: int) -> SubscriptionStream:
        known = await self.changes.reader.execution.blocking(self.service.keep, self.place)
        begin = max(frontier, known.frontier)
        snapshot = known.snapshot and begin == known.frontier
        changes = replace(self.changes, statement=replace(self.changes.statement, snapshot=snapshot))
        return await changes.resumed(begin if snapshot else begin - 1)


def plan_fetch_subscription(
    view: CatalogView,
    reader: Reader,
    service: DurableSubscriptions,
    readings: Readings,
    statement: ast.FetchSubscription | ast.ReadSubscription,
    types: Sequence[SqlType | None],
) -> Plan:
    item = find_subscription(view, statement.name)
    timeout = timeout_ms(statement.timeout) if isinstance(statement, ast.FetchSubscription) else None
    bound = bind_subscription(view.state, item, view.privileges().of_owner(item))
    inputs = QueryInputs.of(view.state, bound)
    collection = None if item.relation is None else view.state.relation(item.relation)
    if not isinstance(collection, Collection) or _named(collection.desc) != _named(item.desc):
        # A query, or a relation with columns that were added later.
        collection = None
    changes = SubscribePlan(
        view,
        reader,
        ast.Subscribe(statement.name),
        bound,
        inputs,
        subscription_spec(item),
        collection,
        str(statement.name),
        SUBSCRIPTION_SESSION,
    )
    wait = TIMEOUT_MS if timeout is None else timeout
    param_types = _param_types(statement.position, types)
    return FetchPlan(
        statement, find_place(item, statement.share), service, readings, changes, wait, param_types
    )


def plan_acknowledge(
    view: CatalogView,
    reader: Reader,
    service: DurableSubscriptions,
    readings: Readings,
    statement: ast.Acknowledge,
    types: Sequence[SqlType | None],
) -> Plan:
    item = find_subscription(view, statement.name)
    place = find_place(item, statement.share)

    async def act(params: Sequence[Value]) -> Outcome:
        position, reading = _position(statement.position, params), readings.find(place)
        if position is None:
            if reading is None:
                raise InvalidTransactionState(
                    f"nothing was fetched from {place} in this session",
                    hint="ACKNOWLEDGE SUBSCRIPTION ... TO names a position.",
                    sqlstate="55000",
                )
            position = reading.frontier
        elif (reading is None or position > reading.frontier) and not service.surely_reached(item, position):
            await reader.execution.blocking(check_reached, service, place, position)
        acknowledge = partial(_acknowledge, service, place, position, reading)
        if reader.transactions.in_block:
            reader.transactions.current.after.append(acknowledge)
        else:
            await acknowledge()
        return Complete("ACKNOWLEDGE")

    return ActionOf(act, _param_types(statement.position, types))


async def _acknowledge(
    service: DurableSubscriptions, place: Place, position: int, reading: Reading | None
) -> None:
    """Returns when it is durable."""
    known = await asyncio.wrap_future(service.acknowledge(place, position))
    if known is not None and known.lost is not None:
        raise SubscriptionLost(place.item, known.lost)
    if reading is not None and reading.frontier < position:
        reading.seek(position)


def find_subscription(view: CatalogView, name: ast.Name) -> Subscription:
    """A subscription that the session may read."""
    item = view.resolver().any_item(name, "subscription")
    if not isinstance(item, Subscription):
        raise WrongObjectType(f'"{item.name}" is not a subscription', position=name.offset + 1)
    view.privileges().check(item, "USAGE")
    return item


def find_place(item: Subscription, share: int | None) -> Place:
    if item.shares > 1 and share is None:
        raise InvalidValue(
            f'subscription "{item.name}" has {item.shares} shares',
            hint=f"Name one of 1 to {item.shares}: FETCH ... WITH (SHARE = 1), ACKNOWLEDGE ... SHARE 1.",
        )
    if share is not None and not 1 <= share <= item.shares:
        raise InvalidValue(
            f'subscription "{item.name}" has no share {share}', detail=f"It has {item.shares}."
        )
    return Place(item, share or 1)


def check_reached(service: DurableSubscriptions, place: Place, position: int) -> None:
    """Blocks."""
    reached = service.reached(place.item)
    if position > reached:
        raise InvalidValue(
            f"{place} has not reached position {position}",
            detail=f"Its changes are known before {show_time(reached)}.",
            hint="A position is the mz_timestamp of a row whose mz_progressed is true.",
            sqlstate="22023",
        )


def _gone(place: Place, position: int, known: Position) -> InvalidValue:
    return InvalidValue(
        f"position {position} of {place} was passed",
        detail=f"Everything before {show_time(known.frontier)} was acknowledged, and is not kept any more.",
        hint="Leave POSITION out to continue there; "
        f"ALTER SUBSCRIPTION {place.item.name} RESET begins anew, with the contents of now.",
        sqlstate="22023",
    )


def _named(desc: RelationDesc | None) -> list[tuple[str, SqlType]]:
    """As a query: its columns are nullable, those of a table may not be."""
    return [] if desc is None else [(c.name, c.type) for c in desc.columns]


def _param_types(position: ast.Expr | None, types: Sequence[SqlType | None]) -> tuple[SqlType, ...]:
    number = _parameter(position)
    if number is None:
        return tuple(t or INT8 for t in types)
    declared = [*types, *[None] * (number - len(types))]
    return tuple(t or INT8 for t in declared)


def _parameter(position: ast.Expr | None) -> int | None:
    if position is None or not isinstance(position.tree, exp.Parameter):
        return None
    return int(position.tree.name)


def _position(position: ast.Expr | None, params: Sequence[Value]) -> int | None:
    if position is None:
        return None
    number = _parameter(position)
    value = position.tree.name if number is None else params[number - 1].scalar.as_py()
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)  # drivers that do not know mz_timestamp take it for a numeric
    if not str(value).isdigit():
        raise InvalidValue(f"{value} is no position", hint="Give a number of milliseconds.", sqlstate="22023")
    return int(value)
