"""Messages of PubNub as rows, over a server that speaks its protocol: the contract, what is received once
whatever happens, what is caught up, and what is missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sources.conformance import CHECKS, Subject
from support.pubnub import SUBSCRIBE_KEY, TICKS, PubNubServer, pubnub_server
from tidemill.catalog.sidecars import INBOX_DESC
from tidemill.engine.ddl.connection_kinds import CONNECTION_KINDS
from tidemill.errors import TidemillError
from tidemill.persist.environment import Environment
from tidemill.persist.shard import Shard
from tidemill.sources.contract import UpstreamError, UpstreamSource
from tidemill.sources.definition import open_source
from tidemill.sources.offsets import Offsets
from tidemill.sources.pubnub import catch_up, receiver
from tidemill.sources.pubnub import source as pubnub_source
from tidemill.sources.pubnub.messages import Cursor
from tidemill.sources.pubnub.service import Service
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN

WAIT_SECONDS = 60.0
ALL = [{"what": what, "as": None} for what in ("key", "partition", "offset", "timestamp")]


@pytest.fixture
def service() -> Iterator[PubNubServer]:
    with pubnub_server() as server:
        yield server


class Reading:
    """A source and its inbox; `again` is another process with the same inbox."""

    def __init__(self, folder: Path, server: PubNubServer, **definition: Any) -> None:
        self.environment = Environment.open(str(folder))
        self.inbox: Shard = self.environment.create_shard("inbox", INBOX_DESC)
        self.server = server
        asked = Service(server.connection)
        cursor = asked.subscribe(["a"], [], Cursor(0)).cursor
        output = {"name": "o", "value": {"format": "text"}, "include": [], "envelope": {"kind": "none"}}
        output |= definition.pop("output", {})
        self.definition: dict[str, Any] = {
            "kind": "pubnub",
            "connection": server.connection,
            "channels": ["a"],
            "groups": [],
            "cursor": [cursor.token, cursor.region],
            "history_seconds": 86_400,
            "outputs": [output],
            "started": 0,
            **definition,
        }
        self.source = self.opened()

    def opened(self) -> UpstreamSource:
        source = open_source(self.definition)
        source.attach(self.inbox, self.environment)
        return source

    def again(self) -> None:
        self.source.close()
        self.source = self.opened()

    def close(self) -> None:
        self.source.close()
        self.environment.close()

    def rows(self, lower: Offsets | None = None, upper: Offsets | None = None) -> list[tuple[Any, ...]]:
        """The rows of a range, and the texts of errors."""
        lower, upper = lower or Offsets(), upper or self.source.frontier(0)
        reader, pieces = self.source.plan(lower, upper, 1, frozenset({0}))
        found: list[tuple[Any, ...]] = []
        for piece in pieces:
            for batch in reader.read(piece):
                assert set(batch.rows.column(DIFF_COLUMN).to_pylist()) == {1}
                names = [n for n in batch.rows.schema.names if n not in (DIFF_COLUMN, ERROR_COLUMN)]
                values = list(zip(*(batch.rows.column(n).to_pylist() for n in names), strict=True))
                errors: list[str | None] = [None] * len(values)
                if ERROR_COLUMN in batch.rows.schema.names:
                    errors = batch.rows.column(ERROR_COLUMN).to_pylist()
                found += [(e,) if e is not None else v for v, e in zip(values, errors, strict=True)]
        return sorted(found, key=str)

    def settle(self, *wanted: Any) -> None:
        """Until the rows are these, each once, and no others come."""
        expected = sorted([w if isinstance(w, tuple) else (w,) for w in wanted], key=str)
        self.until(lambda: self.rows() == expected, self.rows)

    def until(self, done: Callable[[], bool], shown: Callable[[], object] = object) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            try:
                if done():
                    return
            except UpstreamError as e:
                if not e.transient:
                    raise
            time.sleep(0.02)
        raise AssertionError(shown())


@pytest.fixture
def reading(tmp_path: Path, service: PubNubServer) -> Iterator[Callable[..., Reading]]:
    made: list[Reading] = []

    def make(**definition: Any) -> Reading:
        made.append(Reading(tmp_path, service, **definition))
        return made[0]

    yield make
    for one in made:
        one.close()


# -- the contract


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    with pubnub_server() as server:
        found = Reading(
            tmp_path_factory.mktemp("inbox"), server, channels=["a", "b"], output={"include": ALL}
        )
        for n in range(40):
            server.publish("ab"[n % 2], f"message {n}", region=1 + n % 2)
        found.until(lambda: len(found.rows()) == 40)
        yield Subject("pubnub", found.opened, (0, 1), sparse=True, unordered=True, examples=10)
        found.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(subject: Subject, check: Callable[[Subject], None]) -> None:
    check(subject)


# -- receiving


def test_messages_are_received_in_the_order_of_their_region(
    reading: Callable[..., Reading], service: PubNubServer
) -> None:
    found = reading(output={"include": ALL[:3]})
    first = service.publish("a", "one")
    other = service.publish("a", "two", region=2)
    found.settle(("one", "a", 1, first), ("two", "a", 2, other))
    upper = found.source.frontier(0)
    assert upper == Offsets({1: first + 1, 2: other + 1})
    # What is no message is left out.
    service.publish("a", "signal", kind=1)
    service.publish("elsewhere", "not asked for")
    last = service.publish("a", "three")
    found.settle(("one", "a", 1, first), ("two", "a", 2, other), ("three", "a", 1, last))
    assert found.rows(upper) == [("three", "a", 1, last)]


PAYLOAD = '{"n": 1.10, "big": 123456789012345678901234567890.5, "s": "\\u00e9\\ud83d\\ude00"}'


@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("text", [PAYLOAD, "text", "null"]),
        ("json", ['{"n": 1.1, "s": "é😀", "big": 123456789012345678901234567890.5}', '"text"', "null"]),
    ],
)
def test_payloads_are_what_was_published(
    reading: Callable[..., Reading], service: PubNubServer, form: str, wanted: list[str]
) -> None:
    found = reading(output={"value": {"format": form}})
    service.publish("a", None, raw=PAYLOAD)
    service.publish("a", "text")
    service.publish("a", None, raw="null")
    found.settle(*wanted)


def test_it_goes_on_where_it_was_and_nothing_comes_twice(
    reading: Callable[..., Reading], service: PubNubServer
) -> None:
    found = reading()
    service.publish("a", "before")
    found.settle("before")
    found.source.close()
    service.publish("a", "meanwhile")
    found.again()
    service.publish("a", "after")
    found.settle("before", "meanwhile", "after")
    # A connection that breaks, a server that is ill, another region that says the last ones again.
    service.break_next(2)
    service.publish("a", "broken")
    found.settle("before", "meanwhile", "after", "broken")
    assert service.histories == 0
    service.move(2, repeats=3)
    service.publish("a", "moved", region=2)
    found.settle("before", "meanwhile", "after", "broken", "moved")
    # What had not come to the other region yet is in the history.
    assert service.histories


def test_a_message_that_comes_late_is_there_behind_what_was_read(
    reading: Callable[..., Reading], service: PubNubServer
) -> None:
    """Its region's later one was read already: it is no error, and no range that was read changes."""
    found = reading(output={"include": [ALL[2]]})
    early = service.now()
    later = service.publish("a", "later")
    found.settle(("later", later))
    upper = found.source.frontier(0)
    service.publish("a", "early", token=early)
    found.settle(("later", later), ("early", early))
    assert found.rows(Offsets(), upper) == [("later", later)]
    assert found.rows(upper) == [("early", early)]


