"""Groups whose aggregates are kept as sums: count, sum and avg of exact numbers over a linear query.

Called by the engine for SUBSCRIBE, materialized views and EXPLAIN. A change adds its values to the sums of
its group, so nobody looks at the group's rows, however many they are. The query is taken apart: `changes`
gives for each row its group and its values, and is linear; `text` makes the answer of the sums, by the same
expressions as SELECT's, in which the sums and counts of Spark are columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlglot import exp

from tidemill.sql.bind.determinism import Dependence
from tidemill.sql.bind.linear import linearity
from tidemill.sql.bind.model import BoundQuery, Lowered
from tidemill.sql.bind.substitute import complete
from tidemill.sql.functions.signature import Builder
from tidemill.sql.functions.tree import (
    Tree,
    and_,
    call,
    cast,
    column,
    if_,
    integer,
    is_null,
    not_,
    null,
    sql_text,
)
from tidemill.sql.lower.aggregate import is_spark_aggregate
from tidemill.sql.lower.queries import lower_query
from tidemill.sql.lower.select import aliased, subquery_as
from tidemill.sql.plan.expressions import Aggregate, BoundNode, Const, Op, Ref
from tidemill.sql.plan.keyed import can_be_key, read_subqueries
from tidemill.sql.plan.operators import (
    Filter,
    Group,
    Limit,
    Named,
    Operator,
    Output,
    Project,
    Scan,
    Sort,
    keeps_all,
    outputs,
    windows,
)
from tidemill.sql.plan.unkept import NotIncremental
from tidemill.sql.plan.versions import VERSION, versioned
from tidemill.types.arrow import arrow_schema
from tidemill.types.model import INT4, INT8, NUMERIC, Column, Kind, RelationDesc, SqlType, numeric

# What the query over the sums calls them.
STATE = "tm_sums"
_ALIAS = "sums"

_SMALL = (Kind.INT2, Kind.INT4)
_LARGE = (Kind.INT8, Kind.UINT2, Kind.UINT4, Kind.UINT8)
_FLOATS = (Kind.FLOAT4, Kind.FLOAT8)


@dataclass(frozen=True, slots=True)
class Sum:
    """A value of the changes, of which the state has the number of those that are not NULL in the column
    `count`, and their sum in `total`, as Spark's sum of `wide` gives it (None: only the count)."""

    value: str
    count: str
    total: str | None = None
    wide: str = ""
    type: SqlType = INT8


@dataclass(frozen=True, slots=True)
class AccumulatedQuery:
    """`changes` has the columns `keys`, and those of the `sums`. The state has the keys, the number of rows
    `n`, and the columns of the sums; `first` makes it of all rows, `text` the query's answer (columns of
    `schema`, the last one `VERSION`) of versions of it."""

    changes: BoundQuery
    keys: tuple[str, ...]
    sums: tuple[Sum, ...]
    state: pa.Schema
    first: str
    first_columns: tuple[Column, ...]
    text: str
    schema: pa.Schema
    # The keys as EXPLAIN shows them.
    shown: tuple[BoundNode, ...]


def accumulated(bound: BoundQuery) -> AccumulatedQuery:
    """Raises NotIncremental if the query is another one."""
    uses = bound.determinism.on(Dependence.CHANCE, Dependence.READ_TIME)
    if uses is not None:
        raise NotIncremental(uses)
    plan = bound.plan
    while isinstance(plan, Sort) or (isinstance(plan, Limit) and keeps_all(plan)):
        plan = plan.input
    group = _group_of(plan)
    keys = group.sets[0]
    if any(not can_be_key(k.type) or k.type.kind in _FLOATS for k in keys) or set(keys) != set(group.keys):
        raise NotIncremental("GROUP BY")
    names = {key: f"k{i}" for i, key in enumerate(group.keys)}
    values: list[tuple[BoundNode, Sum]] = []
    answers = [Output(f"g{i}", Ref(k.type, _ALIAS, names[k])) for i, k in enumerate(group.keys)]
    for i, aggregate in enumerate(group.aggregates):
        answers.append(Output(f"a{i}", _answer(aggregate, values)))
    nodes = [*names, *(node for node, _ in values)]
    told = [*names.values(), *(s.value for _, s in values)]
    if not nodes:
        # count(*) of all rows needs nothing of them, but Spark has no values without fields.
        nodes, told = [Const(INT8, pa.scalar(1, pa.int64()))], ["one"]
    columns = tuple(Column(name, node.type) for name, node in zip(told, nodes, strict=True))
    lowered = Lowered(Project(group.input, outputs(nodes)))
    changes = replace(bound, lowered=lowered, columns=columns)
    if linearity(changes).because is not None or not linearity(changes).branches:
        raise NotIncremental("GROUP BY of a query that is not linear")
    final = _over(plan, group, Project(Scan(STATE, _ALIAS), tuple(answers)))
    text = sql_text(complete(lower_query(versioned(final)), bound.params, bound.session))
    # The names of a query's columns may repeat.
    shown = tuple(Column(f"c{i}", c.type) for i, c in enumerate(bound.columns))
    schema = arrow_schema(RelationDesc(shown)).append(pa.field(VERSION, pa.int32()))
    sums = tuple(s for _, s in values)
    first, first_columns = _first(changes, tuple(names.values()), sums)
    state = arrow_schema(RelationDesc(first_columns))
    return AccumulatedQuery(
        changes, tuple(names.values()), sums, state, first, first_columns, text, schema, group.keys
    )


