"""Row hash of `identity` as Spark expressions: the same number for the same row.

Called by `subscribe`, for generated SQL.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.types.arrow import element_type
from tidemill.types.hash import SEED
from tidemill.types.model import Kind, RelationDesc, SqlType
from tidemill.types.names import physical_names, physical_names_of
from tidemill.types.spark import quote_identifier


def row_hash_sql(desc: RelationDesc, names: Sequence[str] | None = None) -> str:
    """A Spark SQL expression over the columns `names` (by default the physical ones)."""
    chosen = physical_names(desc) if names is None else names
    hashes = [hash_sql(quote_identifier(name), t) for name, t in zip(chosen, desc.types, strict=True)]
    return f"xxhash64({', '.join(hashes)})" if hashes else f"CAST({SEED} AS BIGINT)"


def hash_sql(expression: str, t: SqlType, depth: int = 0) -> str:
    """The hash of one value; a null gives the seed, as in Spark's xxhash64."""
    if t.kind in (Kind.ARRAY, Kind.LIST):
        x, i = f"x{depth}", f"i{depth}"
        element = hash_sql(x, element_type(t), depth + 1)
        return _bag(expression, f"transform({expression}, ({x}, {i}) -> xxhash64({i}, {element}))")
    if t.kind is Kind.MAP:
        x = f"x{depth}"
        key, value = f"xxhash64({x}.key)", hash_sql(f"{x}.value", element_type(t), depth + 1)
        return _bag(expression, f"transform(map_entries({expression}), {x} -> xxhash64({key}, {value}))")
    if t.kind is Kind.INTERVAL:
        return _guarded(expression, [f"xxhash64({expression}.{f})" for f in ("months", "days", "micros")])
    if t.kind is Kind.RECORD:
        names = physical_names_of([c.name for c in t.fields])
        fields = [
            hash_sql(f"{expression}.{quote_identifier(n)}", c.type, depth)
            for n, c in zip(names, t.fields, strict=True)
        ]
        return _guarded(expression, fields or ["0"])
    return f"xxhash64({expression})"


def _guarded(expression: str, hashes: Sequence[str]) -> str:
    # A field of a null struct is null. Without this condition, a null struct would equal a struct of nulls.
    return f"if({expression} IS NULL, {SEED}L, xxhash64({', '.join(hashes)}))"


def _bag(expression: str, hashes: str) -> str:
    mixed = f"aggregate({hashes}, 0L, (a, b) -> a ^ b)"
    return f"if({expression} IS NULL, {SEED}L, xxhash64(size({expression}), {mixed}))"
