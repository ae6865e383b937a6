"""VALUES, series and set-returning functions as Spark SQL queries."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from tidemill.sql.functions.tree import (
    Tree,
    add,
    bigint,
    call,
    cast,
    cast_to,
    field,
    int_divide,
    lambda_pair,
    string,
    sub,
    variable,
)
from tidemill.sql.lower.expressions import lower
from tidemill.sql.lower.literal import literal_tree
from tidemill.sql.lower.select import aliased, select_from, subquery_as
from tidemill.sql.plan.expressions import Const
from tidemill.sql.plan.operators import Rows, Series, TableFunction

# Rows of a series in one partition, while there are few partitions: with a kilobyte each, a quarter of a
# gigabyte on disk. Smaller partitions would not return the first row earlier, and would occupy all cores with
# work for one; tasks are not interrupted for others.
PARTITION_ROWS = 256 * 1024
MAX_PARTITIONS = 1_000


def lower_rows(rows: Rows) -> exp.Expr:
    """Spark's inline tables accept only foldable expressions (no subquery, nothing that may raise). Other
    rows are structs that a query creates."""
    trees = [
        [literal_tree(v, t) for v in column] if isinstance(column, pa.Array) else [lower(n) for n in column]
        for column, t in zip(rows.columns, rows.types, strict=True)
    ]
    cells = list(zip(*trees, strict=True))
    names = [f"c{i}" for i in range(len(rows.types))]
    if all(isinstance(c, pa.Array) or all(isinstance(n, Const) for n in c) for c in rows.columns):
        table: exp.Expr = exp.Values(
            expressions=[exp.Tuple(expressions=list(row)) for row in cells],
            alias=exp.TableAlias(
                this=exp.to_identifier("v", quoted=True),
                columns=[exp.to_identifier(name, quoted=True) for name in names],
            ),
        )
    elif len(cells) == 1:
        return select_from(None, cells[0])
    elif any(tree.find(exp.Subquery, exp.Exists) is not None for row in cells for tree in row):
        whole: exp.Expr = select_from(None, cells[0])
        for row in cells[1:]:
            whole = exp.Union(this=whole, expression=select_from(None, row), distinct=False)
        return whole
    else:
        structs = [call("struct", *(aliased(t, n) for t, n in zip(row, names, strict=True))) for row in cells]
        table = subquery_as(exp.Select(expressions=[call("inline", call("array", *structs))]), "v")
    return select_from(table, [exp.column(name, table="v", quoted=True) for name in names])


def partitions(rows: int) -> int:
    return max(1, min(MAX_PARTITIONS, -(-rows // PARTITION_ROWS)))


def lower_series(series: Series) -> exp.Select:
    """Spark's range: rows in their order, in partitions of bounded size. An array of all rows would have to
    fit into one task, as would the result of the query over them."""
    number = exp.column("id")
    columns: list[Tree] = [cast_to(number.copy(), series.type)]
    if series.numbered:
        place = int_divide(sub(number.copy(), bigint(series.start)), bigint(series.step))
        columns.append(cast(add(place, bigint(1)), "BIGINT"))
    rows = series.rows
    ends = (series.start, series.start + rows * series.step, series.step)
    given = [bigint(n) for n in ends] + [exp.Literal.number(partitions(rows))]
    return select_from(exp.Table(this=call("range", *given)), columns)


def lower_table_function(function: TableFunction) -> exp.Select:
    """A generator of the columns c0, c1, ..., followed by the row's number if requested."""
    values = function.build([lower(a) for a in function.args])
    several = len(function.types) > 1
    if not function.numbered:
        if several:
            return exp.Select(expressions=[call("inline", values)])
        return exp.Select(expressions=[aliased(call("explode", values), "c0")])
    item, number = variable("e"), add(cast(variable("i"), "BIGINT"), bigint(1))
    parts: list[Tree] = []
    for i in range(len(function.types)):
        parts += [string(f"c{i}"), field(item.copy(), f"c{i}") if several else item.copy()]
    row = call("named_struct", *parts, string(f"c{len(function.types)}"), number)
    return exp.Select(expressions=[call("inline", call("transform", values, lambda_pair("e", "i", row)))])
