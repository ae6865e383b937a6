"""Following a bound query: its answer at a time, and its changes from there on.

For subscriptions and materialized views alike: nothing here knows a session. Parameters must have been
substituted. Everything blocks, and needs Spark.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.catalog.state import CatalogState
from tidemill.engine.followed import Inputs, PolledFollower, QueryFollower, counted, follow
from tidemill.engine.inputs import open_inputs
from tidemill.engine.system_relations import Situation
from tidemill.query.run import collect
from tidemill.sql.bind import BoundQuery
from tidemill.subscribe.follower import Follower

if TYPE_CHECKING:
    from tidemill.engine.engine import TidemillEngine

# Of a query's answer, which is kept to find what changes in it.
MAX_ANSWER_BYTES = 512 << 20
# How often relations that show what is now are looked at; milliseconds.
POLL_MS = 1000


def answer_at(
    engine: TidemillEngine,
    catalog: CatalogState,
    bound: BoundQuery,
    at: int,
    *,
    situation: Situation | None = None,
) -> pa.Table:
    """The query's columns and `mz_diff`, how often each row is there at `at` (a time at which all inputs are
    complete); no row twice. `situation` is for queries over system relations."""
    opened = open_inputs(engine, catalog, bound, at, situation=situation)
    try:
        timed = bound.with_session(replace(bound.session, mz_now=at))
        rows = collect(engine.spark, timed.sql(), opened.inputs, bound.columns, limit_bytes=MAX_ANSWER_BYTES)
    finally:
        opened.close()
    return counted(rows)


def follow_query(
    engine: TidemillEngine,
    catalog: CatalogState,
    bound: BoundQuery,
    from_: int,
    before: pa.Table | None = None,
    *,
    situation: Situation | None = None,
) -> Follower:
    """The changes of the query's answer at and after `from_`. `before` is its answer at `from_ - 1`, where
    the caller has it; otherwise it is worked out if the query needs it. Raises InvalidAsOf where the inputs'
    changes are forgotten."""
    inputs = Inputs.of(catalog, bound)

    def evaluate(at: int) -> pa.Table:
        return answer_at(engine, catalog, bound, at, situation=situation)

    followers = [] if inputs.system else [follow(engine, item, from_) for item in inputs.items]
    try:
        if before is None:
            before = evaluate(from_ - 1)
    except BaseException:
        for follower in followers:
            follower.close()
        raise
    now = engine.oracle.read_ts
    if inputs.system:
        return PolledFollower(now, evaluate, from_, before, POLL_MS)
    return QueryFollower(followers, evaluate, from_, before, lambda: now() + 1)
