"""Queries that are maintained at the cost of what changed, in the form in which Spark evaluates their stages.

Called by the engine for SUBSCRIBE, materialized views and EXPLAIN. The stages are found by `plan.stages`;
here each becomes a Spark query over several versions of its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.errors import Unsupported
from tidemill.sql.bind.determinism import Dependence
from tidemill.sql.bind.substitute import complete
from tidemill.sql.functions.tree import sql_text
from tidemill.sql.lower.queries import lower_query
from tidemill.sql.plan.operators import Filter, Named, Operator, Project, Scan, walk_plan, windows
from tidemill.sql.plan.stages import Stage, stages_of
from tidemill.sql.plan.unkept import NotIncremental
from tidemill.sql.plan.versions import VERSION, versioned
from tidemill.types.arrow import arrow_schema
from tidemill.types.model import Column, RelationDesc
from tidemill.types.spark import quote_identifier, spark_type

if TYPE_CHECKING:
    from tidemill.sql.bind.model import BoundQuery


@dataclass(frozen=True, slots=True)
class KeyedStage:
    """`text`: the stage's query over the versions of its inputs (under their names), which gives the columns
    of `schema`, the last one `VERSION`. `whole`: the same over the query's relations, without versions."""

    stage: Stage
    text: str
    whole: str
    schema: pa.Schema

    @property
    def row_by_row(self) -> bool:
        """Filters and projections of one input."""
        op = self.stage.plan
        while isinstance(op, Project | Filter | Named) and not any(True for _ in windows(op)):
            op = op.input
        return isinstance(op, Scan) and not self.stage.sums

    @property
    def reads(self) -> frozenset[str]:
        """The query's relations that `whole` reads, by their placeholders."""
        return frozenset(o.placeholder for o in walk_plan(self.stage.query) if isinstance(o, Scan))

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(Column(name, t) for name, t in self.stage.columns)


def keyed_stages(bound: BoundQuery, *, sums: bool = True) -> tuple[KeyedStage, ...]:
    """The stages of a query over stored relations, each after those that it reads; see `stages_of` for
    `sums`. Raises NotIncremental."""
    uses = bound.determinism.on(Dependence.CHANCE, Dependence.READ_TIME)
    if uses is not None:
        raise NotIncremental(uses)
    if not bound.inputs:
        raise NotIncremental("it reads nothing")
    *inner, last = stages_of(bound.plan, sums=sums)
    if len(last.columns) != len(bound.columns):
        raise NotIncremental("its columns")
    told = zip(last.columns, bound.columns, strict=True)
    last = replace(last, columns=tuple((name, c.type) for (name, _), c in told))
    try:
        return tuple(_lowered(bound, stage) for stage in (*inner, last))
    except Unsupported as e:
        raise NotIncremental(e.primary) from None


def _lowered(bound: BoundQuery, stage: Stage) -> KeyedStage:
    def text(plan: Operator) -> str:
        return sql_text(complete(lower_query(plan), bound.params, bound.session))

    if stage.sums:
        return _lowered_sums(stage, text(versioned(stage.plan)), text(stage.query))
    schema = version_schema([Column(name, t) for name, t in stage.columns])
    return KeyedStage(stage, text(versioned(stage.plan)), text(stage.query), schema)


# What the query of a stage of sums calls the sums of the touched groups.
SUMS = "tm_sums"


def _lowered_sums(stage: Stage, changed: str, whole: str) -> KeyedStage:
    """`changed`: the sums over changed rows, by group, and, last, by twice the version, plus one where rows
    go. They are added to, or taken from, the sums of each version."""
    types = {name: spark_type(t) for name, t in stage.columns}
    keys, version = [quote_identifier(n) for n in stage.groups], quote_identifier(f"g{len(stage.groups)}")
    mark = f"CAST({version} DIV 2 AS INT) AS {VERSION}"
    some = {n: f"coalesce({quote_identifier(n)}, CAST(0 AS {types[n]}))" for n in stage.sums}
    signed = [f"if({version} % 2 = 1, -{v}, {v}) AS {quote_identifier(n)}" for n, v in some.items()]
    kept = [quote_identifier(n) for n in stage.sums]
    added = [f"CAST(sum({n}) AS {types[name]}) AS {n}" for n, name in zip(kept, stage.sums, strict=True)]
    both = (
        f"SELECT {', '.join([*keys, *signed, mark])} FROM ({changed}) AS q UNION ALL "
        f"SELECT {', '.join([*keys, *kept, VERSION])} FROM {SUMS}"
    )
    text = f"SELECT {', '.join([*keys, *added, VERSION])} FROM ({both}) AS s GROUP BY "
    text += ", ".join([*keys, VERSION])
    if keys:
        # (Without a key there is a row of no rows, too.)
        text += f" HAVING sum({kept[0]}) <> 0"
    first = [f"{v} AS {quote_identifier(n)}" for n, v in some.items()]
    schema = version_schema([Column(name, t) for name, t in stage.columns])
    return KeyedStage(stage, text, f"SELECT {', '.join([*keys, *first])} FROM ({whole}) AS q", schema)


def version_schema(columns: Sequence[Column]) -> pa.Schema:
    bare = arrow_schema(RelationDesc(tuple(columns)))
    return bare.append(pa.field(VERSION, pa.int32()))


def why_not_incremental(bound: BoundQuery) -> NotIncremental | None:
    try:
        keyed_stages(bound)
    except NotIncremental as e:
        return e
    return None
