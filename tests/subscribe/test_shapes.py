"""Queries of Nexmark's and TPC-H's shapes (shapes/*.txt): how each is kept up to date, and that its changes
add up to PostgreSQL's answer at several times of a random history.

A file has a comment, the query, what EXPLAIN says of a view of it, and its answer at the end of the first
history. TIDEMILL_REWRITE=1 accepts what is new, after PostgreSQL has agreed.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from stage_world import Histories, StageWorld, counted
from told_spans import Update

from support.bound import Names
from support.upstream_postgres import UpstreamDatabase
from tidemill.catalog.state import CatalogState
from tidemill.inputs.queries import described
from tidemill.query.spark import SparkHost
from tidemill.sql.bind import BoundQuery
from tidemill.sql.bind.model import Lowered
from tidemill.sql.plan.first_rows import first_rows
from tidemill.sql.plan.keyed import columns_of
from tidemill.subscribe import first_rows as first_rows_module
from tidemill.subscribe.first_rows import FirstRowsFollower, Wanted
from tidemill.subscribe.follower import Follower
from tidemill.types.model import Column, RelationDesc
from tidemill.types.parse_name import parse_type

FILES = sorted((Path(__file__).parent / "shapes").glob("*.txt"))
LAST = 4
COMPARED = (1, 3, LAST)

TABLES: dict[str, dict[str, str]] = {
    "person": {"id": "bigint", "name": "text", "city": "text", "state": "text", "at": "timestamp"},
    "auction": {
        "id": "bigint",
        "seller": "bigint",
        "category": "int",
        "at": "timestamp",
        "expires": "timestamp",
    },
    "bid": {"auction": "bigint", "bidder": "bigint", "price": "bigint", "channel": "text", "at": "timestamp"},
    "customer": {
        "c_custkey": "bigint",
        "c_name": "text",
        "c_segment": "text",
        "c_nationkey": "int",
        "c_balance": "numeric(10,2)",
    },
    "orders": {"o_orderkey": "bigint", "o_custkey": "bigint", "o_orderdate": "date", "o_priority": "text"},
    "lineitem": {
        "l_orderkey": "bigint",
        "l_suppkey": "bigint",
        "l_quantity": "numeric(10,2)",
        "l_price": "numeric(10,2)",
        "l_discount": "numeric(4,2)",
        "l_returnflag": "text",
        "l_shipdate": "date",
    },
    "supplier": {"s_suppkey": "bigint", "s_name": "text", "s_nationkey": "int"},
    "nation": {"n_nationkey": "int", "n_name": "text"},
}
DESCS = {
    name: RelationDesc(tuple(Column(c, parse_type(t)) for c, t in columns.items()))
    for name, columns in TABLES.items()
}
NAMES = Names(DESCS)

# Columns that are keys of something, and how many values they have.
_KEYS = {
    **dict.fromkeys(("id", "auction"), 5),
    **dict.fromkeys(("seller", "bidder", "c_custkey", "o_custkey"), 4),
    **dict.fromkeys(("o_orderkey", "l_orderkey"), 5),
    **dict.fromkeys(("s_suppkey", "l_suppkey", "c_nationkey", "s_nationkey", "n_nationkey", "category"), 3),
}
_TEXTS = {"state": ["OR", "ID", "CA"], "l_returnflag": ["R", "A"], "o_priority": ["low", "high"]}
_DISCOUNTS = [Decimal("0.05"), Decimal("0.07"), Decimal("0.10")]
# Of reference data there are few rows.
_ROWS = {"bid": 14, "lineitem": 14, "nation": 3, "supplier": 3}


def value(dice: random.Random, column: str, t: str) -> Any:
    if dice.random() < 0.05:
        return None
    if column in _KEYS:
        return dice.randint(1, _KEYS[column])
    if t == "text":
        return dice.choice(_TEXTS.get(column, ["a", "b"]))
    if t == "timestamp":
        first = datetime(2026, 1, 1) if column != "expires" else datetime(2026, 1, 1, 3)
        return first + timedelta(minutes=dice.choice([0, 10, 50, 70, 130]))
    if t == "date":
        return date(1998, 1, 1) + timedelta(days=30 * dice.randint(0, 11))
    if column == "l_discount":
        return dice.choice(_DISCOUNTS)
    if t == "bigint":
        return 10 * dice.randint(1, 5)
    return Decimal(dice.randint(-100 if column == "c_balance" else 1, 5000)).scaleb(-2)


def history(dice: random.Random, table: str) -> list[Update]:
    updates: list[Update] = []
    here: list[tuple[Any, ...]] = []
    for time in range(LAST + 1):
        count = _ROWS.get(table, 6)
        for _ in range(count if time == 0 else dice.choice([0, 1, count // 3])):
            if here and time and dice.random() < 0.5:
                updates.append((here.pop(dice.randrange(len(here))), time, -1))
            row = tuple(value(dice, c, t) for c, t in TABLES[table].items())
            here.append(row)
            updates.append((row, time, 1))
    return updates


@dataclass(frozen=True, slots=True)
class Shape:
    title: str
    query: str
    kept: str = ""
    answer: str = ""

    def text(self) -> str:
        return (
            "\n".join([f"# {self.title}", self.query, "----", self.kept, "----", self.answer]).rstrip() + "\n"
        )


def shapes(path: Path) -> list[Shape]:
    made: list[Shape] = []
    for part in path.read_text().strip().split("\n# "):
        title, _, rest = part.removeprefix("# ").partition("\n")
        query, *said = re.split(r"\n----(?:\n|$)", rest.strip())
        made.append(Shape(title, query, *(s.strip() for s in said)))
    return made


def accept(path: Path, found: Sequence[Shape]) -> None:
    if os.environ.get("TIDEMILL_REWRITE"):
        path.write_text("\n".join(shape.text() for shape in found))
    else:
        assert [s.text() for s in found] == [s.text() for s in shapes(path)], (
            "TIDEMILL_REWRITE=1 accepts this"
        )


class Stored:
    """A catalog of these tables, as far as EXPLAIN asks it."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def relation(self, relation_id: str) -> Stored:
        return Stored(relation_id.removeprefix("u "))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_how_they_are_kept(path: Path) -> None:
    found: list[Shape] = []
    for shape in shapes(path):
        bound = NAMES.bind(shape.query)
        # (As the ids of user's tables, not of the system's.)
        bound = replace(bound, inputs={p: f"u {name}" for p, name in bound.inputs.items()})
        found.append(replace(shape, kept="\n".join(described(cast(CatalogState, Stored()), bound))))
    accept(path, found)
    assert not [s.title for s in found if s.kept.startswith("as a whole")]


