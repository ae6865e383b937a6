"""Every output against a model in plain Python, over random updates: several times in a batch, few keys so
that they meet, rows that come several times, columns of every kind of type."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemill.subscribe.shape import shaped
from tidemill.subscribe.spec import OutputShape, SortItem, Spec
from tidemill.types import model
from tidemill.types.arrow import arrow_type
from tidemill.types.model import Column, SqlType

Row = tuple[Any, ...]


def _float_key(v: float) -> tuple[int, float]:
    return (1, 0.0) if math.isnan(v) else (0, v + 0.0)


def _decimal_key(v: Decimal) -> Decimal:
    return v.normalize()


def _interval_length(v: dict[str, int]) -> int:
    return (v["months"] * 30 + v["days"]) * 86_400_000_000 + v["micros"]


def _same(v: Any) -> Any:
    return v


@dataclass(frozen=True)
class Kind:
    """A type, a few values of it that are apt to be confused, how they are ordered, and what tells apart
    those that are equal in that order."""

    type: SqlType
    values: list[Any]
    order: Callable[[Any], Any] | None = _same  # None = it has no order that is promised
    apart: Callable[[Any], Any] = lambda v: ()

    def sort_key(self, value: Any) -> Any:
        assert self.order is not None
        return self.order(value)

    def identity(self, value: Any) -> Any:
        """Equal exactly for equal values."""
        if value is None:
            return None
        return (self.order(value), self.apart(value)) if self.order else (self.apart(value),)


KINDS = [
    Kind(model.INT4, [-(2**31), -1, 0, 1, 2, 2**31 - 1]),
    Kind(model.INT8, [-(2**63), -1, 0, 1, 2**62, 2**63 - 1]),
    Kind(model.BOOL, [False, True]),
    Kind(model.FLOAT8, [math.nan, -math.nan, -0.0, 0.0, -1.5, 1.5, math.inf, -math.inf], _float_key),
    Kind(model.FLOAT4, [math.nan, -0.0, 0.0, -1.5, 1.5], _float_key),
    Kind(
        model.NUMERIC,
        [Decimal(s) for s in ("-20", "-18.5", "0", "0.000000000000000001", "18.5", "1e19")],
        _decimal_key,
    ),
    Kind(model.numeric(9, 2), [Decimal("-1.25"), Decimal("0.00"), Decimal("1.25")], _decimal_key),
    Kind(
        model.TEXT,
        ["", "a", "a ", "ab", "abcde", "abcdef", "b", "é", "😀", *("p" * n for n in (39, 40, 41, 50, 51))],
        lambda v: v.encode(),
    ),
    Kind(model.char(3), ["a  ", "a\t ", "ab ", "b  "], lambda v: v.rstrip(" ").encode()),
    Kind(model.BYTEA, [b"", b"\0", b"\0\0", b"a", b"a\0", b"a" * 41, b"a" * 41 + b"\0"]),
    Kind(model.UUID, [bytes(16), b"\x7f" * 16, b"\xff" * 16, bytes(15) + b"\1"]),
    Kind(model.JSONB, ["1", '{"a": 1}', '{"a": 2}', "null"], lambda v: v.encode()),
    Kind(
        model.INTERVAL,
        [
            {"months": m, "days": d, "micros": u}
            for m, d, u in [(0, 0, 0), (0, 1, 0), (0, 0, 86_400_000_000), (1, 0, 0), (0, 30, 0), (0, 1, -1)]
        ],
        _interval_length,
        lambda v: (v["months"], v["days"]),
    ),
    Kind(model.list_(model.INT4), [[], [None], [1], [1, 2], [2, 1]], None, tuple),
    Kind(
        model.map_(model.INT4),
        [[], [("a", 1), ("b", 2)], [("b", 2), ("a", 1)], [("a", None)]],
        None,
        lambda v: tuple(sorted(v)),
    ),
    Kind(
        model.record(Column("x", model.INT4), Column("y", model.TEXT)),
        [{"x": None, "y": None}, {"x": 1, "y": "a"}, {"x": 1, "y": None}],
        None,
        lambda v: tuple(v.values()),
    ),
]


@dataclass(frozen=True)
class Story:
    kinds: list[Kind]
    updates: list[tuple[Row, int, int]]  # in order of time, each (row, time) once

    def columns(self) -> tuple[Column, ...]:
        return tuple(Column(f"col{i}", k.type) for i, k in enumerate(self.kinds))

    def identity(self, row: Row, positions: tuple[int, ...] | range) -> tuple[Any, ...]:
        return tuple(self.kinds[i].identity(row[i]) for i in positions)

    def table(self) -> pa.Table:
        columns = [
            pa.array([row[i] for row, _, _ in self.updates], arrow_type(k.type))
            for i, k in enumerate(self.kinds)
        ]
        times, diffs = (pa.array([u[i] for u in self.updates], pa.int64()) for i in (1, 2))
        names = [*(f"c{i}" for i in range(len(columns))), "mz_timestamp", "mz_diff"]
        return pa.table([*columns, times, diffs], names=names)


@st.composite
def stories(draw: st.DrawFn) -> Story:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    # Few values of each column: keys that meet, and rows that agree in all but one.
    pools = [
        draw(st.lists(st.sampled_from([*k.values, None]), min_size=1, max_size=3, unique_by=repr))
        for k in kinds
    ]
    story = Story(kinds, [])
    time = draw(st.integers(0, 2**62))
    for _ in range(draw(st.integers(0, 4))):
        count = draw(st.integers(0, 12))
        seen: set[Any] = set()
        for _ in range(count):
            row = tuple(draw(st.sampled_from(pool)) for pool in pools)
            diff = draw(st.sampled_from([1, 1, 1, -1, -1, -1, 2, -2, 7]))
            if story.identity(row, range(len(kinds))) not in seen:
                seen.add(story.identity(row, range(len(kinds))))
                story.updates.append((row, time, diff))
        time += draw(st.integers(1, 1000))
    return story


def _value(v: Any, kind: Kind) -> Any:
    """A cell for comparison: equal exactly where the values are one."""
    return repr(kind.identity(v))


def cells(batch: pa.RecordBatch, kinds: list[Kind | None]) -> list[Row]:
    batch.validate(full=True)
    columns = [
        c.to_pylist() if k is None else [_value(v, k) for v in c.to_pylist()]
        for c, k in zip(batch.columns, kinds, strict=True)
    ]
    return list(zip(*columns, strict=True))


# -- the model


def sort_key(kind: Kind, value: Any, item: SortItem) -> Any:
    """For Python's sort; None stands first or last whatever the direction is."""
    if value is None:
        return (0,) if item.nulls_first else (2,)
    key = kind.sort_key(value)
    return (1, _Reversed(key) if item.descending else key)


