"""VALUES lists, column by column.

A column of plain literals becomes one Arrow array without a node per cell, so INSERT ... VALUES with ten
thousand rows takes milliseconds. Any other column is bound cell by cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import SyntaxError_, TidemillError
from tidemill.sql.bind.coerce import assign, unify
from tidemill.sql.bind.constant import Constants
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.bind.expr import Binder, Env
from tidemill.sql.bind.query import BoundParts
from tidemill.sql.bind.scope import Scope
from tidemill.sql.functions.lattice import FLOATS, SIGNED
from tidemill.sql.plan.expressions import BoundNode, is_constant
from tidemill.sql.plan.operators import Rows
from tidemill.types.arrow import arrow_type
from tidemill.types.model import INT4, INT8, TEXT, Column, Kind, SqlType
from tidemill.types.wire.few import FEW, few_from_text
from tidemill.types.wire.text import decode_text

Cells = Sequence[exp.Expr]
_Values = pa.Array | tuple[BoundNode, ...]


def bind_values(env: Env, query: exp.Values, parent: Scope | None) -> BoundParts:
    """VALUES as a query: columns column1, column2, ..., each of the common type of its cells."""
    rows = [_row(r) for r in query.expressions]
    width = len(rows[0])
    for row in rows:
        if len(row) != width:
            raise SyntaxError_("VALUES lists must all be the same length", position=position_of(row[0]))
    binder = Binder(env, Scope(env.ctx, parent=parent), "VALUES")
    values: list[_Values] = []
    types: list[SqlType] = []
    for cells in zip(*rows, strict=True):
        column, t = _column(binder, cells)
        values.append(column)
        types.append(t)
    columns = tuple(Column(f"column{i + 1}", t) for i, t in enumerate(types))
    return bound_rows(values, columns, len(rows), binder.scope)


def bound_rows(values: Sequence[_Values], columns: tuple[Column, ...], rows: int, scope: Scope) -> BoundParts:
    constant = all(isinstance(v, pa.Array) or all(is_constant(n) for n in v) for v in values)
    types = tuple(c.type for c in columns)
    constants = Constants(tuple(values), types, rows) if constant else None
    plan = Rows(tuple(values), types, rows)
    return BoundParts(plan, columns, tuple(scope.outer), constants=constants)


def _row(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Tuple):
        return list(node.expressions)
    if isinstance(node, exp.Paren):
        return [node.this]
    raise unsupported("this row of VALUES", position_of(node))


def _column(binder: Binder, cells: Cells) -> tuple[_Values, SqlType]:
    kinds = set(map(type, cells))
    if kinds <= {exp.Literal, exp.Null}:
        texts, strings = _texts(cells)
        if strings == "all":
            return pa.array(texts, pa.string()), TEXT
        if strings == "none" and all(t is None or t.isdigit() for t in texts):
            numbers = [None if t is None else int(t) for t in texts]
            largest = max((n for n in numbers if n is not None), default=None)
            if largest is not None and largest < 1 << 63:
                t = INT4 if largest < 1 << 31 else INT8
                return pa.array(numbers, arrow_type(t)), t
    nodes, t = unify(binder.ctx, binder.bind_all(cells), "VALUES", [position_of(c) for c in cells])
    return tuple(nodes), t


def _texts(cells: Cells) -> tuple[list[str | None], str]:
    """The texts of literals and negated numbers (None for NULL), and whether all, some or none are
    strings."""
    texts: list[str | None] = []
    strings = numbers = False
    for cell in cells:
        args: dict[str, Any] = cell.args
        text: Any = args.get("this")
        if text is None:
            texts.append(None)
        elif not isinstance(text, str):
            # A negation. With any operand other than a number literal, the column does not consist of plain
            # literals.
            inner: dict[str, Any] = text.args
            number = inner.get("this")
            if inner.get("is_string") is not False or not isinstance(number, str):
                return [], "some"
            texts.append(f"-{number}")
            numbers = True
        else:
            texts.append(text)
            if args.get("is_string"):
                strings = True
            else:
                numbers = True
    return texts, "all" if not numbers else "some" if strings else "none"


# --- INSERT


def assigned_column(binder: Binder, cells: Cells, target: Column) -> _Values:
    """The cells of one column of INSERT ... VALUES, converted to the table's column. Each cell is coerced
    separately, as in PostgreSQL."""
    fast = _plain_literals(cells, target.type, binder.ctx.session.time_zone)
    if fast is not None:
        return fast
    return tuple(assign(binder.ctx, binder.bind(c), target.type, target.name, position_of(c)) for c in cells)


def _plain_literals(cells: Cells, t: SqlType, zone: str) -> pa.Array | None:
    """The cells as one array, if all are strings, all numbers or all booleans (or NULL)."""
    kinds = set(map(type, cells)) - {exp.Null}
    if kinds == {exp.Boolean} and t.kind is Kind.BOOL:
        return pa.array([cell.args.get("this") for cell in cells], pa.bool_())
    if not kinds <= {exp.Literal, exp.Neg}:
        return None
    texts, strings = _texts(cells)
    if strings == "some" or (strings == "none" and not _reads_numbers(texts, t)):
        return None
    few = few_from_text(texts, t) if len(texts) <= FEW else None
    if few is not None:
        return few
    try:
        return decode_text(pa.array(texts, pa.string()), t, timezone=zone)
    except TidemillError:
        # Binding cell by cell finds the position of the bad cell and PostgreSQL's error text.
        return None


def _reads_numbers(texts: Sequence[str | None], t: SqlType) -> bool:
    """Whether reading the number's text as `t` gives the result of PostgreSQL's cast of the number."""
    if t.kind in FLOATS or t.kind is Kind.NUMERIC:
        return True
    return t.kind in SIGNED and all(s is None or s.lstrip("-").isdigit() for s in texts)
