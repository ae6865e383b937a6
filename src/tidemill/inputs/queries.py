"""Evaluation of a bound query at a time, and its changes from that time on.

Called for subscriptions and materialized views. Parameters must have been substituted. All calls block and
need Spark. A linear query over stored relations is evaluated on the changes of its inputs alone, and one that
is local to keys (`incremental`) on the rows of the keys that changed. For any other query, the result at each
time at which an input changed is computed, and the previous result is subtracted: always right, at the cost
of the whole query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from tidemill.arrangements import ArrangementsOf
from tidemill.catalog.state import CatalogState
from tidemill.inputs.collections import Collections
from tidemill.inputs.first_rows import describe_first, first_rows_of, follow_first
from tidemill.inputs.followers import PolledFollower, QueryFollower, counted
from tidemill.inputs.incremental import (
    describe_stages,
    describe_sums,
    follow_stages,
    follow_sums,
    only_stored,
    stages_to_follow,
    sums_to_follow,
)
from tidemill.inputs.opened import QueryInputs, SystemRows, open_inputs
from tidemill.persist.part import Part
from tidemill.persist.snapshot import InvalidAsOf
from tidemill.query.evaluations import Evaluations
from tidemill.query.job import Job
from tidemill.query.read import Input
from tidemill.query.run import collect
from tidemill.query.spark import SparkHost
from tidemill.query.stage_queue import StageQueue
from tidemill.query.write import Destination, write_rows
from tidemill.sql.bind import BoundQuery, linearity, why_not_linear
from tidemill.sql.plan.reproducible import check_reproducible
from tidemill.sql.plan.unkept import NotIncremental, NotReproducible
from tidemill.subscribe.follower import CollectionFollower, Follower
from tidemill.subscribe.linear import LinearFollower, told_names
from tidemill.subscribe.snapshot import LIMITS
from tidemill.time.oracle import Oracle

# The limit of a query's result that is kept to compute its changes.
MAX_ANSWER_BYTES = 512 << 20
# The poll interval of relations that show current state; milliseconds.
POLL_MS = 1000


@dataclass(frozen=True, slots=True)
class QueryRuntime:
    """What is needed to run bound queries: one per server."""

    collections: Collections
    oracle: Oracle
    spark: SparkHost
    evaluations: Evaluations
    stages: StageQueue
    arrangements: ArrangementsOf


def answer_at(
    runtime: QueryRuntime,
    catalog: CatalogState,
    bound: BoundQuery,
    at: int,
    *,
    system: Callable[[], SystemRows] | None = None,
) -> pa.Table:
    """The query's columns and `mz_diff`, the count of each row at `at` (a time at which all inputs are
    complete); no row twice. `system` is for queries over system relations, and is called each time: they show
    current state, including the catalog."""
    now = None if system is None else system()
    opened = open_inputs(runtime.collections, catalog, bound, at, system=now)
    try:
        timed = bound.with_session(replace(bound.session, mz_now=at))
        rows = collect(runtime.spark, timed.sql(), opened.inputs, bound.columns, limit_bytes=MAX_ANSWER_BYTES)
    finally:
        opened.close()
    return counted(rows.rename_columns(told_names(bound.columns)))


def write_at(
    runtime: QueryRuntime, catalog: CatalogState, bound: BoundQuery, at: int, to: Destination
) -> list[Part]:
    """The result of `answer_at`, of any size, as parts of a shard that are not yet committed: Spark's tasks
    write them, and nothing of it is held here. No system relations."""
    opened = open_inputs(runtime.collections, catalog, bound, at)
    try:
        timed = bound.with_session(replace(bound.session, mz_now=at))
        job = Job(runtime.spark, "first rows")
        return write_rows(runtime.spark, timed.sql(), opened.inputs, bound.columns, to, job=job)
    finally:
        opened.close()


def is_large(runtime: QueryRuntime, catalog: CatalogState, bound: BoundQuery, at: int) -> bool:
    """Whether a linear query's result may be too large for the driver, from the size of its inputs."""
    opened = open_inputs(runtime.collections, catalog, bound, at)
    try:
        return any(isinstance(i, Input) and not LIMITS.small(i.snapshot) for i in opened.inputs.values())
    finally:
        opened.close()


