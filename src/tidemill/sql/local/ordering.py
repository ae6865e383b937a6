"""ORDER BY: sort keys, with PostgreSQL's placement of NULLs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from tidemill.sql.local.cast import comparable
from tidemill.sql.local.kinds import Category, category
from tidemill.sql.local.model import Env, NotLocal, Runtime, Typed

if TYPE_CHECKING:
    from tidemill.sql.local.expr import Expressions


@dataclass(slots=True)
class LocalSortKey:
    value: Typed
    descending: bool
    nulls_first: bool


def sort_key(node: exp.Ordered, value: Typed, x: Expressions) -> LocalSortKey:
    if category(value.type) is Category.FLOAT:
        run = value.run
        # NaN is above all numbers.
        value = Typed(
            value.type, lambda e, rt: None if (v := run(e, rt)) is None else (v != v, v), value.refs
        )
    elif category(value.type) is Category.ARRAY:
        raise NotLocal("the order of arrays")
    else:
        comparable(x.ctx, value, value)
    descending = bool(node.args.get("desc"))
    return LocalSortKey(value, descending, bool(node.args.get("nulls_first")))


def compile_keys(x: Expressions, order: Sequence[exp.Ordered]) -> list[LocalSortKey]:
    return [sort_key(o, x.compile(o.this), x) for o in order]


def sort_rows(envs: list[Env], keys: Sequence[LocalSortKey], rt: Runtime) -> list[Env]:
    """Sorted, the last key first: Python's sort keeps the order of equals."""
    for key in reversed(keys):
        run = key.value.run
        envs = sort_by(envs, [run(e, rt) for e in envs], key)
    return envs


def sort_by(rows: list[Any], values: list[Any], key: LocalSortKey) -> list[Any]:
    pairs = list(zip(values, rows, strict=True))
    nulls = [row for value, row in pairs if value is None]
    rest = sorted((p for p in pairs if p[0] is not None), key=lambda p: p[0], reverse=key.descending)
    there = [row for _, row in rest]
    return [*nulls, *there] if key.nulls_first else [*there, *nulls]
