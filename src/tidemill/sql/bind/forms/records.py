"""Fields of records, `(r).f`, and entries of maps, `m -> 'k'`.

Sources produce both: nested Avro and Protobuf values, keys of several fields, and error rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from tidemill.errors import TidemillError
from tidemill.sql.bind.calls import row_of
from tidemill.sql.bind.coerce import to_type
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.functions.tree import Tree, call
from tidemill.sql.plan.expressions import BoundNode, Op
from tidemill.types.arrow import element_type
from tidemill.types.model import TEXT, Kind
from tidemill.types.names import physical_names_of

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder


def bind_field(b: Binder, node: exp.Dot) -> BoundNode:
    """NULL if the record is NULL. Raises PostgreSQL's error if the field does not exist."""
    position = position_of(node)
    inner = node.this
    while isinstance(inner, exp.Paren):
        inner = inner.this
    if not isinstance(node.expression, exp.Identifier) or row_of(inner) is not None:
        raise unsupported("selecting a field of a row", position, "A field of a column is (column).field.")
    value = b.bind(inner)
    name = node.expression.name
    if value.type.kind is not Kind.RECORD:
        raise TidemillError(
            f"column notation .{name} applied to type {value.type}, which is not a composite type",
            sqlstate="42809",
            position=position,
        )
    names = [field.name for field in value.type.fields]
    if name not in names:
        raise TidemillError(
            f'column "{name}" not found in data type {value.type}', sqlstate="42703", position=position
        )
    at = names.index(name)
    stored = physical_names_of(names)[at]
    return Op(value.type.fields[at].type, f"field {at}", (value,), lambda a: _field(a[0], stored))


def bind_entry(b: Binder, value: BoundNode, key: BoundNode, position: int | None) -> BoundNode:
    """NULL if the key does not exist."""
    text = to_type(b.ctx, key, TEXT, position=position)
    return Op(element_type(value.type), "entry", (value, text), lambda a: call("try_element_at", *a))


def _field(value: Tree, stored: str) -> Tree:
    return exp.Dot(this=exp.Paren(this=value), expression=exp.to_identifier(stored, quoted=True))
