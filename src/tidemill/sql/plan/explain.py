"""A plan as text, for EXPLAIN: one line per operator, its inputs indented below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidemill.sql.plan.expressions import (
    Aggregate,
    BoundNode,
    BoundParam,
    Const,
    Convert,
    FromRows,
    Op,
    Ref,
    SessionValue,
    SortKey,
    Subquery,
    Window,
)
from tidemill.sql.plan.operators import (
    Copies,
    Distinct,
    Expand,
    Filter,
    FirstOfEach,
    Group,
    Join,
    Limit,
    Named,
    OneRow,
    Operator,
    Output,
    PreviousRound,
    Project,
    Recursive,
    Rows,
    Scan,
    Series,
    SetOperation,
    Sort,
    TableFunction,
    Ties,
    inputs,
)
from tidemill.sql.plan.reach import Reach, reaches
from tidemill.sql.plan.stages import Stage
from tidemill.types.model import Kind
from tidemill.types.wire.text import encode_text

_BARE = frozenset({Kind.BOOL, Kind.INT2, Kind.INT4, Kind.INT8, Kind.NUMERIC, Kind.FLOAT4, Kind.FLOAT8})
_TEXTS = frozenset({Kind.TEXT, Kind.UNKNOWN})


def explain(plan: Operator) -> list[str]:
    return list(_Explained().lines(plan, 0))


def explain_reaches(plan: Operator) -> list[str]:
    """One line for each operator of the plan that is not linear."""
    shown = _Explained()
    return [shown.reach(reach) for reach in reaches(plan)]


def explain_rules(stage: Stage) -> list[str]:
    """For each operator of the stage that has a key: the operator and the key."""
    shown = _Explained()
    return [f"{what}, for each {shown.listed(key)}" if key else what for what, key in stage.rules]


def explain_key(key: Sequence[BoundNode]) -> str:
    return _Explained().listed(key)


def explain_order(order: Sequence[SortKey]) -> str:
    return _Explained().order(order)


class _Explained:
    def __init__(self) -> None:
        # Subqueries in expressions of the operator at hand, which are shown below it.
        self._subqueries: list[Subquery] = []
        self._numbered = 0

    def lines(self, operator: Operator, depth: int) -> Iterator[str]:
        indent = "  " * depth
        yield indent + _TITLES[type(operator)](self, operator)
        found, self._subqueries = self._subqueries, []
        first = self._numbered - len(found) + 1
        for number, subquery in enumerate(found, first):
            yield f"{indent}  Subquery {number}"
            yield from self.lines(subquery.plan, depth + 2)
        for under in inputs(operator):
            yield from self.lines(under, depth + 1)

    # --- operators

    def scan(self, operator: Scan) -> str:
        return f"Scan {operator.placeholder} as {operator.alias}"

    def named(self, operator: Named) -> str:
        return f"{'Lateral query' if operator.lateral else 'Query'} as {operator.alias}"

    def join(self, operator: Join) -> str:
        kind = {"": "Join", "LEFT": "Left join", "RIGHT": "Right join", "FULL": "Full join"}[operator.side]
        return (
            f"Cross {kind.lower()}"
            if operator.condition is None
            else f"{kind} on {self.show(operator.condition)}"
        )

    def project(self, operator: Project) -> str:
        return f"Project {self.outputs(operator.outputs)}"

    def group(self, operator: Group) -> str:
        keys = [self.show(k) for k in operator.keys]
        calls = ", ".join(f"a{i} = {self.show(a)}" for i, a in enumerate(operator.aggregates))
        shown = ", ".join(f"g{i} = {k}" for i, k in enumerate(keys)) or "all rows"
        text = f"Group by {shown}"
        if len(operator.sets) > 1:
            places = {key: f"g{i}" for i, key in enumerate(operator.keys)}
            text += (
                f" in sets {', '.join('(' + ', '.join(places[k] for k in s) + ')' for s in operator.sets)}"
            )
        return f"{text}: {calls}" if calls else text

    def expand(self, operator: Expand) -> str:
        arrays = ", ".join(f"e{i} = {self.show(a)}" for i, a in enumerate(operator.arrays))
        kept = f"; keeps {self.listed(operator.kept)}" if operator.kept else ""
        return f"Expand {arrays}{kept}"

    def first_of_each(self, operator: FirstOfEach) -> str:
        order = f" in the order {self.order(operator.order)}" if operator.order else ""
        return f"First row of each {', '.join(operator.keys)}{order}"

    def ties(self, operator: Ties) -> str:
        count = "all" if operator.count is None else operator.count
        return f"First {count} after {operator.skipped} with ties, in the order {self.order(operator.order)}"

    def limit(self, operator: Limit) -> str:
        parts = [
            (word, node) for word, node in (("Limit", operator.count), ("Offset", operator.skipped)) if node
        ]
        return ", ".join(f"{word} {self.show(node)}" for word, node in parts) or "Limit none"

    def set_operation(self, operator: SetOperation) -> str:
        return operator.kind.capitalize() + ("" if operator.distinct else " all")

    def table_function(self, operator: TableFunction) -> str:
        numbered = " with ordinality" if operator.numbered else ""
        return f"Rows of {operator.key}({self.listed(operator.args)}){numbered}"

    def series(self, operator: Series) -> str:
        return f"Series {operator.start} to {operator.stop} by {operator.step}"

    def reach(self, reach: Reach) -> str:
        if reach.row:
            return f"{reach.what}: equal rows"
        if reach.sums:
            return f"{reach.what}: sums over all rows"
        if not reach.key:
            return f"{reach.what}: all rows, because {reach.because}"
        return f"{reach.what}: rows of equal {', '.join(' = '.join(map(self.show, p)) for p in reach.key)}"

    # --- expressions

    def outputs(self, outputs: Sequence[Output]) -> str:
        return ", ".join(f"{o.name} = {self.show(o.node)}" for o in outputs)

    def listed(self, nodes: Sequence[BoundNode]) -> str:
        return ", ".join(map(self.show, nodes))

    def order(self, keys: Sequence[SortKey]) -> str:
        return ", ".join(
            self.show(k.node)
            + (" desc" if k.descending else "")
            + ("" if k.nulls_first == k.descending else f" nulls {'first' if k.nulls_first else 'last'}")
            for k in keys
        )

    def show(self, node: BoundNode) -> str:
        if isinstance(node, Const):
            return _constant(node)
        if isinstance(node, Ref):
            return f"{node.table}.{node.name}" if node.table else node.name
        if isinstance(node, BoundParam):
            return f"${node.index}"
        if isinstance(node, SessionValue):
            return f"{node.which.name.lower()}()"
        if isinstance(node, Convert):
            return f"{self.show(node.arg)}::{node.type}"
        if isinstance(node, Op | FromRows):
            return _called(node.key.partition("(")[0], [self.show(a) for a in node.args])
        if isinstance(node, Aggregate):
            return self._aggregate(node)
        if isinstance(node, Window):
            return self._window(node)
        if isinstance(node, Subquery):
            return self._subquery(node)
        return type(node).__name__

    def _aggregate(self, node: Aggregate) -> str:
        args = ("distinct " if node.distinct else "") + (self.listed(node.args) or "*")
        order = f" order by {self.order(node.order)}" if node.order else ""
        where = "" if node.where is None else f" filter {self.show(node.where)}"
        return f"{node.fn.name}({args}{order}){where}"

    def _window(self, node: Window) -> str:
        parts: list[str] = []
        if node.partition:
            parts.append(f"partition by {self.listed(node.partition)}")
        if node.order:
            parts.append(f"order by {self.order(node.order)}")
        if node.frame is not None:
            parts.append(node.frame.sql(dialect="postgres").lower())
        where = "" if node.where is None else f" filter {self.show(node.where)}"
        return f"{node.key.partition('(')[0]}({self.listed(node.args)}){where} over ({' '.join(parts)})"

    def _subquery(self, node: Subquery) -> str:
        self._subqueries.append(node)
        self._numbered += 1
        number = f"subquery {self._numbered}"
        if node.kind == "exists":
            return f"exists {number}"
        return f"({self.listed(node.operands)}) in {number}" if node.kind == "in" else number


def _called(name: str, args: Sequence[str]) -> str:
    if len(args) == 2 and (name in ("and", "or") or not name[:1].isalpha()):
        return f"({args[0]} {name} {args[1]})"
    if name in ("and", "or") and len(args) > 2:
        return f"({f' {name} '.join(args)})"
    if len(args) == 1 and not name[:1].isalpha():
        return f"({name} {args[0]})"
    return f"{name}({', '.join(args)})"


def _constant(node: Const) -> str:
    value = node.value
    if value is None or (isinstance(value, pa.Scalar) and not value.is_valid):
        return "NULL"
    if isinstance(value, str):
        text = value
    else:
        (shown,) = encode_text(pa.array([value], value.type), node.type).to_pylist()
        text = shown.decode()
    if node.type.kind in _BARE:
        return text
    quoted = "'" + text.replace("'", "''") + "'"
    return quoted if node.type.kind in _TEXTS else f"{quoted}::{node.type}"


_TITLES: dict[type[Operator], Callable[[_Explained, Any], str]] = {
    OneRow: lambda e, o: "One row",
    Scan: _Explained.scan,
    Rows: lambda e, o: f"Rows of VALUES: {o.count}",
    Series: _Explained.series,
    TableFunction: _Explained.table_function,
    PreviousRound: lambda e, o: f"Previous round of {o.alias}",
    Named: _Explained.named,
    Copies: lambda e, o: f"Numbered copies as {o.number}",
    Join: _Explained.join,
    Filter: lambda e, o: f"Filter {e.show(o.condition)}",
    Project: _Explained.project,
    Group: _Explained.group,
    Expand: _Explained.expand,
    Distinct: lambda e, o: "Distinct",
    FirstOfEach: _Explained.first_of_each,
    Ties: _Explained.ties,
    Sort: lambda e, o: f"Sort by {e.order(o.keys)}",
    Limit: _Explained.limit,
    SetOperation: _Explained.set_operation,
    Recursive: lambda e, o: f"Recursive as {o.alias}",
}
