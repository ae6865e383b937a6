"""Server-sent events of a subscription: one for each complete time, ids that never promise too much."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from support.sse import Event, parse_events
from tidemill.server.http.events import Events, RunRows, runs
from tidemill.types.model import BOOL, INT8, JSONB, MZ_TIMESTAMP, TEXT, Column

COLUMNS = (
    Column("mz_timestamp", MZ_TIMESTAMP),
    Column("mz_progressed", BOOL),
    Column("mz_diff", INT8),
    Column("a", TEXT),
)
# A row of a subscription: its time, and what it holds; None is progress.
Row = tuple[int, int, str] | tuple[int, None, None]


def batch(*rows: Row) -> pa.RecordBatch:
    times, diffs, texts = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = [
        pa.array(times, pa.int64()),
        pa.array([diff is None for diff in diffs], pa.bool_()),
        pa.array(diffs, pa.int64()),
        pa.array(texts, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[c.name for c in COLUMNS])


def fed(events: Events, *batches: pa.RecordBatch) -> list[Event]:
    encoder = RunRows(COLUMNS)
    return parse_events(b"".join(events.rows(b, encoder.encode(b)) for b in batches))


def shown(found: list[Event]) -> list[tuple[str, str | None, Any]]:
    return [(e.kind, e.id, json.loads(e.data)) for e in found]


def progress(time: int) -> Row:
    return (time, None, None)


def test_a_snapshot_and_its_changes() -> None:
    events = Events(snapshot=True, progress=False)
    found = fed(
        events,
        batch(progress(10)),
        batch((10, 1, "x"), (10, 1, "y")),
        batch(progress(11)),
        batch((12, -1, "x"), (14, 1, "z"), (14, 1, "w"), progress(20)),
        batch(progress(21)),
    )
    assert shown(found) == [
        ("snapshot", "11", {"time": 10, "rows": [[1, "x"], [1, "y"]]}),
        ("changes", "13", {"time": 12, "rows": [[-1, "x"]]}),
        ("changes", "20", {"time": 14, "rows": [[1, "z"], [1, "w"]]}),
    ]
    assert events.heartbeat() == b": alive\nid: 21\n\n"
    assert shown(parse_events(events.end())) == [("end", "21", {"time": 21})]


def test_an_empty_snapshot_is_told() -> None:
    events = Events(snapshot=True, progress=False)
    assert events.heartbeat() == b": alive\n\n"
    assert shown(fed(events, batch(progress(10)))) == []
    # Nothing was told of the snapshot yet: there is nothing to come back with.
    assert events.heartbeat() == b": alive\n\n"
    assert shown(fed(events, batch(progress(11)))) == [("snapshot", "11", {"time": 10, "rows": []})]


def test_without_a_snapshot_there_are_changes_alone() -> None:
    events = Events(snapshot=False, progress=True)
    # Whoever comes back was told all before 11; its AS OF is 10, and an id of 10 would tell time 10 twice.
    assert shown(fed(events, batch(progress(10)))) == []
    assert events.heartbeat() == b": alive\n\n"
    found = fed(events, batch(progress(11)), batch((12, 1, "x"), progress(13)))
    assert shown(found) == [
        ("progress", "11", {"time": 11}),
        ("changes", "13", {"time": 12, "rows": [[1, "x"]]}),
        ("progress", "13", {"time": 13}),
    ]


def test_a_large_time_comes_in_parts_and_only_the_last_has_an_id() -> None:
    events = Events(snapshot=True, progress=False)
    found = fed(
        events,
        batch(progress(10)),
        batch((10, 1, "a")),
        batch((10, 1, "b")),
    )
    assert shown(found) == [("snapshot", None, {"time": 10, "more": True, "rows": [[1, "a"]]})]
    # A part is on its way: a heartbeat must not say that it was told.
    assert events.heartbeat() == b": alive\n\n"
    assert shown(fed(events, batch(progress(11)))) == [("snapshot", "11", {"time": 10, "rows": [[1, "b"]]})]


def test_times_beyond_a_double_are_strings() -> None:
    events = Events(snapshot=False, progress=False)
    large = 2**62
    found = fed(events, batch(progress(large)), batch((large + 1, 1, "x"), progress(large + 2)))
    assert shown(found) == [("changes", str(large + 2), {"time": str(large + 1), "rows": [[1, "x"]]})]


@pytest.mark.parametrize("text", ["\n", "\r\n\r\n", "a\ndata: b", "\u2028\u2029", "\0" * 3, "id: 5", '"\\'])
def test_no_value_breaks_out_of_its_event(text: str) -> None:
    events = Events(snapshot=False, progress=False)
    found = fed(events, batch(progress(10)), batch((11, 1, text), progress(12)))
    assert shown(found) == [("changes", "12", {"time": 11, "rows": [[1, text]]})]
    (told,) = parse_events(events.error({"message": text}))
    assert json.loads(told.data) == {"message": text}


def test_jsonb_is_on_one_line() -> None:
    columns = (*COLUMNS[:3], Column("j", JSONB))
    rows = batch((11, 1, '{"a": "x\\ny", "b": [1, null]}'))
    assert b"\n" not in bytes(RunRows(columns).encode(rows))


def test_the_first_event_says_what_rows_are() -> None:
    text = Events(snapshot=True, progress=False).begin(COLUMNS, ["a"], 2000)
    assert text.startswith(b"retry: 2000\n")
    (event,) = parse_events(text)
    assert event.kind == "columns"
    assert json.loads(event.data) == {
        "columns": [{"name": "mz_diff", "type": "bigint"}, {"name": "a", "type": "text"}],
        "key": ["a"],
    }


@pytest.mark.parametrize("seed", range(30))
def test_however_batches_are_cut_the_story_is_the_same(seed: int) -> None:
    """And at every id, what was told is the history before it: all of it, and nothing twice."""
    rng = random.Random(seed)
    rows: list[Row] = [progress(100)]
    history: list[tuple[int, int, str]] = []
    time = 100
    for _ in range(20):
        for n in range(rng.randrange(4)):
            rows.append((time, 1, f"{time}-{n}"))
            history.append((time, 1, f"{time}-{n}"))
        time += rng.randrange(1, 4)
        if rng.random() < 0.6:
            rows.append(progress(time))
    rows.append(progress(time))
    events = Events(snapshot=True, progress=rng.random() < 0.5)
    batches: list[pa.RecordBatch] = []
    at = 0
    while at < len(rows):
        size = rng.randrange(1, 6)
        batches.append(batch(*rows[at : at + size]))
        at += size
    told: Counter[tuple[int, int, str]] = Counter()
    parts: Counter[tuple[int, int, str]] = Counter()
    for event in fed(events, *batches):
        data = json.loads(event.data)
        if event.kind != "progress":
            parts.update((data["time"], *row) for row in data["rows"])
        assert (event.id is None) == ("more" in data)
        if event.id is not None:
            told += parts
            parts.clear()
            assert told == Counter(r for r in history if r[0] < int(event.id)), event
    assert not parts and told == Counter(history)


def test_runs_of_a_batch() -> None:
    assert runs(batch()) == []
    found = runs(batch((1, 1, "a"), (1, 1, "b"), progress(1), (2, 1, "c"), progress(3), progress(3)))
    assert found == [(0, 2, 1, False), (2, 1, 1, True), (3, 1, 2, False), (4, 2, 3, True)]
