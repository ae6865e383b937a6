"""What is asked of the server, in its words; how long is waited between attempts; where the server is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

from tidemill.client.request import Resume, request, target
from tidemill.client.retry import Pauses, Retry
from tidemill.client.target import conninfo, failed
from tidemill.errors import InvalidValue


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("bids", "bids"),
        (" public.bids ; ", "public.bids"),
        ('db."a b"."c""d"', 'db."a b"."c""d"'),
        ("SELECT 1", "(SELECT 1\n)"),
        ("SELECT 1 -- one;", "(SELECT 1 -- one\n)"),
        ("VALUES (1)", "(VALUES (1)\n)"),
        ("1st", "(1st\n)"),
        ("subscribers", "subscribers"),
    ],
)
def test_a_name_or_a_query(text: str, wanted: str) -> None:
    assert target(text) == wanted


@pytest.mark.parametrize("text", ["SUBSCRIBE t", "subscribe (SELECT 1)", 'Subscribe\n"T" WITH (PROGRESS)'])
def test_a_whole_statement_is_too_much(text: str) -> None:
    with pytest.raises(InvalidValue, match="take the query alone"):
        target(text)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, "SUBSCRIBE t WITH (SNAPSHOT = true, PROGRESS = true)"),
        (
            {"key": ["id", 'a"b'], "as_of": 5, "up_to": 9},
            (
                "SUBSCRIBE t WITH (SNAPSHOT = true, PROGRESS = true) AS OF 5 UP TO 9 "
                'ENVELOPE UPSERT (KEY ("id", "a""b"))'
            ),
        ),
        (
            {"key": ["id"], "envelope": "debezium", "snapshot": False, "as_of": "earliest"},
            (
                "SUBSCRIBE t WITH (SNAPSHOT = false, PROGRESS = true) AS OF EARLIEST "
                'ENVELOPE DEBEZIUM (KEY ("id"))'
            ),
        ),
        ({"key": ["id"], "envelope": "diff"}, "SUBSCRIBE t WITH (SNAPSHOT = true, PROGRESS = true)"),
        (
            {"order_by": ["a DESC", "mz_diff"], "as_of": 5, "at_least": True, "up_to": "latest"},
            (
                "SUBSCRIBE t WITH (SNAPSHOT = true, PROGRESS = true) AS OF AT LEAST 5 UP TO LATEST "
                "WITHIN TIMESTAMP ORDER BY a DESC, mz_diff"
            ),
        ),
        (
            {"as_of": datetime(2026, 1, 1, tzinfo=UTC)},
            "SUBSCRIBE t WITH (SNAPSHOT = true, PROGRESS = true) AS OF 1767225600000",
        ),
    ],
)
def test_the_statement(options: dict[str, Any], wanted: str) -> None:
    assert one_line(request("t", **options).sql()) == wanted


def test_after_a_cut_it_goes_on() -> None:
    asked = request("t", key=["id"], as_of=5, up_to=9)
    assert one_line(asked.copy(Resume(7), "FORMAT binary")) == (
        "COPY (SUBSCRIBE t WITH (SNAPSHOT = false, PROGRESS = true) AS OF 7 UP TO 9 "
        'ENVELOPE UPSERT (KEY ("id")) ) TO STDOUT WITH (FORMAT binary)'
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"key": "id"}, "key must be a list of column names"),
        ({"envelope": "upsert"}, "needs a key"),
        ({"envelope": "avro", "key": ["id"]}, 'must be "diff", "upsert" or "debezium"'),
        ({"envelope": "upsert", "key": ["id"], "order_by": "a"}, "has the order of its key"),
        ({"as_of": "latest"}, 'AS OF: "latest" is neither a time nor "earliest"'),
        ({"up_to": "earliest"}, 'UP TO: "earliest" is neither a time nor "latest"'),
        ({"at_least": True}, "at_least needs a time"),
        ({"as_of": datetime(2026, 1, 1)}, "has no time zone"),
    ],
)
def test_contradictions_are_told(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidValue, match=told):
        request("t", **options)
    with pytest.raises(InvalidValue, match="the query is empty"):
        request(" ; ")


def test_pauses_grow_and_end() -> None:
    now = [100.0]
    pauses = Pauses(Retry(first=1, longest=5, give_up_after=60), lambda: now[0], lambda: 0.0)
    assert [pauses.failed() for _ in range(5)] == [0.5, 1.0, 2.0, 2.5, 2.5]
    pauses.arrived()
    assert pauses.failed() == 0.5
    now[0] += 59
    assert pauses.failed() == 1.0
    now[0] += 1
    assert pauses.failed() is None


def test_pauses_differ_by_chance_and_may_never_end() -> None:
    now = [0.0]
    chances = iter([0.0, 0.5, 0.999])
    pauses = Pauses(Retry(first=8, longest=8, give_up_after=None), lambda: now[0], lambda: next(chances))
    waits = [pauses.failed() for _ in range(3)]
    assert waits[:2] == [4.0, 6.0] and waits[2] is not None and 7.9 < waits[2] < 8
    for bad in ({"first": 0}, {"first": 2, "longest": 1}, {"give_up_after": -1}):
        with pytest.raises(InvalidValue, match="retry:"):
            Retry(**bad)


def test_where_the_server_is() -> None:
    def known(url: str = "", env: dict[str, str] | None = None, **given: object) -> dict[str, Any]:
        found = conninfo_to_dict(conninfo(url, given, env or {}))
        return {name: found.get(name) for name in ("host", "port", "user", "dbname")}

    tidemills = {"host": "localhost", "port": "6875", "user": "materialize", "dbname": "materialize"}
    assert known() == tidemills
    assert known("postgresql://ann@there:7/d") == {"host": "there", "port": "7", "user": "ann", "dbname": "d"}
    assert known("host=there", port=9, user=None) == {**tidemills, "host": "there", "port": "9"}
    # What the environment tells is libpq's own to read.
    assert known(env={"PGHOST": "x", "PGPORT": "1"}) == {**tidemills, "host": None, "port": None}
    assert known(env={"PGSERVICE": "s"})["host"] is None
    with pytest.raises(InvalidValue, match="not a connection string"):
        conninfo("postgresql://[", {})
    error = failed("host=there port=7 password=hush", OSError("refused\nmore"))
    assert error.primary == "cannot connect to there:7" and error.detail == "refused"
    assert "hush" not in str(error)