@dataclass(frozen=True)
class _Reversed:
    key: Any

    def __lt__(self, other: _Reversed) -> bool:
        return other.key < self.key


def row_key(story: Story, row: Row) -> Any:
    return tuple(
        (1,) if v is None else (0, k.sort_key(v), k.apart(v)) for k, v in zip(story.kinds, row, strict=True)
    )


def enveloped(story: Story, keys: tuple[int, ...], debezium: bool) -> dict[int, list[Row]]:
    """By time, the rows (without the time) in order of the keys, as far as they have one."""
    groups: dict[int, dict[Any, list[tuple[Row, int]]]] = defaultdict(lambda: defaultdict(list))
    for row, time, diff in story.updates:
        groups[time][story.identity(row, keys)].append((row, diff))
    values = [i for i in range(len(story.kinds)) if i not in keys]
    nothing = [_value(None, story.kinds[i]) for i in values]

    def shown(row: Row, positions: list[int] | tuple[int, ...]) -> list[Any]:
        return [_value(row[i], story.kinds[i]) for i in positions]

    result: dict[int, list[Row]] = {}
    for time, found in groups.items():
        rows: list[tuple[Any, Row]] = []
        for members in found.values():
            members.sort(key=lambda m: m[1])
            match members:
                case [(v, 1)]:
                    state, before, after = "insert", nothing, shown(v, values)
                case [(v, -1)]:
                    state, before, after = "delete", shown(v, values), nothing
                case [(v1, -1), (v2, 1)]:
                    state, before, after = "upsert", shown(v1, values), shown(v2, values)
                case _:
                    state, before, after = "key violation", nothing, nothing
            key = members[0][0]
            if not debezium:
                state, before = ("upsert" if state == "insert" else state), []
            rows.append((key, (state, *shown(key, keys), *before, *after)))
        if all(story.kinds[i].order for i in keys):
            picked = Story([story.kinds[i] for i in keys], [])
            rows.sort(key=lambda r: row_key(picked, tuple(r[0][i] for i in keys)))
        result[time] = [row for _, row in rows]
    return result