def _group_of(op: Operator) -> Group:
    """The only operator below projections and filters that combines rows."""
    if isinstance(op, Group):
        if len(op.sets) != 1:
            raise NotIncremental("GROUPING SETS")
        return op
    if isinstance(op, Named) and not op.lateral:
        return _group_of(op.input)
    if isinstance(op, Sort):
        return _group_of(op.input)
    plain = isinstance(op, Project | Filter) and not any(windows(op)) and not read_subqueries(op)
    if plain and isinstance(op, Project | Filter):
        return _group_of(op.input)
    raise NotIncremental(type(op).__name__)


def _over(op: Operator, group: Group, new: Operator) -> Operator:
    if op is group:
        return new
    if isinstance(op, Sort):
        return _over(op.input, group, new)
    assert isinstance(op, Named | Project | Filter)
    return replace(op, input=_over(op.input, group, new))


def _answer(aggregate: Aggregate, values: list[tuple[BoundNode, Sum]]) -> BoundNode:
    """The aggregate over the columns of the state; adds the values whose sums it needs."""
    name, args = aggregate.fn.name, aggregate.args
    if aggregate.distinct or aggregate.order or aggregate.direct is not None:
        raise NotIncremental(f"{name}() of distinct or ordered values")
    if name == "count" and not args and aggregate.where is None:
        return Ref(INT8, _ALIAS, "n")
    place = len(values)
    found = Sum(f"v{place}", f"n{place}")
    where = () if aggregate.where is None else (aggregate.where,)
    if name == "count":
        value: BoundNode = Op(INT4, "there", (*args, *where), _there(len(args)))
    else:
        wide = _wide(name, args[0].type.kind) if len(args) == 1 else None
        if wide is None:
            raise NotIncremental(f"{name}() of {', '.join(str(a.type) for a in args)}")
        ddl, total = wide
        found = replace(found, total=f"s{place}", wide=ddl, type=total)
        value = args[0] if not where else Op(args[0].type, "value where", (*args, *where), _where)
    values.append((value, found))
    refs = [Ref(INT8, _ALIAS, found.count)]
    if found.total is not None:
        refs.append(Ref(found.type, _ALIAS, found.total))
    types = [a.type for a in args]

    def build(sums: Sequence[Tree]) -> Tree:
        holder = exp.Paren(this=aggregate.fn.builder(types)([null() for _ in args]).copy())
        for part in list(holder.walk()):
            if is_spark_aggregate(part):
                summed = isinstance(part, exp.Anonymous) and str(part.this) == "sum"
                part.replace((sums[1] if summed else sums[0]).copy())
        return holder.this

    return Op(aggregate.type, f"accumulated {name}", tuple(refs), build)


def _there(args: int) -> Builder:
    def build(given: Sequence[Tree]) -> Tree:
        conditions = [not_(is_null(a)) for a in given[:args]] + list(given[args:])
        return if_(and_(*conditions), integer(1), null()) if conditions else integer(1)

    return build


def _where(given: Sequence[Tree]) -> Tree:
    return if_(given[1], given[0], null())


def _wide(name: str, kind: Kind) -> tuple[str, SqlType] | None:
    """The type that Spark sums, and that of its sum (`functions.aggregates`)."""
    if name not in ("sum", "avg"):
        return None
    if kind is Kind.NUMERIC:
        return "DECIMAL(38,18)", NUMERIC
    if name == "sum" and kind in _SMALL:
        return "BIGINT", INT8
    if kind in (*_SMALL, *_LARGE):
        return "DECIMAL(20,0)", numeric(30)
    return None


def _first(changes: BoundQuery, keys: Sequence[str], sums: Sequence[Sum]) -> tuple[str, tuple[Column, ...]]:
    rows = complete(lower_query(changes.plan), changes.params, changes.session)
    types = {c.name: c.type for c in changes.columns}
    of = {c.name: column(_ALIAS, f"c{i}") for i, c in enumerate(changes.columns)}
    listed: list[exp.Expr] = [aliased(of[name], name) for name in keys]
    columns = [Column(name, types[name]) for name in keys]
    listed.append(aliased(exp.Count(this=exp.Star()), "n"))
    columns.append(Column("n", INT8))
    for each in sums:
        value = of[each.value]
        listed.append(aliased(call("count", value), each.count))
        columns.append(Column(each.count, INT8))
        if each.total is not None:
            listed.append(aliased(call("sum", cast(value.copy(), each.wide)), each.total))
            columns.append(Column(each.total, each.type))
    select = exp.Select(expressions=listed, from_=exp.From(this=subquery_as(rows, _ALIAS)))
    if keys:
        select.set("group", exp.Group(expressions=[of[name].copy() for name in keys]))
    return sql_text(select), tuple(columns)
