"""Resolution of the names in a SUBSCRIBE's output clause, over the columns that it follows.

Called by the engine when it plans the statement. Pure; errors in the clause are raised with their position in
the statement.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from tidemill.errors import DuplicateObject, UndefinedObject
from tidemill.sql import ast
from tidemill.sql.bind.errors import (
    AmbiguousColumn,
    InvalidColumnReference,
    missing_from,
    position_of,
    undefined_column,
)
from tidemill.sql.bind.suggest import column_hint
from tidemill.sql.functions.comparison import check_ordered
from tidemill.subscribe.spec import OutputShape, SortItem, Spec
from tidemill.types.arrow import DIFF_COLUMN
from tidemill.types.model import Column

# The maximum number of columns in a hint: some relations have hundreds.
MAX_NAMED = 20
# No relation has so many columns that a longer number is one's place.
_MAX_DIGITS = 9


def spec_for(
    columns: Sequence[Column],
    output: ast.SubscribeOutput,
    *,
    relation: str | None = None,
    progress: bool = False,
    underscore: bool = False,
) -> Spec:
    """The shape that `output` requests over `columns`. `relation` is the name by which a column may be
    qualified; a query has none."""
    chosen = tuple(columns)
    match output:
        case ast.SubscribePlain():
            return Spec(chosen, progress=progress, underscore=underscore)
        case ast.WithinTimestampOrderBy(items):
            order = tuple(_sort_item(item, chosen, relation) for item in items)
            return Spec(
                chosen, OutputShape.WITHIN_TIMESTAMP, order=order, progress=progress, underscore=underscore
            )
        case ast.EnvelopeUpsert(keys):
            kind = OutputShape.UPSERT
        case ast.EnvelopeDebezium(keys):
            kind = OutputShape.DEBEZIUM
    return Spec(chosen, kind, _keys(keys, chosen), progress=progress, underscore=underscore)


def _keys(keys: Sequence[ast.Ident], columns: Sequence[Column]) -> tuple[int, ...]:
    found: list[int] = []
    for key in keys:
        named = [i for i, c in enumerate(columns) if c.name == key.value]
        if not named:
            raise _no_column(key.value, key.offset + 1, [c.name for c in columns])
        if len(named) > 1:
            raise AmbiguousColumn(f'column reference "{key.value}" is ambiguous', position=key.offset + 1)
        if named[0] in found:
            raise DuplicateObject(
                f'column "{key.value}" appears more than once in SUBSCRIBE ENVELOPE KEY clause',
                sqlstate="42701",
                position=key.offset + 1,
            )
        found.append(named[0])
    return tuple(found)


def _sort_item(item: ast.OrderItem, columns: Sequence[Column], relation: str | None) -> SortItem:
    place = _place(item.expression, columns, relation)
    if place == 0:
        return SortItem(None, item.descending, item.nulls_first)
    check_ordered(columns[place - 1].type, "ORDER BY")
    return SortItem(place - 1, item.descending, item.nulls_first)


def _place(expression: ast.Expr, columns: Sequence[Column], relation: str | None) -> int:
    """The item's position among mz_diff and the columns, in this order."""
    node = expression.tree
    position = expression.offset + 1
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdigit():
        number = str(node.this)
        if len(number) > _MAX_DIGITS or not 1 <= int(number) <= len(columns) + 1:
            raise InvalidColumnReference(
                f"ORDER BY position {number[:_MAX_DIGITS]} is not in select list", position=position
            )
        return int(number) - 1
    if not isinstance(node, exp.Column) or isinstance(node.this, exp.Star):
        raise InvalidColumnReference(
            "invalid ORDER BY in SUBSCRIBE WITHIN TIMESTAMP ORDER BY",
            hint="All order bys must be output columns.",
            position=position,
        )
    position = position_of(node) or position
    if node.table:
        if node.table != relation or node.db:
            raise missing_from(node.table, position)
        places = [i for i, c in enumerate(columns, 1) if c.name == node.name]
    else:
        places = [i for i, name in enumerate([DIFF_COLUMN, *(c.name for c in columns)]) if name == node.name]
    if not places:
        known = [c.name for c in columns] if node.table else [DIFF_COLUMN, *(c.name for c in columns)]
        raise _no_column(node.name, position, known, node.table or None)
    if len(places) > 1:
        raise AmbiguousColumn(f'ORDER BY "{node.name}" is ambiguous', position=position)
    return places[0]


def _no_column(
    name: str, position: int, known: Sequence[str], relation: str | None = None
) -> UndefinedObject:
    """The nearest column is proposed, or else all are named."""
    error = undefined_column(name, position, relation)
    names = list(dict.fromkeys(known))
    listed = ", ".join(f'"{column}"' for column in names[:MAX_NAMED])
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    error.hint = column_hint(name, [("", column) for column in names]) or f"The columns are {listed}{more}."
    return error
