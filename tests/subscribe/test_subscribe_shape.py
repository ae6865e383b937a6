"""The rows of each output: the examples and cases of the subscribe outputs' design, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidemill.errors import Internal
from tidemill.subscribe.shape import progress_row, shaped
from tidemill.subscribe.spec import OutputShape, SortItem, Spec
from tidemill.types import model
from tidemill.types.arrow import arrow_type
from tidemill.types.model import Column, SqlType
from tidemill.types.wire.oids import oid

INT = model.INT4
KV = (Column("key", INT), Column("value", INT))
ENVELOPES = (OutputShape.UPSERT, OutputShape.DEBEZIUM)

Update = tuple[tuple[Any, ...], int, int]  # row, time, diff


def table(types: Sequence[SqlType], updates: Sequence[Update]) -> pa.Table:
    columns = [pa.array([row[i] for row, _, _ in updates], arrow_type(t)) for i, t in enumerate(types)]
    names = [*(f"c{i}" for i in range(len(types))), "mz_timestamp", "mz_diff"]
    times = pa.array([time for _, time, _ in updates], pa.int64())
    diffs = pa.array([diff for _, _, diff in updates], pa.int64())
    return pa.table([*columns, times, diffs], names=names)


def rows(spec: Spec, *updates: Update) -> list[tuple[Any, ...]]:
    batch = shaped(table([c.type for c in spec.columns], updates), spec)
    batch.validate(full=True)
    assert batch.schema.names == [c.name for c in spec.output_columns]
    assert batch.schema.types == [arrow_type(c.type) for c in spec.output_columns]
    for column, described in zip(batch.columns, spec.output_columns, strict=True):
        assert described.nullable or not column.null_count
    return list(zip(*(_plain(column) for column in batch.columns), strict=True))


def _plain(column: pa.Array) -> list[Any]:
    """Dates and timestamps as numbers: infinity is none that Python knows."""
    if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        column = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
    return column.to_pylist()


def names(spec: Spec) -> list[str]:
    return [c.name for c in spec.output_columns]


# -- the design's examples


def test_within_timestamp_order_by() -> None:
    columns = (Column("c1", INT), Column("c2", INT), Column("c3", model.TEXT))
    order = (SortItem(0), SortItem(1, descending=True, nulls_first=False), SortItem(None))
    spec = Spec(columns, OutputShape.WITHIN_TIMESTAMP, order=order)
    assert names(spec) == ["mz_timestamp", "mz_diff", "c1", "c2", "c3"]
    assert rows(
        spec,
        ((2, 0, "new"), 100, 1),
        ((1, 2, "boo"), 100, 1),
        ((2, 0, "old"), 100, -1),
        ((1, 0, "data"), 100, 1),
        ((1, 2, "bar"), 100, -1),
        ((1, 20, "foo"), 100, 1),
    ) == [
        (100, 1, 1, 20, "foo"),
        (100, -1, 1, 2, "bar"),
        (100, 1, 1, 2, "boo"),
        (100, 1, 1, 0, "data"),
        (100, -1, 2, 0, "old"),
        (100, 1, 2, 0, "new"),
    ]


# What the examples do to kv_store; the fifth time ends as the document has it, with two values of one key.
STORY: list[Update] = [
    ((2, 4), 100, 1),
    ((1, 2), 100, 1),
    ((1, 10), 200, 1),
    ((1, 2), 200, -1),
    ((3, 6), 300, 1),
    ((3, 6), 400, -1),
    ((1, 10), 400, -1),
    ((2, 4), 400, -1),
    ((1, 7), 500, 1),
    ((1, 8), 500, 1),
]


def test_envelope_upsert() -> None:
    spec = Spec(KV, OutputShape.UPSERT, keys=(0,))
    assert names(spec) == ["mz_timestamp", "mz_state", "key", "value"]
    assert rows(spec, *STORY) == [
        (100, "upsert", 1, 2),
        (100, "upsert", 2, 4),
        (200, "upsert", 1, 10),
        (300, "upsert", 3, 6),
        (400, "delete", 1, None),
        (400, "delete", 2, None),
        (400, "delete", 3, None),
        (500, "key violation", 1, None),
    ]


def test_envelope_debezium() -> None:
    spec = Spec(KV, OutputShape.DEBEZIUM, keys=(0,))
    assert names(spec) == ["mz_timestamp", "mz_state", "key", "before_value", "after_value"]
    assert rows(spec, *STORY) == [
        (100, "insert", 1, None, 2),
        (100, "insert", 2, None, 4),
        (200, "upsert", 1, 2, 10),
        (300, "insert", 3, None, 6),
        (400, "delete", 1, 10, None),
        (400, "delete", 2, 4, None),
        (400, "delete", 3, 6, None),
        (500, "key violation", 1, None, None),
    ]


@pytest.mark.parametrize("output", ENVELOPES)
def test_times_may_come_one_by_one(output: OutputShape) -> None:
    """No state crosses times."""
    spec = Spec(KV, output, keys=(0,))
    apart = [row for t in range(100, 600, 100) for row in rows(spec, *(u for u in STORY if u[1] == t))]
    assert apart == rows(spec, *STORY)


# -- the four cases

CASES: list[tuple[list[tuple[int | None, int]], tuple[Any, ...], tuple[Any, ...]]] = [
    ([(5, 1)], ("upsert", 5), ("insert", None, 5)),
    ([(5, -1)], ("delete", None), ("delete", 5, None)),
    ([(5, -1), (6, 1)], ("upsert", 6), ("upsert", 5, 6)),
    ([(6, 1), (5, -1)], ("upsert", 6), ("upsert", 5, 6)),
    # NULL is a value.
    ([(None, 1)], ("upsert", None), ("insert", None, None)),
    ([(5, -1), (None, 1)], ("upsert", None), ("upsert", 5, None)),
    ([(None, -1), (6, 1)], ("upsert", 6), ("upsert", None, 6)),
    ([(None, -1)], ("delete", None), ("delete", None, None)),
    # Everything else.
    ([(5, 2)], ("key violation", None), ("key violation", None, None)),
    ([(5, -2)], ("key violation", None), ("key violation", None, None)),
    ([(5, 1), (6, 1)], ("key violation", None), ("key violation", None, None)),
    ([(5, -1), (6, -1)], ("key violation", None), ("key violation", None, None)),
    ([(5, -1), (6, 2)], ("key violation", None), ("key violation", None, None)),
    ([(5, -2), (6, 1)], ("key violation", None), ("key violation", None, None)),
    ([(5, -1), (6, 1), (7, 1)], ("key violation", None), ("key violation", None, None)),
    ([(5, -1), (6, 1), (7, -1)], ("key violation", None), ("key violation", None, None)),
    ([(5, 1), (6, -1), (7, 1), (8, -1)], ("key violation", None), ("key violation", None, None)),
]


@pytest.mark.parametrize(("updates", "upserted", "changed"), CASES)
def test_cases(
    updates: list[tuple[int | None, int]], upserted: tuple[Any, ...], changed: tuple[Any, ...]
) -> None:
    for output, (state, *values) in zip(ENVELOPES, (upserted, changed), strict=True):
        spec = Spec(KV, output, keys=(0,))
        # Alone, and between neighbours that it must not run into.
        around: list[Update] = [((0, 1), 9, 1), ((2, 1), 9, 1)]
        shown = rows(spec, *(((1, v), 9, d) for v, d in updates))
        assert shown == [(9, state, 1, *values)]
        between = rows(spec, *around, *(((1, v), 9, d) for v, d in updates), ((1, 99), 10, 1))
        assert (between[1], len(between)) == (shown[0], 4)


def test_a_violation_appears_persists_and_goes() -> None:
    """Each time is judged by its own updates alone."""
    spec = Spec(KV, OutputShape.UPSERT, keys=(0,))
    assert rows(
        spec,
        ((1, 1), 10, 1),
        ((1, 2), 20, 1),  # a second value: nothing of this time says so
        ((1, 3), 30, 1),
        ((1, 4), 30, 1),
        ((1, 1), 40, -1),
        ((1, 2), 40, -1),
        ((1, 3), 40, -1),
        ((1, 4), 50, -1),
        ((1, 5), 50, 1),
    ) == [
        (10, "upsert", 1, 1),
        (20, "upsert", 1, 2),
        (30, "key violation", 1, None),
        (40, "key violation", 1, None),
        (50, "upsert", 1, 5),
    ]


@pytest.mark.parametrize("output", ENVELOPES)
def test_underscore(output: OutputShape) -> None:
    spec = Spec(KV, output, keys=(0,), underscore=True)
    assert rows(spec, ((1, 1), 5, 2))[0][1] == "key_violation"


# -- keys

WIDE = (
    Column("a", INT),
    Column("b", model.TEXT),
    Column("c", INT, nullable=False),
    Column("d", model.TEXT),
)


def test_keys_come_first_in_their_own_order() -> None:
    upsert = Spec(WIDE, OutputShape.UPSERT, keys=(3, 1))
    assert names(upsert) == ["mz_timestamp", "mz_state", "d", "b", "a", "c"]
    updates: list[Update] = [
        ((1, "y", 1, "x"), 7, 1),
        ((2, "x", 2, "y"), 7, 1),
        ((3, "x", 3, "x"), 7, 1),
        ((4, "y", 4, "x"), 7, -1),
        ((5, "z", 5, "w"), 7, -1),
    ]
    assert rows(upsert, *updates) == [
        (7, "delete", "w", "z", None, None),
        (7, "upsert", "x", "x", 3, 3),
        (7, "upsert", "x", "y", 1, 1),
        (7, "upsert", "y", "x", 2, 2),
    ]
    debezium = Spec(WIDE, OutputShape.DEBEZIUM, keys=(3, 1))
    assert names(debezium) == (
        ["mz_timestamp", "mz_state", "d", "b", "before_a", "before_c", "after_a", "after_c"]
    )
    assert rows(debezium, *updates) == [
        (7, "delete", "w", "z", 5, 5, None, None),
        (7, "insert", "x", "x", None, None, 3, 3),
        (7, "upsert", "x", "y", 4, 4, 1, 1),
        (7, "insert", "y", "x", None, None, 2, 2),
    ]


def test_all_columns_are_the_key() -> None:
    spec = Spec(KV, OutputShape.DEBEZIUM, keys=(1, 0))
    assert rows(spec, ((1, 2), 3, 1), ((2, 1), 3, -1), ((3, 3), 3, 2)) == [
        (3, "delete", 1, 2),
        (3, "insert", 2, 1),
        (3, "key violation", 3, 3),
    ]


NAN = float("nan")
SAME_KEYS: list[tuple[SqlType, list[Any]]] = [
    (INT, [None, None]),
    (model.FLOAT8, [NAN, -NAN]),
    (model.FLOAT8, [0.0, -0.0]),
    (model.FLOAT4, [-0.0, 0.0]),
    (model.TEXT, ["x" * 100, "x" * 100]),
    (model.NUMERIC, [Decimal("1e18"), Decimal("1e18")]),
    (model.map_(INT), [[("a", 1), ("b", 2)], [("b", 2), ("a", 1)]]),
    (model.list_(model.TEXT), [["a", None], ["a", None]]),
    (model.list_(model.FLOAT8), [[NAN, 0.0], [NAN, -0.0]]),
    (model.record(Column("x", INT), Column("y", model.map_(INT))), [{"x": None, "y": []}] * 2),
    (model.INTERVAL, [{"months": 0, "days": 1, "micros": 0}] * 2),
]
OTHER_KEYS: list[tuple[SqlType, list[Any]]] = [
    (INT, [0, None]),
    (model.TEXT, ["", None]),
    (model.TEXT, ["x" * 100, "x" * 99 + "y"]),
    (model.TEXT, ["x" * 40, "x" * 41]),
    (model.BYTEA, [b"a", b"a\0"]),
    (model.BYTEA, [b"a" * 41, b"a" * 41 + b"\0"]),
    (model.FLOAT8, [NAN, None]),
    (model.list_(INT), [[], None]),
    (model.list_(INT), [[None], []]),
    (model.map_(INT), [[("a", 1)], [("a", None)]]),
    (model.record(Column("x", INT)), [{"x": None}, None]),
    (
        model.INTERVAL,
        [{"months": 0, "days": 1, "micros": 0}, {"months": 0, "days": 0, "micros": 86_400 * 10**6}],
    ),
    (model.INTERVAL, [{"months": 1, "days": 0, "micros": 0}, {"months": 0, "days": 30, "micros": 0}]),
    (model.JSONB, ['{"a": 1}', '{"a": 2}']),
    (SqlType(model.Kind.CHAR), ["a", "a "]),
]


@pytest.mark.parametrize(("t", "keys"), SAME_KEYS, ids=lambda v: str(v)[:40])
def test_equal_by_identity(t: SqlType, keys: list[Any]) -> None:
    spec = Spec((Column("v", INT), Column("k", t)), OutputShape.DEBEZIUM, keys=(1,))
    [(time, state, _, before, after)] = rows(spec, ((1, keys[0]), 5, -1), ((2, keys[1]), 5, 1))
    assert (time, state, before, after) == (5, "upsert", 1, 2)


@pytest.mark.parametrize("diffs", [(-1, 1), (1, -1)])
def test_a_key_is_spelled_as_in_the_row_that_came(diffs: tuple[int, int]) -> None:
    spec = Spec((Column("k", model.FLOAT8), Column("v", INT)), OutputShape.UPSERT, keys=(0,))
    [(_, _, key, value)] = rows(spec, ((0.0, 1), 5, diffs[0]), ((-0.0, 2), 5, diffs[1]))
    assert (repr(key), value) == (("0.0", 1) if diffs[0] == 1 else ("-0.0", 2))


@pytest.mark.parametrize(("t", "keys"), OTHER_KEYS, ids=lambda v: str(v)[:40])
def test_not_equal(t: SqlType, keys: list[Any]) -> None:
    spec = Spec((Column("v", INT), Column("k", t)), OutputShape.DEBEZIUM, keys=(1,))
    found = rows(spec, ((1, keys[0]), 5, -1), ((2, keys[1]), 5, 1))
    assert sorted((state, before, after) for _, state, _, before, after in found) == (
        sorted([("delete", 1, None), ("insert", None, 2)], key=lambda r: r[0])
    )


ORDERS: list[tuple[SqlType, list[Any]]] = [
    (model.BOOL, [False, True, None]),
    (model.INT2, [-(2**15), -1, 0, 1, 2**15 - 1, None]),
    (model.INT8, [-(2**63), -1, 0, 1, 2**63 - 1, None]),
    (model.UINT8, [Decimal(0), Decimal(2**63), Decimal(2**64 - 1)]),
    (model.FLOAT8, [float("-inf"), -1e300, -1.5, -5e-324, 0.0, 5e-324, 1.5, float("inf"), NAN, None]),
    (model.FLOAT4, [float("-inf"), -1.5, 0.0, 1.5, float("inf"), NAN, None]),
    (model.NUMERIC, [Decimal(s) for s in ("-1e19", "-18.5", "-0.5", "0", "0.5", "9.3", "18.5", "1e19")]),
    (model.numeric(10, 2), [Decimal("-10.25"), Decimal("-9.99"), Decimal("0.00"), Decimal("10.25")]),
    (
        model.TEXT,
        ["", " ", "A", "Z", "a", "aa", "ab", "b", "user-1", "user-10", "user-2", "ÿ", "﷐", "😀", None],
    ),
    (model.TEXT, ["p" * 60 + c for c in "abc"]),
    (model.char(4), ["a   ", "a\t  ", "a!  ", "aa  "]),
    (model.BYTEA, [b"", b"\0", b"\0\0", b"\1", b"a", b"a\0", b"a\xff", b"\xff"]),
    (model.UUID, [bytes(16), bytes(15) + b"\1", b"\x7f" * 16, b"\x80" + bytes(15), b"\xff" * 16]),
    (model.DATE, [-(2**31), -1, 0, 2**31 - 1]),
    (model.TIMESTAMP, [-(2**63), -1, 0, 1, 2**63 - 1]),
    (model.MZ_TIMESTAMP, [0, 5, 2**63 - 1]),
    (
        model.INTERVAL,
        [
            {"months": m, "days": d, "micros": u}
            for m, d, u in [
                (-(2**31), 0, 0),
                (0, -1, 0),
                (0, 0, -1),
                (0, 0, 0),
                (0, 1, -1),
                (0, 0, 86_400 * 10**6),
                (0, 1, 0),
                (0, 29, 0),
                (0, 30, 0),
                (1, 0, 0),
                (2**31 - 1, 0, 0),
            ]
        ],
    ),
]


@pytest.mark.parametrize(("t", "ordered"), ORDERS, ids=lambda v: str(v)[:40])
def test_order_of_keys(t: SqlType, ordered: list[Any]) -> None:
    spec = Spec((Column("k", t), Column("v", INT)), OutputShape.UPSERT, keys=(0,))
    mixed = [*range(1, len(ordered), 2), *range(0, len(ordered), 2)][::-1]
    found = rows(spec, *(((ordered[i], i), 5, 1) for i in mixed))
    assert [v for _, _, _, v in found] == list(range(len(ordered)))


@pytest.mark.parametrize(("t", "ordered"), ORDERS, ids=lambda v: str(v)[:40])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("nulls_first", [False, True])
def test_order_within_timestamp(t: SqlType, ordered: list[Any], descending: bool, nulls_first: bool) -> None:
    """Two of each, told apart by a column behind it; by the intervals that are as long as another too."""
    order = (SortItem(1, descending, nulls_first),)
    spec = Spec((Column("v", INT), Column("k", t)), OutputShape.WITHIN_TIMESTAMP, order=order)
    found = rows(spec, *(((v, k), 5, 1) for v in (2, 1) for k in ordered))
    nulls: list[Any] = [None] * (None in ordered)
    expected: list[Any] = [k for k in ordered if k is not None]
    if descending:
        expected.reverse()
    expected = nulls + expected if nulls_first else expected + nulls
    if t.kind is model.Kind.INTERVAL:  # '24:00' = '1 day' in this order: the column behind decides first
        assert [_length(k) for _, _, _, k in found[::2]] == [_length(k) for k in expected]
    else:
        assert [repr(k) for _, _, _, k in found[::2]] == [repr(_stored(k, t)) for k in expected]
        assert [v for _, _, v, _ in found] == [1, 2] * len(expected)


def _stored(value: Any, t: SqlType) -> Any:
    return _plain(pa.array([value], arrow_type(t)))[0]


def _length(interval: dict[str, int]) -> int:
    return (interval["months"] * 30 + interval["days"]) * 86_400 * 10**6 + interval["micros"]


def test_ties_by_row_then_diff() -> None:
    spec = Spec(
        WIDE, OutputShape.WITHIN_TIMESTAMP, order=(SortItem(None, descending=True, nulls_first=True),)
    )
    assert rows(
        spec,
        ((None, "a", 1, None), 5, 1),
        ((2, "b", 1, "x"), 5, 1),
        ((2, "b", 1, None), 5, 1),
        ((2, "a", 9, "x"), 5, 1),
        ((9, "a", 9, "x"), 5, 3),
        ((1, "z", 9, "x"), 5, -1),
        ((0, "z", 0, "x"), 6, -1),
    ) == [
        (5, 3, 9, "a", 9, "x"),
        (5, 1, 2, "a", 9, "x"),
        (5, 1, 2, "b", 1, "x"),
        (5, 1, 2, "b", 1, None),
        (5, 1, None, "a", 1, None),
        (5, -1, 1, "z", 9, "x"),
        (6, -1, 0, "z", 0, "x"),
    ]


# -- plain, progress, types


def test_plain() -> None:
    spec = Spec(KV)
    assert names(spec) == ["mz_timestamp", "mz_diff", "key", "value"]
    assert rows(spec, ((2, 1), 1, 1), ((1, None), 1, -3), ((1, 1), 2, 1)) == [
        (1, 1, 2, 1),
        (1, -3, 1, None),
        (2, 1, 1, 1),
    ]


@pytest.mark.parametrize("output", OutputShape)
def test_progress(output: OutputShape) -> None:
    envelope = output in ENVELOPES
    spec = Spec(WIDE, output, keys=(2,) if envelope else (), progress=True)
    assert names(spec)[:3] == ["mz_timestamp", "mz_progressed", "mz_state" if envelope else "mz_diff"]
    [row] = rows(spec, ((1, "b", 3, "d"), 5, 1))
    assert row[:2] == (5, False)
    batch = progress_row(6, spec)
    batch.validate(full=True)
    assert batch.schema == shaped(table([c.type for c in WIDE], []), spec).schema
    [row] = batch.to_pylist()
    assert list(row.values()) == [6, True] + [None] * (len(spec.output_columns) - 2)
    assert all(c.nullable for c in spec.output_columns[2:])


def test_no_progress_row_without_progress() -> None:
    with pytest.raises(Internal):
        progress_row(6, Spec(KV))


@pytest.mark.parametrize("output", OutputShape)
def test_no_updates(output: OutputShape) -> None:
    spec = Spec(KV, output, keys=(0,) if output in ENVELOPES else ())
    assert rows(spec) == []


def test_updates_in_chunks_and_slices() -> None:
    spec = Spec(KV, OutputShape.UPSERT, keys=(0,))
    whole = table([INT, INT], [((0, 0), 1, 1), *STORY])
    cut = pa.concat_tables([whole.slice(1, 3), whole.slice(4, 0), whole.slice(4)])
    assert shaped(cut, spec) == shaped(table([INT, INT], STORY), spec)


def test_updates_of_another_relation_are_refused() -> None:
    with pytest.raises(Internal):
        shaped(table([INT], [((1,), 1, 1)]), Spec(KV))


def test_types_as_clients_see_them() -> None:
    spec = Spec(KV, OutputShape.UPSERT, keys=(0,), progress=True)
    assert [oid(c.type) for c in spec.output_columns[:3]] == [1700, 16, 25]
    assert oid(Spec(KV).output_columns[1].type) == 20


def test_specs_are_values() -> None:
    """Equal subscriptions find each other by their spec."""
    spec = Spec(KV, OutputShape.UPSERT, keys=(0,))
    assert {spec: 1}[Spec(KV, OutputShape.UPSERT, keys=(0,))] == 1
    assert spec != Spec(KV, OutputShape.UPSERT, keys=(1,))
    assert [o.switch for o in OutputShape] == [
        None,
        "enable_within_timestamp_order_by_in_subscribe",
        "enable_envelope_upsert_in_subscribe",
        "enable_envelope_debezium_in_subscribe",
    ]
