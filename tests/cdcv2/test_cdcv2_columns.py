"""Columns and Python values recover alike, whatever the batches, the hash and the sizes at which things
move."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cdcv2_oracle import stream
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.cdcv2 import (
    ColumnRecovery,
    InvalidMessage,
    Message,
    Progress,
    Recovery,
    UpdateColumns,
    Updates,
    batches,
    coalesced,
    column_recovery,
    column_stash,
    recover_columns,
)
from tidemill.cdcv2.columns import distinct_times
from tidemill.errors import LimitExceeded

SCHEMA = pa.schema([("name", pa.string()), ("size", pa.int64())])
SIDES = {0: 7, 2: 4, 3: 3}


def as_columns(message: Message) -> UpdateColumns | Progress:
    if isinstance(message, Progress):
        return message
    names = [d if isinstance(d, str) else d[0] for d, _, _ in message.updates]
    data = pa.record_batch([pa.array(names), pa.array([ord(n[0]) for n in names], pa.int64())], schema=SCHEMA)
    times = np.array([t for _, t, _ in message.updates], np.int64)
    return UpdateColumns(data, times, np.array([d for _, _, d in message.updates], np.int64), message.origin)


def _as_rows(columns: UpdateColumns) -> list[Any]:
    return sorted((data[0], time, diff) for data, time, diff in columns.rows())


def follow_both(messages: list[Message]) -> None:
    rows, columns = Recovery(), ColumnRecovery(SCHEMA)
    for message in messages:
        expected = rows.push(message)
        found = columns.push(as_columns(message))
        assert [(sorted(u), f) for u, f in expected] == [(_as_rows(u), f) for u, f in found]
        for updates, _ in found:
            times = updates.times.tolist()
            assert times == sorted(times)
        assert (rows.frontier, rows.stashed) == (columns.frontier, columns.stashed)
    assert columns.frontier == [] and columns.stashed == 0


@pytest.fixture(params=["as it is", "few keys", "small steps"])
def extremes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with a hash that nearly always collides, and with every threshold within reach."""
    if request.param == "few keys":
        real = column_recovery.keys_of

        def poor(batch: UpdateColumns) -> np.ndarray:
            return real(batch) & np.uint64(3)

        monkeypatch.setattr(column_recovery, "keys_of", poor)
    if request.param != "as it is":
        monkeypatch.setattr(column_stash, "_UNSORTED", 3)
        monkeypatch.setattr(column_stash, "_SMALL", 1)
        monkeypatch.setattr(batches, "_FETCHED", 3)


@pytest.mark.usefixtures("extremes")
@pytest.mark.parametrize(("kind", "rounds"), [(0, 60), (2, 40), (3, 30)])
def test_as_python_values(kind: int, rounds: int) -> None:
    for n in range(rounds):
        follow_both(stream(Random(f"{kind} {n}"), kind, SIDES[kind], size=n % 30, cuts=5))


@pytest.mark.chaos
@pytest.mark.usefixtures("extremes")
@pytest.mark.parametrize("kind", [0, 2, 3])
def test_as_python_values_long(kind: int) -> None:
    seed = Random().randrange(2**32)
    for n in range(1500):
        follow_both(stream(Random(f"{seed} {kind} {n}"), kind, SIDES[kind], size=n % 60, cuts=8, writers=3))