def normal(v: Any) -> str:
    """Numbers by their values: a quotient has more digits in PostgreSQL."""
    if isinstance(v, Decimal | int) and not isinstance(v, bool):
        return f"{Decimal(v).quantize(Decimal(1).scaleb(-10)).normalize():f}"
    return "-" if v is None else str(v)


Rows = Counter[tuple[str, ...]]


class Judge:
    """PostgreSQL with the rows of one time."""

    def __init__(self, upstream: UpstreamDatabase) -> None:
        self._upstream = upstream
        for name, columns in TABLES.items():
            upstream.run(f"CREATE TABLE {name} ({', '.join(f'{c} {t}' for c, t in columns.items())})")

    def at(self, found: Histories, at: int) -> None:
        said: list[str] = []
        for name, updates in found.items():
            here: Counter[tuple[Any, ...]] = Counter()
            for row, time, diff in updates:
                if time <= at:
                    here[row] += diff
            said.append(f"TRUNCATE {name}")
            rows = ", ".join(f"({', '.join(map(_literal, row))})" for row in here.elements())
            if rows:
                said.append(f"INSERT INTO {name} VALUES {rows}")
        self._upstream.run(";".join(said))

    def answer(self, query: str) -> Rows:
        return Counter(tuple(map(normal, row)) for row in self._upstream.query(query))


def _literal(v: Any) -> str:
    return "NULL" if v is None else f"'{v}'"


def followed(world: StageWorld, bound: BoundQuery, before: pa.Table) -> Follower:
    some = first_rows(bound.plan)
    if some is None:
        return world.follower(bound, [2, LAST + 1], before=before)
    columns = tuple(Column(n, t) for n, t in columns_of(some.query))
    shown = some.shown or tuple(c.name for c in columns)
    wanted = Wanted(columns, some.order, shown, some.count, some.skipped, some.ties)
    inner = replace(bound, lowered=Lowered(some.query), columns=columns)

    def best(at: int, count: int) -> pa.Table:
        first = replace(inner, lowered=Lowered(some.best(count)))
        return counted(world.select(first, first.sql(), at))

    def answer(at: int) -> pa.Table:
        return counted(world.select(bound, bound.sql(), at))

    names = [f"c{i}" for i in range(len(bound.columns))]
    return FirstRowsFollower(wanted, world.follower(inner, [2, LAST + 1]), best, answer, before, names)


@pytest.mark.spark
@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.chaos] if n else []) for n in range(30)])
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_their_answers(
    path: Path, seed: int, spark: SparkHost, upstream: UpstreamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_rows_module, "MARGIN", 1)
    dice = random.Random(seed)
    found = {name: history(dice, name) for name in TABLES}
    world, judge = StageWorld(spark, DESCS, found), Judge(upstream)
    listed = shapes(path)
    told: dict[str, list[tuple[int, tuple[str, ...], int]]] = {}
    for shape in listed:
        bound = NAMES.bind(shape.query)
        before = counted(world.select(bound, bound.sql(), 0))
        changes = told[shape.title] = [(0, *_row(row)) for row in _rows(before)]
        follow = followed(world, bound, before)
        while follow.frontier <= LAST:
            span = follow.advance()
            assert span is not None
            for *row, time, diff in _rows(span.updates):
                changes.append((time, *_row([*row, diff])))
    answers: dict[str, Rows] = {}
    for at in COMPARED:
        judge.at(found, at)
        for shape in listed:
            seen: Rows = Counter()
            for time, row, diff in told[shape.title]:
                if time <= at:
                    seen[row] += diff
            answers[shape.title] = judge.answer(shape.query)
            kept = {row: n for row, n in seen.items() if n}
            assert kept == answers[shape.title], (shape.title, f"at {at} of seed {seed}")
    if seed == 0:
        accept(path, [replace(s, answer=_table(answers[s.title])) for s in listed])


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(c.to_pylist() for c in table.columns), strict=True))


def _row(row: Sequence[Any]) -> tuple[tuple[str, ...], int]:
    *values, count = row
    return tuple(map(normal, values)), count


def _table(rows: Rows) -> str:
    return "\n".join(" | ".join(row) for row in sorted(rows.elements()))
