"""Rows with progress become complete times: whatever the pieces they come in, and wherever the stream is
cut."""

from __future__ import annotations

from itertools import combinations, pairwise

import pyarrow as pa
import pytest
from client_streams import History, Row, histories, progress, table
from hypothesis import given
from hypothesis import strategies as st

from tidemill.client.assemble import Assembler, CompleteTime
from tidemill.client.errors import ProtocolViolation, TooLarge
from tidemill.client.request import Resume

Told = tuple[int, bool, list[tuple[object, ...]]]


def told(complete: list[CompleteTime]) -> list[Told]:
    return [(c.time, c.snapshot, [tuple(row.values()) for row in c.rows.to_pylist()]) for c in complete]


def expected(history: History, as_of: int, *, snapshot: bool) -> list[Told]:
    later: list[Told] = [
        (time, False, [*updates])
        for time, updates in sorted(history.updates.items())
        if as_of < time < history.end
    ]
    return [(as_of, True, [*history.at(as_of)]), *later] if snapshot else later


def cut_up(rows: list[Row], cuts: tuple[int, ...]) -> list[pa.Table]:
    bounds = [0, *cuts, len(rows)]
    return [table(rows[a:b]) for a, b in pairwise(bounds)]


SMALL = History({11: [(1, 1, "a")], 13: [(-1, 1, "a"), (1, 1, "b")], 14: [(2, 2, None)]}, 16, {12})


@pytest.mark.parametrize("snapshot", [True, False])
def test_every_way_to_cut_the_rows_gives_the_same(snapshot: bool) -> None:
    rows = list(SMALL.stream(11, snapshot=snapshot))
    wanted = expected(SMALL, 11, snapshot=snapshot)
    places = range(1, len(rows))
    for count in range(len(rows)):
        for cuts in combinations(places, count):
            assembler = Assembler(snapshot=snapshot)
            found = [c for piece in cut_up(rows, cuts) for c in assembler.feed(piece)]
            assert told(found) == wanted, cuts
            assert assembler.after == 15


def test_nothing_comes_before_its_time_is_complete() -> None:
    for upto in range(1, 20):
        rows = list(SMALL.stream(11, snapshot=True))[:upto]
        last = max(time for time, is_progress, *_ in rows if is_progress)
        assembler = Assembler(snapshot=True)
        assert all(c.time < last for c in assembler.feed(table(rows)))


@given(histories(), st.booleans(), st.integers(9, 45), st.data())
def test_cut_streams_leave_no_gap_and_no_repeat(
    history: History, snapshot: bool, as_of: int, data: st.DataObject
) -> None:
    """The connection is cut again and again, at any row; each time the next stream is asked for where
    `resume` says."""
    assembler = Assembler(snapshot=snapshot)
    found: list[CompleteTime] = []
    for _ in range(data.draw(st.integers(0, 6))):
        rows = _next_stream(history, assembler, as_of, snapshot=snapshot)
        broken = data.draw(st.integers(0, len(rows)))
        pieces = data.draw(st.lists(st.integers(0, broken), max_size=3).map(sorted))
        for piece in cut_up(rows[:broken], tuple(pieces)):
            found += assembler.feed(piece)
        assembler.cut()
    found += assembler.feed(table(_next_stream(history, assembler, as_of, snapshot=snapshot)))
    assert told(found) == expected(history, as_of, snapshot=snapshot)


def _next_stream(history: History, assembler: Assembler, as_of: int, *, snapshot: bool) -> list[Row]:
    resume = assembler.resume
    if resume is None:
        return list(history.stream(as_of, snapshot=snapshot))
    return list(history.stream(resume.after, snapshot=False))


def test_the_place_to_go_on_from() -> None:
    with_snapshot = Assembler(snapshot=True)
    with_snapshot.feed(table([progress(11), (11, False, 1, 1, "a")]))
    assert with_snapshot.resume is None, "the snapshot is not complete: begin again"
    with_snapshot.feed(table([progress(12)]))
    assert with_snapshot.resume == Resume(11)
    without = Assembler(snapshot=False)
    without.feed(table([progress(11)]))
    assert without.resume == Resume(11), "what is at AS OF itself was never wanted"
    without.feed(table([progress(20)]))
    assert without.resume == Resume(19)


def test_an_empty_snapshot_is_one() -> None:
    assembler = Assembler(snapshot=True)
    (complete,) = assembler.feed(table([progress(11), progress(12)]))
    assert complete.snapshot and complete.time == 11 and complete.rows.num_rows == 0
    assert complete.rows.column_names == ["c2", "c3", "c4"]


def test_the_end_of_a_stream_completes_what_came() -> None:
    assembler = Assembler(snapshot=True)
    assert assembler.feed(table([progress(11), (11, False, 1, 1, "a")])) == []
    assert told(assembler.finish()) == [(11, True, [(1, 1, "a")])]
    assert assembler.finish() == []


def test_beginning_anew_forgets_the_place() -> None:
    assembler = Assembler(snapshot=False)
    assembler.feed(table([progress(11), (12, False, 1, 1, "a")]))
    assembler.begin_anew()
    assert assembler.resume is None
    (complete,) = assembler.feed(table([progress(30), (30, False, 1, 1, "b"), progress(31)]))
    assert complete.snapshot and complete.time == 30


@pytest.mark.parametrize(
    "rows",
    [
        [(11, False, 1, 1, "a")],
        [progress(11), progress(10)],
        [progress(11), (10, False, 1, 1, "a")],
        [progress(11), (13, False, 1, 1, "a"), (12, False, 1, 1, "a")],
        [progress(11), (13, False, 1, 1, "a"), progress(14), (13, False, 1, 1, "a")],
    ],
)
def test_a_server_that_breaks_its_word_is_found(rows: list[Row]) -> None:
    for cut in range(len(rows)):
        assembler = Assembler(snapshot=False)
        with pytest.raises(ProtocolViolation):
            for piece in cut_up(rows, (cut,)):
                assembler.feed(piece)


def test_a_stream_that_goes_on_elsewhere_is_found() -> None:
    assembler = Assembler(snapshot=False)
    assembler.feed(table([progress(11), progress(15)]))
    assembler.cut()
    with pytest.raises(ProtocolViolation, match="from 14 on began at 13"):
        assembler.feed(table([progress(13)]))


def test_what_is_not_complete_has_a_limit() -> None:
    assembler = Assembler(snapshot=True, max_bytes=1000)
    assembler.feed(table([progress(11)]))
    with pytest.raises(TooLarge, match=r"larger than max_bytes \(1000\)"):
        for n in range(1000):
            assembler.feed(table([(11, False, 1, n, "a")]))
    whole = [progress(11), *((11, False, 1, n, "a") for n in range(1000)), progress(12)]
    with pytest.raises(TooLarge):
        Assembler(snapshot=True, max_bytes=1000).feed(table(whole))
    many = [progress(11), *(row for n in range(12, 200) for row in ((n, False, 1, n, "a"), progress(n + 1)))]
    assert len(Assembler(snapshot=False, max_bytes=1000).feed(table(many))) == 188, "each of them is small"