def test_groups_and_patterns(reading: Callable[..., Reading], service: PubNubServer) -> None:
    service.groups["g"] = ["x", "y"]
    found = reading(channels=["s.*"], groups=["g"], output={"include": [ALL[0]]})
    for channel in ("x", "y", "s.1", "s.2", "z", "a"):
        service.publish(channel, "m")
    found.settle(("m", "x"), ("m", "y"), ("m", "s.1"), ("m", "s.2"))


# -- what was missed


def test_a_slow_subscriber_reads_the_history(reading: Callable[..., Reading], service: PubNubServer) -> None:
    """The service keeps a hundred messages; the history has all."""
    found = reading(channels=["a", "b"], output={"include": [ALL[0]]})
    found.settle()
    found.source.close()
    for n in range(250):
        service.publish("a", f"m{n}")
    service.publish("b", "one")
    found.again()
    found.settle(*[(f"m{n}", "a") for n in range(250)], ("one", "b"))
    assert service.histories
    found.again()
    service.publish("a", "next")
    found.settle(*[(f"m{n}", "a") for n in range(250)], ("one", "b"), ("next", "a"))


def test_channels_that_share_answers_are_read_from_the_history(
    reading: Callable[..., Reading], service: PubNubServer
) -> None:
    """Each has lost messages, and no answer has a hundred of one of them."""
    found = reading(channels=["a", "b"], output={"include": [ALL[0]]})
    found.settle()
    found.source.close()
    for n in range(250):
        service.publish("ab"[n % 2], f"m{n}")
    found.again()
    found.settle(*[(f"m{n}", "ab"[n % 2]) for n in range(250)])