# -- the tests

MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@MANY
@given(stories(), st.booleans(), st.data())
def test_envelopes(story: Story, debezium: bool, data: st.DataObject) -> None:
    places = range(len(story.kinds))
    keys = tuple(data.draw(st.lists(st.sampled_from(places), min_size=1, unique=True)))
    spec = Spec(story.columns(), OutputShape.DEBEZIUM if debezium else OutputShape.UPSERT, keys)
    values = [story.kinds[i] for i in places if i not in keys]
    kinds = [None, None, *(story.kinds[i] for i in keys), *values, *(values if debezium else [])]
    batch = shaped(story.table(), spec)
    assert batch.schema.names == [c.name for c in spec.output_columns]
    found: dict[int, list[Row]] = defaultdict(list)
    for time, *row in cells(batch, kinds):
        assert not found or time >= max(found)
        found[time].append(tuple(row))
    expected = enveloped(story, keys, debezium)
    if all(story.kinds[i].order for i in keys):
        assert found == expected
    else:
        assert {t: sorted(rows) for t, rows in found.items()} == (
            {t: sorted(rows) for t, rows in expected.items()}
        )


@MANY
@given(stories(), st.data())
def test_within_timestamp(story: Story, data: st.DataObject) -> None:
    ordered = [i for i, k in enumerate(story.kinds) if k.order]
    items = data.draw(
        st.lists(
            st.builds(SortItem, st.sampled_from([None, *ordered]), st.booleans(), st.booleans()), max_size=3
        )
    )
    spec = Spec(story.columns(), OutputShape.WITHIN_TIMESTAMP, order=tuple(items))
    found = cells(shaped(story.table(), spec), [None, None, *story.kinds])

    def key(update: tuple[Row, int, int]) -> Any:
        row, time, diff = update
        asked = [
            (1, _Reversed(diff) if item.descending else diff)
            if item.position is None
            else sort_key(story.kinds[item.position], row[item.position], item)
            for item in items
        ]
        return (time, asked, row_key(story, row) if len(ordered) == len(story.kinds) else ())

    def shown(update: tuple[Row, int, int]) -> Row:
        row, time, diff = update
        return (time, diff, *(_value(v, k) for v, k in zip(row, story.kinds, strict=True)))

    expected = [shown(u) for u in sorted(story.updates, key=key)]
    if len(ordered) == len(story.kinds):
        assert found == expected
    else:  # ties are in an order of their own
        assert sorted(found) == sorted(expected)
        asked = [0, 1] if any(i.position is None for i in items) else [0]
        asked += [i.position + 2 for i in items if i.position is not None and not _loose(story, i.position)]
        if not any(i.position is not None and _loose(story, i.position) for i in items):
            assert [[r[i] for i in asked] for r in found] == [[r[i] for i in asked] for r in expected]


def _loose(story: Story, position: int) -> bool:
    """Whether different values may be equal in the type's order."""
    return story.kinds[position].type.kind is model.Kind.INTERVAL


@MANY
@given(stories(), st.sampled_from(OutputShape), st.randoms(use_true_random=False))
def test_the_order_of_updates_does_not_matter(story: Story, output: OutputShape, random: Any) -> None:
    """Within one time they come as they come (but for plain rows, which stay as they are)."""
    envelope = output in (OutputShape.UPSERT, OutputShape.DEBEZIUM)
    spec = Spec(story.columns(), output, keys=(0,) if envelope else ())
    mixed = list(story.updates)
    random.shuffle(mixed)
    mixed.sort(key=lambda u: u[1])
    kinds = [*story.kinds]
    values = kinds[1:]
    if envelope:
        kinds = [kinds[0], *values, *(values if output is OutputShape.DEBEZIUM else [])]
    one, other = (
        cells(shaped(s.table(), spec), [None, None, *kinds]) for s in (story, Story(story.kinds, mixed))
    )
    if output is OutputShape.PLAIN:
        one, other = sorted(one), sorted(other)
    assert one == other
