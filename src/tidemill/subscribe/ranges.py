"""Range keys of a large snapshot: the keys by which its rows are partitioned, to shape each range separately.

The ranges must be in the order that the output promises (`sort_keys`). All rows that make one output row must
be in one range: equal rows, and for the envelopes all rows of a key. Ranges may be coarser than the order;
`shape` sorts the rows within one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemill.query.ranged import RangeKey
from tidemill.subscribe.spec import OutputShape, SortItem, Spec
from tidemill.types.arrow import DIFF_COLUMN
from tidemill.types.model import Kind, RelationDesc, SqlType
from tidemill.types.spark import quote_identifier
from tidemill.types.spark_hash import hash_sql, row_hash_sql

_NESTED = (Kind.ARRAY, Kind.LIST, Kind.MAP, Kind.RECORD)
_MICROS_PER_DAY = "86400000000L"


def range_keys(spec: Spec, names: Sequence[str]) -> list[RangeKey]:
    """`names`: the physical ones of the spec's columns. At least one key."""
    match spec.output:
        case OutputShape.PLAIN:  # no order
            return [RangeKey(row_hash_sql(RelationDesc(spec.columns), names))]
        case OutputShape.UPSERT | OutputShape.DEBEZIUM:
            return _keys((), spec.keys, spec, names)
        case OutputShape.WITHIN_TIMESTAMP:
            # Ties by row.
            return _keys(spec.order, range(len(spec.columns)), spec, names)


def needs_counts(spec: Spec) -> bool:
    """Whether the order depends on the number of copies."""
    return any(item.position is None for item in spec.order)


def _keys(order: Iterable[SortItem], rows: Iterable[int], spec: Spec, names: Sequence[str]) -> list[RangeKey]:
    """By the items of `order`, then by row identity in the columns `rows`."""
    keys: dict[str, RangeKey] = {}
    for item, by_row in [*((item, False) for item in order), *((SortItem(i), True) for i in rows)]:
        if item.position is None:
            keys.setdefault(DIFF_COLUMN, RangeKey(DIFF_COLUMN, item.descending))
            continue
        t = spec.columns[item.position].type
        for sql in _expressions(quote_identifier(names[item.position]), t, by_row):
            # A key that was already compared decides nothing more.
            keys.setdefault(sql, RangeKey(sql, item.descending, item.nulls_first))
        if t.kind in _NESTED:
            break  # what has one hash need not be equal: what comes behind decides nothing
    return list(keys.values())


def _expressions(column: str, t: SqlType, by_row: bool) -> list[str]:
    """Expressions that order like `sort_keys.order_lanes`; with `by_row` like `sort_keys.row_lanes`."""
    if t.kind is Kind.CHAR:
        return [f"rtrim({column})", *([column] if by_row else [])]
    if t.kind is Kind.INTERVAL:
        rest = f"pmod({column}.micros, {_MICROS_PER_DAY})"
        days = f"CAST({column}.months AS BIGINT) * 30L + {column}.days"
        length = [f"{days} + ({column}.micros - {rest}) div {_MICROS_PER_DAY}", rest]
        return [*length, f"{column}.months", f"{column}.days"] if by_row else length
    if t.kind in _NESTED:
        # Hashes are compared without a sign there.
        return [f"if({column} IS NULL, NULL, {hash_sql(column, t)} ^ shiftleft(1L, 63))"]
    return [column]
