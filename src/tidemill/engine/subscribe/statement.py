"""SUBSCRIBE: from the statement to a stream of rows that continues.

Planning binds the relation or query and its output (`subscribe.spec`). Execution chooses the times
(`subscribe.times`), reads the snapshot, and passes the rest to `subscribe.stream`. `followed` determines the
collections that are followed, and how.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from tidemill.catalog.items import RELATIONS, Item, MaterializedView, kind_name
from tidemill.catalog.store import Catalog
from tidemill.engine.api import Outcome, Rows
from tidemill.engine.read.completeness import source_inputs, until_complete, until_readable
from tidemill.engine.read.reader import Reader
from tidemill.engine.read.select import plan_query, table_query
from tidemill.engine.read.time_expressions import with_times
from tidemill.engine.relations.resolver import find_system_relation
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Value
from tidemill.engine.session.system_parameters import SystemParameters
from tidemill.engine.session.transaction import Transaction
from tidemill.engine.subscribe.first_rows import Collection, first_rows, query_rows
from tidemill.engine.subscribe.times import Times
from tidemill.errors import InvalidTransactionState, Notice, TidemillError, Unsupported, WrongObjectType
from tidemill.inputs.collections import RelationDropped, relation_dropped
from tidemill.inputs.followers import stamped
from tidemill.inputs.opened import QueryInputs, SystemRows
from tidemill.inputs.queries import answer_at, follow_query, has_one_answer, is_linear
from tidemill.inputs.timelines import check_ours
from tidemill.inputs.view_failures import explain_failure
from tidemill.persist.snapshot import InvalidAsOf
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, SessionInfo, substitute
from tidemill.sql.bind.temporal import check_kept, without_read_time
from tidemill.subscribe.follower import Follower
from tidemill.subscribe.hub import FollowedKey
from tidemill.subscribe.resolve import spec_for
from tidemill.subscribe.shape import shaped
from tidemill.subscribe.spec import Spec
from tidemill.subscribe.stream import Bounds, RelationFailed, SubscriptionStream
from tidemill.subscribe.tail import Tail
from tidemill.types.model import Column, SqlType


@dataclass(slots=True)
class SubscribePlan:
    """`collection`: the subscribed collection, of which only the parts are needed; None for a query. `label`
    is the description in mz_subscriptions."""

    view: CatalogView
    reader: Reader
    statement: ast.Subscribe
    bound: BoundQuery
    inputs: QueryInputs
    spec: Spec
    collection: Collection | None
    label: str
    # The session that the query is evaluated in; None: that of the reader.
    session: SessionInfo | None = None

    @property
    def param_types(self) -> tuple[SqlType, ...]:
        return self.bound.param_types

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.spec.output_columns

    async def run(self, params: Sequence[Value]) -> Outcome:
        rows = await self.rows(params)
        return Rows(self.columns, rows, tag="SUBSCRIBE", shared=True, endless=rows.bounds.up_to is None)

    async def rows(self, params: Sequence[Value]) -> SubscriptionStream:
        """Everything that can fail before the first row fails here."""
        _only_read(self.reader.transactions.current)
        sources = source_inputs(self.view.state, self.bound)
        await until_readable(self.reader, sources)
        times = Times(self.reader, self.view, self.statement, self.inputs, sources, params)
        async with times.held() as bounds:
            if bounds.as_of == bounds.up_to:
                self.reader.execution.notice(Notice("the subscription is empty: AS OF equals UP TO"))
            if self.collection is None:
                await self.reader.wait_for_spark()
            await until_complete(self.reader, sources, bounds.as_of)
            return await self.reader.execution.interrupt.guard(self._start(bounds, params))

    async def resumed(self, as_of: int) -> SubscriptionStream:
        """From a time that the caller holds; it belongs to no transaction."""
        sources = source_inputs(self.view.state, self.bound)
        await until_readable(self.reader, sources)
        if self.collection is None:
            await self.reader.wait_for_spark()
        await until_complete(self.reader, sources, as_of)
        return await self.reader.execution.interrupt.guard(self._start(Bounds(as_of), ()))

    # -- the stream

    async def _start(self, bounds: Bounds, params: Sequence[Value]) -> SubscriptionStream:
        reader, execution, runtime = self.reader, self.reader.execution, self.reader.runtime
        catalog, from_ = self.view.state, bounds.as_of + 1
        store = reader.readiness.catalog
        gone = partial(_gone, store, {i.id: relation_dropped(catalog, i) for i in self.inputs.items})
        error = gone()
        if error is not None:
            # It was dropped while the statement waited for its first time.
            raise error
        shards = frozenset(await execution.blocking(self._shards))
        if self.collection is not None:
            item = self.collection
            followed = FollowedKey(("relation", item.id), shards, self.inputs.ids)
            try:
                own = await execution.open(partial(runtime.collections.follow, item, from_), Follower.close)
            except InvalidAsOf as e:
                runtime.collections.explain(e, item, bounds.as_of)
                raise
            first = first_rows(reader, item, bounds.as_of, self.spec) if self.statement.snapshot else None

            def latest() -> Follower:
                return runtime.collections.follow(item, own.frontier)
        else:
            bound = substitute(self.bound, [p.scalar for p in params], self.session or reader.values.info())

            def system() -> SystemRows:
                return reader.system_rows(store.state)

            answer = partial(answer_at, runtime, catalog, bound, system=system)
            following = partial(follow_query, runtime, catalog, bound, system=system)
            # The system relations depend on the session, so this is not shared; and where SQL allows several
            # answers, each subscription has its own.
            alone = not has_one_answer(bound)
            whose = object() if alone else reader.values.process_id if self.inputs.system else None
            # The same at all times, whatever mz_now() is.
            text = bound.with_session(replace(bound.session, mz_now=0)).sql()
            followed = FollowedKey(("query", text, whose), shards, self.inputs.ids)
            # Only of a linear query it is known how many rows it has at most.
            apart = is_linear(catalog, bound) and bool(self.inputs.items) and bool(bound.columns)
            first: AsyncIterator[pa.RecordBatch] | None = None
            if self.statement.snapshot and not apart:
                before = await execution.blocking(answer, bounds.as_of)
                own = await execution.open(partial(following, from_, lambda: before), Follower.close)
                first = _once(before, bounds.as_of, self.spec)
            else:
                own = await execution.open(partial(following, from_), Follower.close)
                if self.statement.snapshot:
                    # A follower of changes never reads the whole result, so the snapshot is read separately.
                    try:
                        first = await query_rows(reader, catalog, bound, bounds.as_of, self.spec)
                    except BaseException:
                        execution.release(own.close)
                        raise

            def latest() -> Follower:
                return own if alone else following(own.frontier)

        hub = self.reader.subscriptions.hub

        def tail() -> Tail:
            joined = hub.tail(followed, latest)
            error = gone()
            if error is not None:
                # The hub has notified the subscriptions that existed when it was dropped.
                joined.fail_soon(error)
            return joined

        return self.reader.subscriptions.open(
            reader.values.process_id,
            self.spec,
            bounds,
            first,
            own,
            tail,
            self.label,
            partial(_why, gone, self.inputs.items),
            self.view.parameters.number("max_subscribe_buffer_size"),
        )

    def _shards(self) -> list[str]:
        return [self.reader.runtime.collections.shard(item).id for item in self.inputs.items]


def plan_subscribe(
    view: CatalogView,
    reader: Reader,
    statement: ast.Subscribe,
    types: Sequence[SqlType | None],
) -> SubscribePlan:
    relation = statement.relation
    if isinstance(relation, ast.Name):
        _check_relation(view, relation)
    query = table_query(relation) if isinstance(relation, ast.Name) else relation
    told = [t for t in (statement.as_of, statement.up_to) if not isinstance(t, ast.TimeBound | None)]
    times = [t.time if isinstance(t, ast.AsOf) else t for t in told]
    types = with_times(view, types, times, query)
    bound = plan_query(view, reader, query, types).bound
    what = "SUBSCRIBE to a query"
    without_read_time(check_kept(bound, what).determinism).check_within_session(what)
    inputs = QueryInputs.of(view.state, bound)
    if inputs.system:
        # The current contents have the server's times.
        check_ours(inputs.items, "a subscription to system relations")
    collection: Collection | None = None
    if isinstance(relation, ast.Name) and len(inputs.items) == 1 and not inputs.system:
        found = view.resolver().item(relation)
        collection = found if isinstance(found, Collection) else None
    spec = spec_for(
        bound.columns,
        statement.output,
        relation=relation.item if isinstance(relation, ast.Name) else None,
        progress=statement.progress,
        underscore=view.variables.get("subscribe_key_violation") == "underscore",
    )
    _check_allowed(view.parameters, spec, statement)
    label = str(relation) if isinstance(relation, ast.Name) else "(query)"
    return SubscribePlan(view, reader, statement, bound, inputs, spec, collection, label)


def _check_relation(view: CatalogView, name: ast.Name) -> None:
    if find_system_relation(name.parts, view.variables.search_path()) is not None:
        return
    found = view.resolver().any_item(name)
    if not isinstance(found, RELATIONS):
        shown = ".".join(view.state.full_name(found))
        raise WrongObjectType(
            f"'{shown}' cannot be subscribed to because it is a {kind_name(found)}",
            position=name.offset + 1,
        )


def _check_allowed(parameters: SystemParameters, spec: Spec, statement: ast.Subscribe) -> None:
    switch = spec.output.switch
    if switch is not None and parameters.get(switch) == "off":
        raise Unsupported(
            "this output of SUBSCRIBE is switched off",
            hint=f"ALTER SYSTEM SET {switch} = on allows it.",
            position=statement.offset + 1,
        )


def _only_read(transaction: Transaction) -> None:
    """A subscription continues in time, so no other statement of its transaction can have the same time."""
    if transaction.explicit and (transaction.read_ts is not None or transaction.on_timelines):
        raise InvalidTransactionState(
            "SUBSCRIBE in transactions must be the only read statement", sqlstate="25000"
        )
    transaction.will_read()


def _gone(catalog: Catalog, told: Mapping[str, RelationDropped]) -> RelationDropped | None:
    """The error in `told` for an input that no longer exists. (It lives as long as the subscription, so it
    must not hold objects that only planning needs.)"""
    kept = catalog.state.items
    return next((error for item_id, error in told.items() if item_id not in kept), None)


def _why(
    gone: Callable[[], RelationDropped | None], items: Sequence[Item], error: TidemillError
) -> TidemillError:
    """After a drop, the first error depends on the part that notices it. The client gets the cause."""
    if isinstance(error, RelationFailed) and len(items) == 1 and isinstance(items[0], MaterializedView):
        explain_failure(items[0], error, error.at)
    return error if isinstance(error, RelationDropped) else gone() or error


async def _once(answer: pa.Table, as_of: int, spec: Spec) -> AsyncIterator[pa.RecordBatch]:
    yield shaped(stamped(answer, as_of), spec)
