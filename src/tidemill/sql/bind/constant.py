"""Rows that can be computed without Spark: literals, parameters and session values, casts of them, and those
functions of them whose record has a form over values at hand.

INSERT ... VALUES and SELECT 1 are handled here. Columns are whole Arrow arrays if all their cells are plain
literals, else they are computed cell by cell. If one cell cannot be evaluated here, Spark evaluates the whole
list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill import caches
from tidemill.sql.functions.markers import Fixed
from tidemill.sql.functions.rowwise import value_at_hand
from tidemill.sql.plan.convert import convert
from tidemill.sql.plan.expressions import (
    BoundNode,
    BoundParam,
    Const,
    Convert,
    Op,
    SessionValue,
    fitted,
    walk,
)
from tidemill.types.arrow import arrow_type
from tidemill.types.model import Kind, SqlType
from tidemill.types.wire.text import decode_text, encode_text

if TYPE_CHECKING:
    from tidemill.sql.bind.model import BoundQuery, SessionInfo


@dataclass(frozen=True, slots=True)
class Constants:
    """`rows` rows; each column is an array in storage form, or its cells."""

    columns: tuple[pa.Array | tuple[BoundNode, ...], ...]
    types: tuple[SqlType, ...]
    rows: int
    # The cached rows of a plan that consists only of literals. At most one entry.
    known: list[pa.Table] = field(default_factory=list[pa.Table], compare=False, repr=False)
    # Whether functions are called, which takes longer than copying values.
    calls: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        calls = any(
            isinstance(part, Op)
            for column in self.columns
            if isinstance(column, tuple)
            for node in column
            if not isinstance(node, Const | BoundParam)
            for part in walk(node)
        )
        object.__setattr__(self, "calls", calls)


def constant_rows(
    bound: BoundQuery, session: SessionInfo | None = None, params: Sequence[pa.Scalar] = ()
) -> pa.Table | None:
    """The rows of a constant query, with columns c0, c1, ...; None if they need Spark, or more parameters
    than are given. `session` is the session at the time of execution, if it differs from the query's. A
    prepared INSERT calls this for each execution, so it builds no new query as `substitute` does."""
    if bound.constants is None:
        return None
    return evaluate(bound.constants, session or bound.session, params)


def evaluate(constants: Constants, session: SessionInfo, params: Sequence[pa.Scalar] = ()) -> pa.Table | None:
    if constants.known and caches.ENABLED:
        return constants.known[0]
    table = _evaluated(constants, session, params)
    if table is not None and constants.rows == 1 and _literal(constants):
        constants.known[:] = [table]
    return table


def _literal(constants: Constants) -> bool:
    """Whether the rows are the same in every session and at every time."""
    return all(isinstance(c, pa.Array) or all(isinstance(n, Const) for n in c) for c in constants.columns)


def _evaluated(constants: Constants, session: SessionInfo, params: Sequence[pa.Scalar]) -> pa.Table | None:
    arrays: list[pa.Array] = []
    for column, t in zip(constants.columns, constants.types, strict=True):
        array = column if isinstance(column, pa.Array) else _cells(column, t, session, params)
        if array is None:
            return None
        arrays.append(array)
    if not arrays:
        # A row without columns is still a row, which a table without columns cannot represent.
        return None
    return pa.Table.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])


def _cells(
    cells: Sequence[BoundNode], t: SqlType, session: SessionInfo, params: Sequence[pa.Scalar]
) -> pa.Array | None:
    want = arrow_type(t)
    if len(cells) > 1 and all(cell is cells[0] for cell in cells):
        # A default value, the same in every row.
        one = _cells(cells[:1], t, session, params)
        return (
            None
            if one is None
            else pa.repeat(one[0], len(cells))
            if one.null_count == 0
            else pa.nulls(len(cells), want)
        )
    arrays: list[pa.Array] = []
    for cell in cells:
        scalar = evaluate_node(cell, session, params)
        if scalar is None:
            return None
        arrays.append(pa.array([scalar], want) if scalar.is_valid else pa.nulls(1, want))
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def evaluate_node(
    node: BoundNode, session: SessionInfo, params: Sequence[pa.Scalar] = ()
) -> pa.Scalar | None:
    """The node's value in storage form; None if it needs Spark or parameters that are not known yet."""
    if isinstance(node, Const):
        node = fitted(node)
        if node.value is None or isinstance(node.value, str):
            return pa.scalar(node.value, arrow_type(node.type))
        return node.value
    if isinstance(node, BoundParam):
        return params[node.index - 1] if node.index <= len(params) else None
    if isinstance(node, SessionValue):
        if node.which is Fixed.NOW:
            return pa.scalar(session.now, arrow_type(node.type))
        if node.which is Fixed.STATEMENT:
            return pa.scalar(session.statement_began(), arrow_type(node.type))
        return None if session.mz_now is None else pa.scalar(session.mz_now, pa.int64())
    if isinstance(node, Convert):
        inner = evaluate_node(node.arg, session, params)
        if inner is None:
            return None
        one = pa.repeat(inner, 1) if inner.is_valid else pa.nulls(1, inner.type)
        zone = session.time_zone
        converted = convert(one, node.arg.type, node.type, explicit=node.explicit, zone=zone)
        if converted is None and isinstance(node.arg, SessionValue):
            converted = _moment(one, node.arg.type, node.type, zone)
        return None if converted is None else converted[0]
    if isinstance(node, Op) and node.fn is not None and node.fn.at_hand is not None:
        values: list[pa.Scalar] = []
        for arg in node.args:
            value = evaluate_node(arg, session, params)
            if value is None:
                return None
            values.append(value)
        return value_at_hand(node.fn.at_hand, values, session.time_zone)
    return None


def _moment(one: pa.Array, source: SqlType, target: SqlType, zone: str) -> pa.Array | None:
    """now() in the session's time zone: the default of a timestamp or a date."""
    if source.kind is not Kind.TIMESTAMPTZ or target.kind not in (Kind.TIMESTAMP, Kind.DATE):
        return None
    return decode_text(encode_text(one, source, timezone=zone).cast(pa.string()), target, timezone=zone)
