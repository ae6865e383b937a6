"""The table that a live table holds, against a Counter."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from client_streams import History, Update, histories
from hypothesis import given
from hypothesis import strategies as st

from tidemill.client import state as module
from tidemill.client.assemble import CompleteTime
from tidemill.client.errors import ProtocolViolation
from tidemill.client.forms import ClientField
from tidemill.client.live import LiveState
from tidemill.client.state import Counted, RelationState
from tidemill.errors import InvalidValue, UndefinedObject
from tidemill.types import model

SCHEMA = pa.schema([("c0", pa.int64()), ("c1", pa.string())])
FIELDS = (ClientField("mz_diff", model.INT8), ClientField("id", model.INT8), ClientField("name", model.TEXT))


def counted(updates: list[Update]) -> Counted:
    keys, values = [u[1] for u in updates], [u[2] for u in updates]
    rows = pa.table([pa.array(keys, pa.int64()), pa.array(values, pa.string())], schema=SCHEMA)
    return Counted(rows, np.array([u[0] for u in updates], np.int64))


def as_counter(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in rows.to_pylist())


def model_at(history: History, time: int) -> Counter[tuple[Any, ...]]:
    return Counter({(key, value): n for n, key, value in history.at(time)})


@given(histories(), st.sampled_from([0, 3, 1 << 16]), st.data())
def test_it_holds_what_the_changes_come_to(history: History, merge: int, data: st.DataObject) -> None:
    before, module.MERGE_ROWS = module.MERGE_ROWS, merge
    try:
        state = RelationState(SCHEMA.empty_table(), [0])
        for time, updates in sorted(history.updates.items()):
            state.apply(counted(updates))
            wanted = model_at(history, time)
            assert state.size == wanted.total()
            if data.draw(st.booleans()):
                for key in range(5):
                    found = as_counter(state.find([pa.array([key])]))
                    assert found == Counter({row: n for row, n in wanted.items() if row[0] == key})
            if data.draw(st.booleans()):
                assert as_counter(state.rows()) == wanted
        assert as_counter(state.rows()) == model_at(history, history.end)
    finally:
        module.MERGE_ROWS = before


@given(histories(), st.integers(9, 45), st.integers(9, 45))
def test_a_new_snapshot_tells_how_it_differs(history: History, first: int, second: int) -> None:
    state = RelationState(SCHEMA.empty_table())
    state.replace(counted(history.at(first)))
    changes = state.replace(counted(history.at(second)))
    old, new = model_at(history, first), model_at(history, second)
    diffs = {tuple(r.values()): n for r, n in zip(changes.rows.to_pylist(), changes.counts, strict=True)}
    assert diffs == {row: new[row] - old[row] for row in old | new if new[row] != old[row]}
    assert as_counter(state.rows()) == new


def test_a_row_that_was_never_there_cannot_go() -> None:
    state = RelationState(SCHEMA.empty_table())
    with pytest.raises(ProtocolViolation, match="not there"):
        state.apply(counted([(-1, 1, "a")]))
    state = RelationState(SCHEMA.empty_table())
    state.apply(counted([(1, 1, "a")]))
    state.apply(counted([(-1, 1, "b"), (1, 2, "a")]))
    with pytest.raises(ProtocolViolation, match="not there"):
        state.rows()


def complete(time: int, updates: list[Update], *, snapshot: bool = False) -> CompleteTime:
    part = counted(updates)
    rows = part.rows.add_column(0, pa.field("d", pa.int64()), pa.array(part.counts))
    return CompleteTime(time, rows, snapshot=snapshot)


def test_changes_by_key() -> None:
    live = LiveState(["id"])
    assert (live.time, len(live), live.rows(), live.get(1), live.lag) == (None, 0, [], None, None)
    first = live.take(complete(10, [(1, 1, "a"), (1, 2, "b"), (1, 3, None)], snapshot=True), FIELDS)
    assert first.snapshot and not first.renewed and len(first) == 3
    assert (live.time, len(live), live.columns) == (10, 3, ["id", "name"])
    changes = live.take(complete(12, [(-1, 1, "a"), (1, 1, "c"), (-1, 2, "b"), (1, 4, "d")]), FIELDS)
    assert changes.inserted.rows() == [{"id": 4, "name": "d"}]
    assert changes.updated.rows() == [{"id": 1, "name": "c"}]
    assert changes.deleted.rows() == [{"id": 2, "name": "b"}]
    assert changes.removed.rows() == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    assert changes.added.rows() == [{"id": 1, "name": "c"}, {"id": 4, "name": "d"}]
    assert changes.rows()[0] == {"mz_diff": -1, "id": 1, "name": "a"}
    assert live.get(1) == {"id": 1, "name": "c"} and live.get(2) is None
    live.advance(20)
    assert live.time == 20
    again = live.take(complete(30, [(1, 1, "c"), (1, 9, "z")], snapshot=True), FIELDS)
    assert again.renewed and not again.snapshot
    assert again.inserted.rows() == [{"id": 9, "name": "z"}]
    assert {row["id"] for row in again.deleted.rows()} == {3, 4}


def test_a_key_that_is_none_is_told() -> None:
    live = LiveState(["nr"])
    with pytest.raises(UndefinedObject, match='column "nr" does not exist'):
        live.take(complete(10, [(1, 1, "a")], snapshot=True), FIELDS)
    with pytest.raises(InvalidValue, match="needs a key"):
        LiveState([]).get(1)
    live = LiveState(["id"])
    live.take(complete(10, [(1, 1, "a")], snapshot=True), FIELDS)
    with pytest.raises(InvalidValue, match="the key has 1 columns"):
        live.get(1, 2)
    with pytest.raises(InvalidValue, match="cannot be a key"):
        live.get("one")


def test_copies_of_a_row_are_rows() -> None:
    live = LiveState(["id"])
    live.take(complete(10, [(3, 1, "a")], snapshot=True), FIELDS)
    assert len(live) == 3 and live.rows() == [{"id": 1, "name": "a"}] * 3
    assert live.get(1) == {"id": 1, "name": "a"}