def follow_query(
    runtime: QueryRuntime,
    catalog: CatalogState,
    bound: BoundQuery,
    from_: int,
    before: Callable[[], pa.Table] | None = None,
    *,
    system: Callable[[], SystemRows] | None = None,
    due: Sequence[Follower] | None = None,
) -> Follower:
    """The changes of the query's result at and after `from_`. `before` returns its result at `from_ - 1`, if
    the caller has it, and is called only if the query needs it; without it the result is computed. `due`: the
    query is followed as a whole, at the times of these followers too, which are closed with it. Raises
    InvalidAsOf if the inputs' changes are no longer available."""
    inputs = QueryInputs.of(catalog, bound)

    def evaluate(at: int) -> pa.Table:
        return answer_at(runtime, catalog, bound, at, system=system)

    if due is None and bound.uses_mz_now and not inputs.system:
        from tidemill.inputs.temporal import follow_temporal

        return follow_temporal(runtime, catalog, bound, from_, before)

    def first() -> pa.Table:
        return evaluate(from_ - 1) if before is None else before()

    followers = [] if inputs.system else _open(runtime.collections, inputs, from_)
    try:
        if followers and due is None:
            by_id = dict(zip((item.id for item in inputs.items), followers, strict=True))
            named = {placeholder: by_id[relation] for placeholder, relation in bound.inputs.items()}
            found = _on_changes(runtime, catalog, bound, named, from_, first)
            if found is not None:
                return found
        held = first()
        holds = [follower.hold() for follower in followers]
    except BaseException:
        for follower in followers:
            follower.close()
        raise
    now = runtime.oracle.read_ts
    if inputs.system:
        return PolledFollower(now, evaluate, from_, held, POLL_MS)
    return QueryFollower([*followers, *(due or ())], evaluate, from_, held, lambda: now() + 1, holds)


def _on_changes(
    runtime: QueryRuntime,
    catalog: CatalogState,
    bound: BoundQuery,
    followers: Mapping[str, CollectionFollower],
    from_: int,
    before: Callable[[], pa.Table],
) -> Follower | None:
    """The follower of a query that is not followed as a whole."""
    if is_linear(catalog, bound):
        return LinearFollower(runtime.evaluations, bound.columns, linearity(bound).branches, followers, from_)
    sums = sums_to_follow(catalog, bound)
    try:
        if sums is not None:
            return follow_sums(runtime, catalog, bound, sums, followers, from_)
    except NotIncremental:
        pass
    try:
        some = first_rows_of(catalog, bound)
        if some is not None:
            answer, inner = (
                partial(answer_at, runtime, catalog),
                partial(answer_at, runtime, catalog, some.inner),
            )
            rows = partial(
                _on_changes, runtime, catalog, some.inner, followers, from_, partial(inner, from_ - 1)
            )
            return follow_first(some, bound, followers, rows, answer, before)
        stages = stages_to_follow(catalog, bound)
        return follow_stages(runtime, catalog, bound, stages, followers, from_, before)
    except NotIncremental:
        return None


def has_one_answer(bound: BoundQuery) -> bool:
    """Whether the result at a time comes out the same each time it is computed."""
    try:
        check_reproducible(bound.plan)
    except NotReproducible:
        return False
    except NotIncremental:
        pass
    return True


def is_linear(catalog: CatalogState, bound: BoundQuery) -> bool:
    return only_stored(catalog, bound) and why_not_linear(bound) is None


def followed_whole(catalog: CatalogState, bound: BoundQuery) -> NotIncremental | None:
    """Why the query is followed as a whole, if it is."""
    if is_linear(catalog, bound) or sums_to_follow(catalog, bound) is not None:
        return None
    try:
        some = first_rows_of(catalog, bound)
        if some is not None:
            return followed_whole(catalog, some.inner)
        stages_to_follow(catalog, bound)
    except NotIncremental as e:
        return e
    return None


def described(catalog: CatalogState, bound: BoundQuery) -> list[str]:
    """How the query is followed, for EXPLAIN."""
    if is_linear(catalog, bound):
        return ["on the changes of its inputs"]
    sums = sums_to_follow(catalog, bound)
    if sums is not None:
        return describe_sums(catalog, bound, sums)
    because = followed_whole(catalog, bound)
    if because is None:
        some = first_rows_of(catalog, bound)
        if some is not None:
            return describe_first(some, bound, described(catalog, some.inner))
        return describe_stages(catalog, bound)
    said = [f"as a whole, because of {because.because}"]
    return said if because.instead is None else [*said, f"  Instead: {because.instead}"]


def _open(collections: Collections, inputs: QueryInputs, from_: int) -> list[CollectionFollower]:
    followers: list[CollectionFollower] = []
    try:
        for item in inputs.items:
            try:
                followers.append(collections.follow(item, from_))
            except InvalidAsOf as e:
                collections.explain(e, item, from_ - 1)
                raise
    except BaseException:
        for follower in followers:
            follower.close()
        raise
    return followers
