"""The course of a subscription against a server that is made up: cuts anywhere, refusals, lost history."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from client_streams import History, Row, histories, table
from hypothesis import given
from hypothesis import strategies as st

from tidemill.client import course as module
from tidemill.client.assemble import CompleteTime
from tidemill.client.course import Course, Dial, News, Pause
from tidemill.client.errors import (
    ClientError,
    ColumnsChanged,
    ConnectionFailed,
    ConnectionLost,
    GaveUp,
    HistoryGone,
    ServerError,
)
from tidemill.client.forms import ClientField
from tidemill.client.link import Ready, Waits
from tidemill.client.request import request
from tidemill.client.retry import Retry
from tidemill.types import model

FIELDS = (
    ClientField("mz_timestamp", model.MZ_TIMESTAMP),
    ClientField("mz_progressed", model.BOOL),
    ClientField("mz_diff", model.INT8),
    ClientField("id", model.INT8),
    ClientField("name", model.TEXT),
)


@dataclass
class Server:
    """Says what its history says. `faults` has one item for each attempt to come: an error that the statement
    ends with, or after how many rows the connection is cut; None: it lives."""

    history: History
    faults: list[int | ClientError | None] = field(default_factory=list[int | ClientError | None])
    # Without AS OF it begins here; before `since` nothing is known.
    now: int = 20
    since: int = 0
    fields: tuple[ClientField, ...] = FIELDS
    statements: list[str] = field(default_factory=list[str])

    def rows(self, sql: str) -> list[Row]:
        as_of = re.search(r"AS OF (\d+)", sql)
        start = self.now if as_of is None else int(as_of[1])
        if start < self.since:
            raise HistoryGone("could not find a valid timestamp for the query")
        return list(self.history.stream(start, snapshot="SNAPSHOT = true" in sql))


class FakeLink:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._fault = server.faults.pop(0) if server.faults else None
        self._pieces: list[Row] = []
        self.closed = False

    def describe(self, sql: str) -> Waits[tuple[ClientField, ...]]:
        yield Ready(0)
        if isinstance(self._fault, ClientError):
            raise self._fault
        return self._server.fields

    def copy(self, sql: str) -> Waits[None]:
        yield Ready(0)
        self._server.statements.append(" ".join(sql.split()))
        self._pieces = self._server.rows(sql)

    def block(self, enough: object) -> Waits[Sequence[Row]]:
        yield Ready(0)
        if isinstance(self._fault, int) and self._fault <= 0:
            raise ConnectionLost("cut")
        size = 3 if not isinstance(self._fault, int) else min(3, self._fault)
        found, self._pieces = self._pieces[:size], self._pieces[size:]
        if isinstance(self._fault, int):
            self._fault -= size
        return found

    def close(self) -> None:
        self.closed = True


class FakeRows:
    options = "FORMAT binary"

    def decode(self, rows: list[Row]) -> pa.Table:
        return table(rows)

    def progressed(self, row: Row) -> bool:
        return row[1]


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(module, "Link", FakeLink)
    monkeypatch.setattr(module, "rows_of", lambda fields: FakeRows())  # pyright: ignore[reportUnknownLambdaType]


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def follow(course: Course, server: Server, clock: Clock, refuse: int = 0) -> Iterator[News]:
    """Drive a course to its end; the first `refuse` attempts to connect after the first one fail."""
    steps = course.steps()
    answer: Any = None
    dials = 0
    while True:
        try:
            step = steps.send(answer)
            answer = None
            while isinstance(step, Dial):
                dials += 1
                if 1 < dials <= 1 + refuse:
                    step = steps.throw(ConnectionFailed("nobody answers"))
                else:
                    step = steps.send(server)  # pyright: ignore[reportArgumentType]
        except StopIteration:
            return
        if isinstance(step, Pause):
            assert step.error.transient
            clock.now += step.seconds
        elif isinstance(step, News):
            yield step


def told(found: list[CompleteTime]) -> list[tuple[int, bool, list[tuple[object, ...]]]]:
    return [(c.time, c.snapshot, [tuple(row.values()) for row in c.rows.to_pylist()]) for c in found]


def run(server: Server, *, renew: bool = False, refuse: int = 0, **options: Any) -> list[CompleteTime]:
    clock = Clock()
    course = Course(request("t", **options), Retry(first=1, give_up_after=60), renew=renew, clock=clock)
    return [c for news in follow(course, server, clock, refuse) for c in news.complete]


@given(histories(), st.lists(st.integers(0, 25), max_size=8), st.booleans(), st.integers(9, 45))
def test_cuts_anywhere_leave_no_gap_and_no_repeat(
    history: History, cuts: list[int], snapshot: bool, as_of: int
) -> None:
    options: dict[str, Any] = {"snapshot": snapshot, "as_of": as_of}
    whole = run(Server(history), **options)
    assert told(run(Server(history, [*cuts]), **options)) == told(whole)


SMALL = History({11: [(1, 1, "a")], 23: [(-1, 1, "a"), (1, 1, "b")], 34: [(2, 2, None)]}, 40)


def test_where_it_goes_on() -> None:
    server = Server(SMALL, [5])
    assert [c.time for c in run(server, refuse=3)] == [20, 23, 34]
    begin, again = server.statements
    assert "SNAPSHOT = true" in begin and "AS OF" not in begin
    assert "SNAPSHOT = false" in again and "AS OF 20" in again


def test_what_the_server_refuses_is_raised() -> None:
    with pytest.raises(ServerError, match="no such"):
        run(Server(SMALL, [ServerError("no such relation", sqlstate="42P01")]))
    starting = ServerError("the server is starting", sqlstate="57P03")
    starting.transient = True
    assert len(run(Server(SMALL, [starting, starting]))) == 3


def test_it_gives_up_when_nothing_arrives() -> None:
    with pytest.raises(GaveUp, match="no connection for 60 seconds") as e:
        run(Server(SMALL, [5]), refuse=10**6)
    assert isinstance(e.value.__cause__, ConnectionFailed)


def test_what_arrives_between_two_failures_makes_them_two() -> None:
    """A day of connections that are cut now and then is no reason to give up."""
    clock = Clock()
    # Each connection brings something and is cut.
    server = Server(SMALL, [5, 5, 5, 5])
    course = Course(request("t"), Retry(give_up_after=60), clock=clock)
    for _ in follow(course, server, clock):
        clock.now += 100
    assert course.reconnects >= 2


def test_beginning_anew_asks_for_now_whatever_was_asked_for_first() -> None:
    server, clock = Server(SMALL, [5]), Clock()
    course = Course(request("t", as_of=20), Retry(), renew=True, clock=clock)
    renewed = follow(course, server, clock)
    assert next(renewed).complete[0].time == 20
    server.since, server.now = 30, 35
    (complete,) = [c for news in renewed for c in news.complete]
    assert complete.snapshot and complete.time == 35


def test_history_that_is_gone() -> None:
    server = Server(SMALL, [5])
    gone = _course(server, renew=False)
    assert next(gone).complete[0].time == 20
    server.since, server.now = 30, 35
    with pytest.raises(HistoryGone, match="cannot go on from 20"):
        list(gone)
    server = Server(SMALL, [5])
    renewed = _course(server, renew=True)
    assert next(renewed).complete[0].time == 20
    server.since, server.now = 30, 35
    (complete,) = [c for news in renewed for c in news.complete]
    assert complete.snapshot and complete.time == 35
    with pytest.raises(HistoryGone, match="could not find"):
        run(Server(SMALL, since=30), as_of=5, renew=True)


def _course(server: Server, *, renew: bool) -> Iterator[News]:
    clock = Clock()
    return follow(Course(request("t"), Retry(), renew=renew, clock=clock), server, clock)


def test_other_columns() -> None:
    server = Server(SMALL, [5])
    news = _course(server, renew=True)
    next(news)
    server.fields = (*FIELDS, ClientField("more", model.TEXT))
    with pytest.raises(ColumnsChanged, match="not those of before") as e:
        list(news)
    assert "more text" in str(e.value)


def test_leaving_it_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    links: list[FakeLink] = []

    def make(server: Server) -> FakeLink:
        links.append(FakeLink(server))
        return links[-1]

    monkeypatch.setattr(module, "Link", make)
    steps = Course(request("t"), Retry()).steps()
    assert isinstance(next(steps), Dial)
    assert isinstance(steps.send(Server(SMALL)), Ready)  # pyright: ignore[reportArgumentType]
    steps.close()
    assert [link.closed for link in links] == [True]