def test_a_long_interruption_reads_the_history_of_every_channel(
    reading: Callable[..., Reading], service: PubNubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In windows, each of which is there for good: a failure in between loses and repeats nothing."""
    monkeypatch.setattr(catch_up, "MAX_WINDOW_BYTES", 3000)
    service.groups["g"] = ["x"]
    found = reading(groups=["g"], output={"include": [ALL[0]]})
    service.publish("a", "first")
    found.settle(("first", "a"))
    found.source.close()
    wanted = [("first", "a")]
    for n in range(60):
        service.pass_time(30)
        channel = "ax"[n % 2]
        service.publish(channel, f"m{n}", region=1 + n % 2)
        wanted.append((f"m{n}", channel))
    service.pass_time(25 * 60)
    found.again()
    service.history_status = 503
    found.until(lambda: "503" in _error(found))
    service.history_status = 200
    found.settle(*wanted)
    assert {region for region, _ in found.source.frontier(0).items()} == {0, 1}


def _error(found: Reading) -> str:
    try:
        found.source.frontier(0)
    except UpstreamError as e:
        return e.primary
    return ""


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"history_seconds": 0}, "HISTORY is off"),
        ({}, "the history cannot be read (Message Persistence is not enabled)"),
    ],
)
def test_a_gap_is_an_error_row(
    reading: Callable[..., Reading], service: PubNubServer, change: dict[str, Any], why: str
) -> None:
    service.history = False
    found = reading(**change)
    service.publish("a", "before")
    found.settle("before")
    found.source.close()
    for n in range(150):
        service.publish("a", f"m{n}")
    found.again()
    found.until(lambda: len(found.rows()) == 102, found.rows)
    (gap,) = [row[0] for row in found.rows() if "missing" in row[0]]
    primary, _, place = gap.partition("\n")
    assert primary.startswith("messages may be missing: ") and primary.endswith(why)
    assert place.startswith('Channel "a", timetokens between ')
    # It is there once, and says the same when it is read again.
    found.again()
    service.publish("a", "after")
    found.until(lambda: len(found.rows()) == 103, found.rows)
    assert [row[0] for row in found.rows() if "missing" in row[0]] == [gap]


def test_a_history_that_does_not_reach_back_is_a_gap(
    reading: Callable[..., Reading], service: PubNubServer
) -> None:
    found = reading(history_seconds=3600, channels=["a", "s.*"])
    service.publish("a", "before")
    found.settle("before")
    found.source.close()
    service.pass_time(3600)
    service.publish("a", "kept")
    service.pass_time(1800)
    found.again()
    found.until(lambda: len(found.rows()) == 4, found.rows)
    texts = [row[0] for row in found.rows()]
    assert {"before", "kept"} < set(texts)
    assert any("does not reach back" in text for text in texts)
    assert any('Channel "s.*"' in text and "a pattern" in text for text in texts)


def test_the_start_is_where_the_definition_says(
    reading: Callable[..., Reading], service: PubNubServer
) -> None:
    service.publish("a", "before")
    start = service.publish("a", "start")
    service.pass_time(3600)
    found = reading(cursor=[start - 1, None])
    service.publish("a", "after")
    found.settle("start", "after")


def test_a_new_source_is_not_there_before_it_has_caught_up(
    reading: Callable[..., Reading], service: PubNubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catch_up, "MAX_WINDOW_BYTES", 1000)
    monkeypatch.setattr(pubnub_source, "FIRST_SECONDS", 0.1)
    start = service.now()
    for n in range(30):
        service.publish("a", f"m{n}")
        service.pass_time(60)
    service.history_seconds = 0.2
    found = reading(cursor=[start, None])
    with pytest.raises(UpstreamError, match="catching up with PubNub's history"):
        found.source.frontier(0)
    found.until(lambda: len(found.rows()) > 0)
    assert len(found.rows()) == 30


# -- bad input


def test_a_timetoken_from_the_future_is_an_error_row(
    reading: Callable[..., Reading], service: PubNubServer
) -> None:
    found = reading()
    future = service.now() + 86_400 * TICKS
    service.publish("a", "future", token=future)
    last = service.publish("a", "now")
    found.until(lambda: len(found.rows()) == 2, found.rows)
    (error,) = [row[0] for row in found.rows() if row != ("now",)]
    assert error.startswith(f"the timetoken {future} is in the future: the service is at ")
    assert error.endswith(f'\nChannel "a", region 1, timetoken {future}.')
    # Those behind it are not pushed into the future.
    assert found.source.frontier(0)[1] <= last + 2


def test_a_cursor_from_the_future_is_an_error_of_the_source(
    reading: Callable[..., Reading], service: PubNubServer
) -> None:
    future = service.now() + 86_400 * TICKS
    found = reading(cursor=[future, 1])
    with pytest.raises(UpstreamError, match=f"the timetoken {future} is in the future"):
        found.source.frontier(0)
    service.pass_time(86_400)
    found.until(lambda: _raised(found) is None)


def test_messages_that_cannot_be_decoded(reading: Callable[..., Reading], service: PubNubServer) -> None:
    form = {"format": "csv", "columns": ["x", "y"], "delimiter": ",", "header": False}
    found = reading(output={"value": form})
    service.publish("a", "1,2")
    bad = service.publish("a", {"x": 1})
    found.until(lambda: len(found.rows()) == 2, found.rows)
    (error,) = [row[0] for row in found.rows() if len(row) == 1]
    assert error.startswith("Decode error: ")
    assert error.endswith(f'\nChannel "a", region 1, timetoken {bad}.')


def test_dead_letters_are_beside_the_rows(reading: Callable[..., Reading], service: PubNubServer) -> None:
    form = {"format": "csv", "columns": ["x", "y"], "delimiter": ",", "header": False}
    found = reading(output={"value": form, "dead_letter": True})
    letters = {**found.definition["outputs"][0], "name": "o#2", "dead_letters": True}
    found.definition["outputs"].append(letters)
    found.again()
    service.publish("a", "1,2")
    bad = service.publish("a", "nothing")
    found.until(lambda: found.source.frontier(0)[1] == bad + 1)
    upper = found.source.frontier(0)
    assert found.rows() == [("1", "2")]
    reader, pieces = found.source.plan(Offsets(), upper, 1, frozenset({0, 1}))
    batches = [b for piece in pieces for b in reader.read(piece)]
    (letter,) = [row for b in batches if b.output == 1 for row in b.rows.to_pylist()]
    assert letter["error"].startswith("Decode error: ")
    assert (letter["partition"], int(letter["offset"])) == (1, bad)
    assert (letter["key"], letter["value"]) == (b"a", b"nothing")
    assert sum(batch.records for batch in batches) == 2


@pytest.mark.parametrize(
    ("change", "primary", "sqlstate"),
    [
        ({"subscribe_key": "other"}, "PubNub refuses the request with status 400", "22023"),
        ({"auth_key": "wrong"}, "PubNub refuses access to the channels", "42501"),
        ({"endpoint": "http://127.0.0.1:1"}, "PubNub cannot be reached", "58000"),
    ],
)
def test_what_is_wrong_is_told(
    reading: Callable[..., Reading],
    service: PubNubServer,
    change: dict[str, str],
    primary: str,
    sqlstate: str,
) -> None:
    found = reading()
    service.auth = "right"
    found.definition["connection"] = {**service.connection, "auth_key": "right", **change}
    found.again()
    with pytest.raises(UpstreamError) as caught:
        found.until(lambda: bool(_raised(found)))
        raise _raised(found) or AssertionError
    assert (caught.value.primary, caught.value.sqlstate) == (primary, sqlstate)
    found.definition["connection"] = {**service.connection, "auth_key": "right"}
    found.again()
    service.publish("a", "heard")
    found.settle("heard")


def _raised(found: Reading) -> UpstreamError | None:
    try:
        found.source.frontier(0)
    except UpstreamError as e:
        return e
    return None


def test_a_connection_is_checked(service: PubNubServer) -> None:
    kind = CONNECTION_KINDS["pubnub"]
    kind.check(service.connection)
    kind.reach(service.connection)
    for options, primary in (
        ({}, "a PubNub connection needs SUBSCRIBE KEY"),
        ({"subscribe_key": SUBSCRIBE_KEY, "endpoint": "ftp://x"}, "ENDPOINT is no address of a server"),
        ({"subscribe_key": SUBSCRIBE_KEY, "endpoint": {"secret": "u1"}}, "ENDPOINT cannot be a secret"),
    ):
        with pytest.raises(TidemillError, match=primary):
            kind.check(options)


# -- limits


def test_what_is_not_taken_is_not_asked_for(
    reading: Callable[..., Reading], service: PubNubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of a receiver that nobody empties is bounded; what it leaves is in the history."""
    monkeypatch.setattr(receiver, "MAX_QUEUED_BYTES", 20_000)
    found = reading()
    found.settle()
    for n in range(400):
        service.publish("a", f"m{n}" + "x" * 200)
        time.sleep(0.001)
    time.sleep(0.3)
    polls = service.polls
    time.sleep(0.3)
    assert service.polls == polls
    found.settle(*[f"m{n}" + "x" * 200 for n in range(400)])


def test_identities_are_forgotten_from_the_oldest_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catch_up, "MAX_KNOWN", 3)
    known = catch_up.Known()
    for token in (5, 3, 7, 8, 9):
        known.remember("a", token)
    assert known.floor == 5