def test_many_rows_in_large_batches() -> None:
    rng = np.random.default_rng(1)
    count = 50_000
    ids = np.concatenate([np.arange(count), np.arange(count)])
    rng.shuffle(ids)
    names = pa.array([f"row {i}" for i in range(count)])
    recovery = ColumnRecovery(SCHEMA)
    released: list[np.ndarray] = []
    largest = 0
    for first in range(0, len(ids), 7000):
        part = ids[first : first + 7000]
        data = pa.record_batch([names.take(pa.array(part)), pa.array(part)], schema=SCHEMA)
        for time in (first // 7000 * 10, first // 7000 * 10):
            recovery.push(Progress([time], [time + 10], [(t, count // 1000) for t in range(time, time + 10)]))
        for updates, _ in recovery.push(UpdateColumns.of(data, part % 1000)):
            released.append(updates.data.column(1).to_numpy())
        largest = max(largest, recovery.stashed)
    [(updates, frontier)] = recovery.push(Progress([150], [], [(t, count // 1000) for t in range(150, 1000)]))
    released.append(updates.data.column(1).to_numpy())
    assert frontier == [] and recovery.stashed == 0 and largest <= count
    assert np.array_equal(np.sort(np.concatenate(released)), np.arange(count))


def test_spilling_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(column_stash, "_SMALL", 10)
    rng = np.random.default_rng(2)
    recovery = ColumnRecovery(SCHEMA, memory_bytes=2000)
    released: list[tuple[Any, ...]] = []
    ids = np.concatenate([np.arange(2000)] * 2)
    rng.shuffle(ids)
    for part in np.array_split(ids, 50):
        data = pa.record_batch([pa.array([f"row {i}" for i in part]), pa.array(part)], schema=SCHEMA)
        recovery.push(UpdateColumns.of(data, part % 20))
        assert recovery.stashed_memory <= 2000 + data.nbytes * 2
    assert not list(tmp_path.iterdir()), "spill files have no names"
    assert recovery.spilled_bytes > 0
    for time in range(20):
        for updates, _ in recovery.push(Progress([time], [time + 1] if time < 19 else [], [(time, 100)])):
            released += updates.rows()
    assert sorted(d[1] for d, _, _ in released) == list(range(2000))
    assert recovery.spilled_bytes == 0


def test_limits_have_names() -> None:
    recovery = ColumnRecovery(SCHEMA, max_stashed=5)
    with pytest.raises(LimitExceeded, match="more than 5 stashed updates"):
        recovery.push(as_columns(Updates([(n, 3, 1) for n in "abcdef"])))
    # The message was taken in; what releases it also ends the error.
    [(updates, _)] = recovery.push(Progress([0], [4], [(3, 6)]))
    assert len(updates) == 6
    recovery = ColumnRecovery(SCHEMA, memory_bytes=10, spill_bytes=10)
    with pytest.raises(LimitExceeded, match="more than 10 bytes of stashed updates on disk"):
        recovery.push(as_columns(Updates([("a", 3, 1)])))


def test_one_identity() -> None:
    """NaN, zeros of both signs, nulls and maps in any order are recognised when they come again."""
    schema = pa.schema(
        [
            ("f", pa.float64()),
            ("m", pa.map_(pa.string(), pa.int64())),
            ("l", pa.list_(pa.field("element", pa.string()))),
            ("d", pa.decimal128(38, 18)),
        ]
    )

    def batch(f: list[Any], m: list[Any]) -> UpdateColumns:
        rows = len(f)
        data = pa.record_batch(
            [
                pa.array(f, pa.float64()),
                pa.array(m, schema.field("m").type),
                pa.array([["a", None]] * rows, schema.field("l").type),
                pa.array([None] * rows, schema.field("d").type),
            ],
            schema=schema,
        )
        return UpdateColumns.of(data, [1] * rows)

    messages = [
        batch([math.nan, 0.0, None], [[("a", 1), ("b", 2)], None, []]),
        batch([math.nan, -0.0, None], [[("b", 2), ("a", 1)], None, []]),
        Progress([0], [], [(1, 3)]),
    ]
    [(updates, _)] = recover_columns(messages, schema)
    assert len(updates) == 3


@pytest.mark.parametrize("kind", [0, 2])
def test_joined_messages_say_the_same(kind: int) -> None:
    for n in range(20):
        rng = Random(f"joined {n}")
        messages = [as_columns(m) for m in stream(rng, kind, SIDES[kind], size=20)]
        fewer = list(coalesced(messages, rows=rng.choice([1, 5, 1000])))
        assert len(fewer) <= len(messages)
        assert sorted(u for out, _ in recover_columns(fewer, SCHEMA) for u in out.rows()) == sorted(
            u for out, _ in recover_columns(messages, SCHEMA) for u in out.rows()
        )
    bad = as_columns(Updates([("b", -1, 1)], "offset 2"))
    good = [as_columns(Updates([(n, 1, 1)], f"offset {i}")) for i, n in enumerate("acd")]
    assert [m.origin for m in coalesced([good[0], bad, *good[1:]])] == [
        "offset 0",
        "offset 2",
        "offset 1 to offset 2",
    ]


def test_other_columns_are_refused() -> None:
    recovery = ColumnRecovery(SCHEMA)
    other = pa.record_batch([pa.array(["a"])], names=["name"])
    with pytest.raises(InvalidMessage, match="other columns than the stream's"):
        recovery.push(UpdateColumns.of(other, [1]))
    with pytest.raises(InvalidMessage, match="time out of range: -4"):
        recovery.push(as_columns(Updates([("a", -4, 1)])))
    recovery.push(as_columns(Updates([("a", 4, 1)])))
    with pytest.raises(InvalidMessage, match="times of two kinds"):
        recovery.push(as_columns(Updates([("a", (4, 4), 1)])))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**63 - 1), st.integers(0, 3))))
def test_distinct_times(rows: list[tuple[int, int, int]]) -> None:
    times, codes = distinct_times(np.array(rows, np.int64).reshape(-1, 3))
    assert [times[c] for c in codes.tolist()] == rows
    assert len(times) == len(set(times))
