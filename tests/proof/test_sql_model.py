"""Random concurrent transactions over a real socket are strictly serializable: every read is the model's
state at its time, every statement touched the rows that the model says, and nobody who asks later is answered
from earlier (`proof_model.check`)."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from proof_histories import ReadTxn, Txn, WriteTxn, play
from proof_model import TABLES, Anomaly, Copy, Delete, History, Insert, Update, Write, check, good
from psycopg import sql

from support.server import ServerProcess

KEYS = st.integers(0, 2)
VALUES = st.integers(-3, 3)
NAMES = st.sampled_from(TABLES)

inserts = st.builds(Insert, NAMES, st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=3).map(tuple))
updates = st.builds(Update, NAMES, KEYS, st.integers(1, 9))
deletes = st.builds(Delete, NAMES, KEYS)
copies = st.builds(Copy, NAMES, NAMES, KEYS, st.integers(1, 9))


transactions: st.SearchStrategy[Txn] = st.one_of(
    st.builds(WriteTxn, st.tuples(st.one_of(inserts, updates, copies)), st.just(False)),
    st.builds(
        WriteTxn,
        st.lists(st.one_of(inserts, updates, deletes, copies), min_size=1, max_size=3).map(tuple),
        st.just(True),
        st.sampled_from([True, True, True, False]),
    ),
    st.builds(ReadTxn, st.booleans()),
    st.builds(ReadTxn, st.just(False), st.integers(0, 100)),
)
programs = st.lists(st.lists(transactions, min_size=2, max_size=5), min_size=2, max_size=4)


def relaxed(examples: int) -> settings:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        # What fails once may not fail again: there is nothing to shrink.
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


@relaxed(6)
@given(programs=programs)
def test_strict_serializability(server: ServerProcess, dsn: str, programs: list[list[Txn]]) -> None:
    check(play(server, dsn, programs))


@pytest.mark.chaos
@relaxed(300)
@given(programs=programs)
def test_strict_serializability_at_length(server: ServerProcess, dsn: str, programs: list[list[Txn]]) -> None:
    check(play(server, dsn, programs))


def test_contended_counters(server: ServerProcess, dsn: str) -> None:
    """Single UPDATEs of one row from several sessions: none is lost and none fails, whoever comes between."""
    start: list[Txn] = [WriteTxn((Insert("a", ((0, 0),)),), block=False), ReadTxn()]
    add: Txn = WriteTxn((Update("a", 0, 1),), block=False)
    history = play(server, dsn, [[*start, *[add] * 4], [ReadTxn(), *[add] * 4], [ReadTxn(), *[add] * 4]])
    check(history)
    assert all(w.outcome == "ack" for w in history.writes)
    last = max(history.reads, key=lambda r: r.time)
    (value,) = (v for _, v, _ in last.seen["a"])
    assert value == sum(sum(w.counts) for w in history.writes) - 1


def test_updates_get_through_a_stream_of_inserts(dsn: str) -> None:
    """Statements that read what they write come to an end although the table never rests, and no insert is
    lost to them."""
    suffix = uuid.uuid4().hex[:12]
    table = sql.Identifier(f"busy_{suffix}")
    stop = threading.Event()
    inserted = [0, 0]
    errors: list[BaseException] = []

    def insert(number: int) -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                while not stop.is_set():
                    connection.execute(sql.SQL("INSERT INTO {} VALUES (0)").format(table))
                    inserted[number] += 1
        except BaseException as e:
            errors.append(e)

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE TABLE {} (n int8)").format(table))
        threads = [threading.Thread(target=insert, args=(n,), daemon=True) for n in range(2)]
        for thread in threads:
            thread.start()
        touched = 0
        try:
            for _ in range(4):
                touched += connection.execute(
                    sql.SQL("UPDATE {} SET n = n + 1 WHERE n = 0").format(table)
                ).rowcount
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        if errors:
            raise errors[0]
        text = sql.SQL("SELECT count(*), sum(n)::int8, max(n) FROM {}").format(table)
        assert connection.execute(text).fetchone() == (sum(inserted), touched, 1)
        assert touched > 0


def test_a_new_table_is_never_seen_empty(dsn: str) -> None:
    """CREATE TABLE AS under writers of its source: whoever sees the table sees all its rows, from its first
    moment on, and they are the source at one time: every transaction there is whole."""
    suffix = uuid.uuid4().hex[:12]
    source = sql.Identifier(f"source_{suffix}")
    copies = [f"copy_{suffix}_{n}" for n in range(5)]
    stop = threading.Event()
    errors: list[BaseException] = []
    counts: list[int] = []

    def write() -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                while not stop.wait(0.02):
                    connection.execute(sql.SQL("INSERT INTO {} VALUES (1), (-1)").format(source))
        except BaseException as e:
            errors.append(e)

    def look() -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                for name in copies:
                    text = sql.SQL("SELECT count(*), sum(n)::int8 FROM {}").format(sql.Identifier(name))
                    while not stop.is_set():
                        try:
                            row = connection.execute(text).fetchone()
                        except psycopg.errors.UndefinedTable:
                            continue
                        assert row is not None
                        assert row[1] == 0
                        counts.append(row[0])
                        break
        except BaseException as e:
            errors.append(e)

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE TABLE {} (n int8)").format(source))
        connection.execute(sql.SQL("INSERT INTO {} VALUES (5), (-5)").format(source))
        threads = [threading.Thread(target=work, daemon=True) for work in (write, look)]
        for thread in threads:
            thread.start()
        made: list[int] = []
        for name in copies:
            text = sql.SQL("CREATE TABLE {} AS SELECT n FROM {}").format(sql.Identifier(name), source)
            made.append(int((connection.execute(text).statusmessage or "").removeprefix("SELECT ")))
        deadline = time.monotonic() + 180
        while len(counts) < len(copies) and not errors and time.monotonic() < deadline:
            time.sleep(0.02)
        stop.set()
        for thread in threads:
            thread.join(60)
    if errors:
        raise errors[0]
    assert counts == made
    assert made == sorted(made)


# -- the checker is checked ----------------------------------------------------------------------------


def _drop_row(h: History) -> None:
    h.reads[1].seen["a"][(0, 5, 1)] -= 1


def _skew(h: History) -> None:
    """Two transactions of one time that each read what the other wrote."""
    h.writes[1:3] = [
        Write(2, (Copy("b", "a", 0, 1),), (2,), 2.0, 4.0, "ack", 20),
        Write(3, (Copy("a", "b", 1, 1),), (1,), 2.5, 4.5, "ack", 20),
    ]
    del h.writes[3:], h.reads[2:]


def _lost_update(h: History) -> None:
    """Two transactions of one time that took the same rows."""
    h.writes[2] = Write(3, (Update("a", 0, 9),), (2,), 2.5, 4.5, "ack", 20)
    del h.writes[3:], h.reads[2:]


def _set(of: Callable[[History], Any], name: str, value: object) -> Callable[[History], None]:
    return lambda h: setattr(of(h), name, value)


BUGS: dict[str, Callable[[History], None]] = {
    "a row of an answer is dropped": _drop_row,
    "a row of an answer is doubled": lambda h: h.reads[2].seen["b"].update([(1, 1, 1)]),
    "an answer is from the future": lambda h: h.reads[0].seen["b"].update([(1, 1, 1)]),
    "half of a transaction is seen": lambda h: h.reads[1].seen["b"].clear(),
    "a read's time is shifted back": _set(lambda h: h.reads[2], "time", 19),
    "a read's time is shifted forward": _set(lambda h: h.reads[1], "time", 20),
    "an earlier read is answered late": _set(lambda h: h.reads[1], "began", 4.8),
    "AS OF gives what is now": lambda h: h.reads[3].seen["a"].update([(0, 7, 2)]),
    "an acknowledged write is gone": lambda h: h.writes.__setitem__(
        4, Write(5, (Copy("b", "a", 0, 3),), (2,), 5.0, 6.0, "ack", None)
    ),
    "a failed write is there": _set(lambda h: h.writes[3], "time", 25),
    "a statement touched other rows": _set(lambda h: h.writes[1], "counts", (2, 1)),
    "a write is earlier than what its client knew": _set(lambda h: h.writes[4], "time", 20),
    "an update found nothing where there was something": lambda h: h.writes.append(
        Write(7, (Update("a", 0, 1),), (0,), 5.0, 6.0, "ack", None)
    ),
    "two updates took the same rows": _lost_update,
    "two transactions missed each other": _skew,
}


def test_the_checker_accepts_what_is_right() -> None:
    check(good())


@pytest.mark.parametrize("bug", BUGS)
def test_the_checker_finds_what_is_wrong(bug: str) -> None:
    history = deepcopy(good())
    BUGS[bug](history)
    with pytest.raises(Anomaly):
        check(history)


def test_a_lying_server_is_caught(server: ServerProcess, dsn: str) -> None:
    """The same through a real history: whatever one row of one answer is changed to, it is found."""
    programs: list[list[Txn]] = [
        [WriteTxn((Insert("a", ((0, 1), (1, 2))),), block=True), ReadTxn(), ReadTxn(block=True)],
        [WriteTxn((Insert("b", ((0, 1),)), Insert("b", ((0, 1),))), block=True), ReadTxn()],
    ]
    history = play(server, dsn, programs)
    check(history)
    dice = random.Random(1)
    for read in history.reads:
        for table, seen in read.seen.items():
            honest = Counter(seen)
            lie = dice.choice(sorted(honest)) if honest and dice.random() < 0.7 else (7, 7, 7)
            seen[lie] += -1 if honest[lie] else 1
            with pytest.raises(Anomaly):
                check(history)
            seen.clear()
            seen.update(honest)
            assert table in TABLES
    check(history)
