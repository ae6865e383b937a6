"""A short notation for relations: `name type, ...`, and rows by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from tidemill.engine.relations.columns import columns_of
from tidemill.engine.relations.sources import Rows, Spec
from tidemill.types.model import Kind

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation

Record: TypeAlias = dict[str, Any]

# The value of a column that a row leaves out: PostgreSQL's catalogs have NULL only where it has a meaning.
_DEFAULTS: dict[Kind, Any] = {
    Kind.OID: 0,
    Kind.REGPROC: 0,
    Kind.NAME: "",
    Kind.QCHAR: "",
    Kind.BOOL: False,
    Kind.INT2: 0,
    Kind.INT4: 0,
    Kind.INT8: 0,
    Kind.FLOAT4: 0.0,
    Kind.FLOAT8: 0.0,
}


def spec(
    schema: str,
    name: str,
    columns: str,
    rows: Callable[[Situation], Iterable[Record]] | None = None,
    *,
    nulls: bool = False,
) -> Spec:
    """A relation whose rows are given by name; without `rows` it is always empty. With `nulls`, columns that
    a row leaves out are NULL."""
    typed = columns_of(columns)
    names = {n for n, _ in typed}
    defaults = [(n, None if nulls else _DEFAULTS.get(t.kind)) for n, t in typed]

    def made(s: Situation) -> Rows:
        if rows is None:
            return []
        found: Rows = []
        for record in rows(s):
            if not record.keys() <= names:
                raise KeyError(f"{name} has no column {sorted(record.keys() - names)}")
            found.append(tuple(record.get(n, d) for n, d in defaults))
        return found

    return schema, name, typed, made
