"""Followers of queries that are local to keys, over the collections of the catalog.

Called by `queries.follow_query`. The indexes of a query's stages are arrangements: those of relations are
shared by all queries that look rows up by the same columns, those of inner stages belong to one follower.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from tidemill.arrangements import Arrangement, key_hash
from tidemill.catalog.items import (
    MaterializedView,
    Source,
    SourceProgress,
    SourceTable,
    Table,
    View,
    is_system,
)
from tidemill.catalog.sidecars import DEBEZIUM, MATERIALIZE
from tidemill.catalog.state import CatalogState
from tidemill.errors import LimitExceeded, TidemillError, Unavailable
from tidemill.inputs.collections import Collections
from tidemill.inputs.opened import open_inputs
from tidemill.persist.snapshot import InvalidAsOf
from tidemill.query.multiset import add_up
from tidemill.query.run import run
from tidemill.sql.bind import BoundQuery, linearity
from tidemill.sql.bind.accumulated import STATE, AccumulatedQuery, accumulated
from tidemill.sql.bind.incremental import KeyedStage, keyed_stages
from tidemill.sql.plan.explain import explain_key, explain_rules
from tidemill.sql.plan.unkept import NotIncremental
from tidemill.sql.plan.versions import VERSION
from tidemill.subscribe.accumulating import AccumulatingFollower
from tidemill.subscribe.follower import CollectionFollower
from tidemill.subscribe.key_local import KeyLocalFollower
from tidemill.subscribe.key_local_changes import KeyIndex, RunningStage
from tidemill.subscribe.linear import LinearFollower, told_names
from tidemill.subscribe.stage_query import running_stages
from tidemill.types.arrow import DIFF_COLUMN, shard_schema

if TYPE_CHECKING:
    from tidemill.inputs.queries import QueryRuntime

_log = logging.getLogger(__name__)

_Stored: TypeAlias = Table | Source | SourceTable | MaterializedView

# The answer of one stage, where all of it is needed at once.
MAX_STAGE_BYTES = 512 << 20

# Changes when the rows of the same text would be others.
_STAGE = "stage 1"
_SUMS = "sums 1"


def stages_to_follow(catalog: CatalogState, bound: BoundQuery) -> tuple[KeyedStage, ...]:
    """Raises NotIncremental."""
    if not only_stored(catalog, bound):
        raise NotIncremental("a relation that shows what is now")
    return keyed_stages(bound, sums=counts_hold(catalog, bound.inputs.values()))


# Envelopes in which the upstream says which rows go: it may say so of rows that are not there.
_RETRACTING = (DEBEZIUM, MATERIALIZE)


def counts_hold(catalog: CatalogState, relations: Iterable[str]) -> bool:
    """Whether no row of the relations is there a negative number of times. SELECT refuses to read such rows;
    sums would not notice them."""
    for relation_id in relations:
        item = catalog.relation(relation_id)
        if isinstance(item, Source | SourceTable) and item.envelope in _RETRACTING:
            return False
        if isinstance(item, MaterializedView | View) and not counts_hold(
            catalog, [r.id for r in item.references if r.id in catalog.items]
        ):
            return False
    return True


def only_stored(catalog: CatalogState, bound: BoundQuery) -> bool:
    """Whether all that the query reads has a history of changes."""
    ids = bound.inputs.values()
    return not any(is_system(i) or isinstance(catalog.relation(i), SourceProgress) for i in ids)


def describe_stages(catalog: CatalogState, bound: BoundQuery) -> list[str]:
    """A line for each stage, in the order in which they are evaluated."""
    stages = stages_to_follow(catalog, bound)
    names = {s.stage.name: f"stage {i}" for i, s in enumerate(stages, 1)}
    for placeholder, relation_id in bound.inputs.items():
        names[placeholder] = catalog.relation(relation_id).name
    said = ["for the keys that changes touch"]
    for number, keyed in enumerate(stages, 1):
        reads = [
            names[i.source]
            + (
                f" by {', '.join(i.key)}"
                if i.key
                else ", one row: all is evaluated when it changes"
                if i.single
                else ", its changes alone"
            )
            for i in keyed.stage.inputs
        ]
        rules = explain_rules(keyed.stage) or ["on changes alone"]
        said.append(f"  Stage {number}: {'; '.join(rules)}")
        if keyed.stage.recalled:
            by = [
                c.name
                for (n, _), c in zip(keyed.stage.columns, bound.columns, strict=True)
                if n in keyed.stage.recalled
            ]
            said.append(f"    keeps its answers, by {', '.join(by)}")
        said += [f"    reads {line}" for line in reads]
    return said


def follow_stages(
    runtime: QueryRuntime,
    catalog: CatalogState,
    bound: BoundQuery,
    stages: Sequence[KeyedStage],
    followers: Mapping[str, CollectionFollower],
    from_: int,
    before: Callable[[], pa.Table],
) -> KeyLocalFollower:
    """`followers`: of the query's relations from `from_` on, by placeholder. `before` returns its result just
    before. Raises NotIncremental if Spark cannot run a stage."""
    opened = _Stages(runtime, catalog, bound, stages, before)
    holds = [follower.hold() for follower in dict.fromkeys(followers.values())]
    try:
        opened.check()
        names = told_names(bound.columns)
        kept = opened.kept(from_)
        if kept is None:
            return KeyLocalFollower(opened.at, followers, opened.columns, from_, names, holds)
        begin, stages_then, earlier = kept
        for follower in followers.values():
            follower.close()
        begun = begin, stages_then
        return KeyLocalFollower(opened.at, earlier, opened.columns, from_, names, holds, begun)
    except BaseException:
        opened.close()
        for hold in holds:
            hold.release()
        raise


def sums_to_follow(catalog: CatalogState, bound: BoundQuery) -> AccumulatedQuery | None:
    if not only_stored(catalog, bound) or not counts_hold(catalog, bound.inputs.values()):
        return None
    try:
        return accumulated(bound)
    except NotIncremental:
        return None


def describe_sums(catalog: CatalogState, bound: BoundQuery, query: AccumulatedQuery) -> list[str]:
    relations = [catalog.relation(i).name for i in dict.fromkeys(bound.inputs.values())]
    groups = f"for each {explain_key(query.shown)}" if query.shown else "of all rows"
    reads = [f"    reads {name}, its changes alone" for name in relations]
    return ["by adding changes to sums", f"  Sums {groups}", *reads]


def follow_sums(
    runtime: QueryRuntime,
    catalog: CatalogState,
    bound: BoundQuery,
    query: AccumulatedQuery,
    followers: Mapping[str, CollectionFollower],
    from_: int,
) -> AccumulatingFollower:
    """`followers`: of the query's relations from `from_` on, by placeholder. Raises NotIncremental if Spark
    cannot run the query over the sums."""

    def evaluate(state: pa.Table) -> pa.Table:
        # Projections and filters.
        return runtime.stages.evaluate(
            query.text, {STATE: state}, query.schema, of=id(query), row_by_row=True
        )

    def first() -> Iterator[tuple[pa.Table, np.ndarray]]:
        opened = open_inputs(runtime.collections, catalog, query.changes, from_ - 1)
        try:
            with run(runtime.spark, query.first, opened.inputs, query.first_columns) as stream:
                for batch in stream:
                    rows = _once(pa.Table.from_batches([batch]).rename_columns(query.state.names))
                    yield rows, key_hash(rows, query.keys)
        finally:
            opened.close()

    try:
        more = [pa.field(VERSION, pa.int32()), pa.field(DIFF_COLUMN, pa.int64())]
        evaluate(pa.schema([*query.state, *more]).empty_table())
    except Unavailable:
        raise
    except TidemillError as e:
        raise NotIncremental(e.primary) from e
    names = {p: f.relation for p, f in followers.items()}
    items = {p: _stored(catalog, i) for p, i in bound.inputs.items()}
    shards = list(dict.fromkeys(runtime.collections.shard(item) for item in items.values()))
    name = f"{_SUMS} {sorted(names.items())}: {query.first}"
    earliest = min(from_, max(shard.since for shard in shards) + 1)
    state = runtime.arrangements.private(name, query.state, from_, first, shards, earliest)
    try:
        begin = state.since
        if begin < from_:
            # What an earlier process has left is brought to the present, and not told again.
            earlier = _followed(runtime.collections, items, begin)
            for follower in followers.values():
                follower.close()
            followers = earlier
        branches = linearity(query.changes).branches
        linear = LinearFollower(runtime.evaluations, query.changes.columns, branches, followers, begin)
        return AccumulatingFollower(query, linear, state, evaluate, told_names(bound.columns), from_)
    except BaseException:
        state.close()
        raise


def _followed(
    collections: Collections, items: Mapping[str, _Stored], from_: int
) -> dict[str, CollectionFollower]:
    """Followers by placeholder, of each relation one. Raises InvalidAsOf."""
    found: dict[str, CollectionFollower] = {}
    try:
        for item in items.values():
            if item.id not in found:
                found[item.id] = collections.follow(item, from_)
    except BaseException:
        for follower in found.values():
            follower.close()
        raise
    return {placeholder: found[item.id] for placeholder, item in items.items()}


class _Stages:
    """The stages of one query."""

    def __init__(
        self,
        runtime: QueryRuntime,
        catalog: CatalogState,
        bound: BoundQuery,
        stages: Sequence[KeyedStage],
        before: Callable[[], pa.Table],
    ) -> None:
        self._runtime = runtime
        self._before = before
        self._catalog = catalog
        self._bound = bound
        self._stages = stages
        self._by_name = {s.stage.name: s for s in stages}
        # The indexes of inner stages that are open already, by the stage and the key.
        self._ready: dict[tuple[str, tuple[str, ...]], Arrangement] = {}
        self._relations: dict[str, pa.Schema] = {}
        for placeholder, relation_id in bound.inputs.items():
            schema = shard_schema(runtime.collections.shard(self._item(relation_id)).desc)
            used = bound.used.get(placeholder, frozenset())
            self._relations[placeholder] = pa.schema([f for f in schema if f.name in used])
        self.columns = {name: schema.names for name, schema in self._relations.items()}

    def _item(self, relation_id: str) -> _Stored:
        return _stored(self._catalog, relation_id)

    def check(self) -> None:
        """Whether Spark can run the stages: it refuses some forms of queries."""
        stages = running_stages(
            self._runtime.stages, self._stages, self._relations, lambda *_: _NoIndex(), self._whole
        )
        for stage in stages:
            more = [pa.field(VERSION, pa.int32()), pa.field(DIFF_COLUMN, pa.int64())]
            read = [*stage.inputs, *(() if stage.sums is None else (stage.sums,))]
            try:
                stage.evaluate({i.name: pa.schema([*i.schema, *more]).empty_table() for i in read})
            except Unavailable:
                raise
            except TidemillError as e:
                _log.warning("a query is followed as a whole, because of its stage: %s", e)
                raise NotIncremental(e.primary) from e

    def at(self, from_: int) -> list[RunningStage]:
        """With indexes at `from_`."""
        open_index = partial(self._open_index, from_)
        return running_stages(self._runtime.stages, self._stages, self._relations, open_index, self._whole)

    def kept(self, from_: int) -> tuple[int, list[RunningStage], dict[str, CollectionFollower]] | None:
        """The stages, and followers of the relations, at the earlier time at which an earlier process has
        left the rows of all inner stages; None where there is no such time, or where answers are kept."""
        if any(s.stage.recalled for s in self._stages):
            return None
        inner = {(s.stage.name, s.stage.groups) for s in self._stages if s.stage.sums}
        inner |= {
            (i.source, i.key)
            for s in self._stages
            for i in s.stage.inputs
            if i.source in self._by_name and not i.loose and not s.stage.sums
        }
        items = {p: self._item(i) for p, i in self._bound.inputs.items()}
        earliest = max(self._runtime.collections.shard(item).since for item in items.values()) + 1
        if not inner or earliest >= from_:
            return None
        followers: dict[str, CollectionFollower] = {}
        try:
            for source, key in sorted(inner):
                keyed = self._by_name[source]
                schema = pa.schema(list(keyed.schema)[:-1])
                self._ready[source, key] = self._private(keyed, key, schema, from_, earliest)
            begins = {index.since for index in self._ready.values()}
            if len(begins) > 1:
                # Those at other times are built again.
                self.close()
            (begin, *others) = begins
            if others or begin == from_:
                return None
            followers = _followed(self._runtime.collections, items, begin)
            return begin, self.at(begin), followers
        except BaseException as error:
            for follower in followers.values():
                follower.close()
            self.close()
            if isinstance(error, InvalidAsOf):
                return None
            raise

    def close(self) -> None:
        """What is open and was not used."""
        for index in self._ready.values():
            index.close()
        self._ready.clear()

    def _private(
        self,
        keyed: KeyedStage,
        key: tuple[str, ...],
        schema: pa.Schema,
        from_: int,
        earliest: int | None = None,
    ) -> Arrangement:
        rows = partial(self._keyed_rows, keyed, key, from_ - 1)
        collections = self._runtime.collections
        shards = {p: collections.shard(self._item(self._bound.inputs[p])) for p in sorted(keyed.reads)}
        # What is computed in the same way from the same collections is the same.
        name = f"{_STAGE} {[(p, s.id) for p, s in shards.items()]} by {key}: {keyed.whole}"
        return self._runtime.arrangements.private(name, schema, from_, rows, list(shards.values()), earliest)

    def _open_index(self, from_: int, source: str, key: tuple[str, ...], schema: pa.Schema) -> KeyIndex:
        arrangements, collections = self._runtime.arrangements, self._runtime.collections
        keyed = self._by_name.get(source)
        if keyed is not None and keyed.stage.recalled:
            return self._told(keyed, key, schema, from_)
        if keyed is not None:
            ready = self._ready.pop((source, key), None)
            return ready or self._private(keyed, key, schema, from_)
        item = self._item(self._bound.inputs[source])
        shard = collections.shard(item)
        return arrangements.open(shard, lambda at: collections.snapshot(item, at), schema.names, key, from_)

    def _told(self, keyed: KeyedStage, key: tuple[str, ...], schema: pa.Schema, from_: int) -> Arrangement:
        """The answer that was told: computed again, it might be another one."""

        def rows() -> Iterator[tuple[pa.Table, np.ndarray]]:
            told = self._before().rename_columns([*schema.names, DIFF_COLUMN])
            told = told.cast(pa.schema([*schema, pa.field(DIFF_COLUMN, pa.int64())]))
            yield told, key_hash(told, key)

        name = f"{_STAGE} told by {key}: {keyed.whole}"
        return self._runtime.arrangements.private(name, schema, from_, rows)

    def _keyed_rows(
        self, keyed: KeyedStage, key: tuple[str, ...], at: int
    ) -> Iterator[tuple[pa.Table, np.ndarray]]:
        for batch in self._rows(keyed, at):
            rows = _once(pa.Table.from_batches([batch]))
            yield rows, key_hash(rows, key)

    def _rows(self, keyed: KeyedStage, at: int) -> Iterator[pa.RecordBatch]:
        """The stage's answer, from Spark; equal rows may repeat."""
        bound = self._bound
        inputs = {name: item for name, item in bound.inputs.items() if name in keyed.reads}
        opened = open_inputs(self._runtime.collections, self._catalog, replace(bound, inputs=inputs), at)
        try:
            with run(self._runtime.spark, keyed.whole, opened.inputs, keyed.columns) as stream:
                yield from stream
        finally:
            opened.close()

    def _whole(self, keyed: KeyedStage, at: int) -> pa.Table:
        batches: list[pa.RecordBatch] = []
        size = 0
        for batch in self._rows(keyed, at):
            size += batch.nbytes
            if size > MAX_STAGE_BYTES:
                raise LimitExceeded(
                    f"the rows of a stage of the query exceed {MAX_STAGE_BYTES >> 20} MB", sqlstate="54000"
                )
            batches.append(batch)
        schema = pa.schema(list(keyed.schema)[:-1])
        return add_up([_once(pa.Table.from_batches(batches, schema=schema))])


def _stored(catalog: CatalogState, relation_id: str) -> _Stored:
    item = catalog.relation(relation_id)
    assert isinstance(item, Table | Source | SourceTable | MaterializedView)
    return item


def _once(rows: pa.Table) -> pa.Table:
    return rows.append_column(DIFF_COLUMN, pa.array(np.ones(rows.num_rows, np.int64)))


class _NoIndex:
    """Of stages that are only checked."""

    def lookup(self, hashes: np.ndarray, before: int) -> pa.Table:
        raise NotImplementedError

    def count(self, hashes: np.ndarray) -> int:
        raise NotImplementedError

    def append(self, updates: pa.Table, hashes: np.ndarray, upper: int) -> None:
        raise NotImplementedError

    def compact(self, to: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass
