"""Cuts where a connector of Debezium was killed: each case was seen with a real one, or follows from how it
goes on. In every case all transactions are shown in the end, and none in parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reclock.test_transaction_cuts import Reader
from reclock.upstream import MARIADB, POSTGRES, Change, Told, Transaction, Upstream, Written
from tidemill.reclock.transactions.changes import NO_RUN
from tidemill.reclock.transactions.ids import Origins

CAPTURES = Path(__file__).parent.parent / "kafka" / "data"
LETTERS = ("b_crud", "c_pkupdate", "d_tx2tables", "e_multirow", "i_interleaved", "h1_graceful_restart")
TABLES = {"a": 1, "b": 1}


def one(table: str, key: int = 0) -> Change:
    return Change(table, 0, key)


def reading(kind: str, *transactions: Transaction, partitions: int = 1) -> Reader:
    tables = dict.fromkeys(TABLES, partitions)
    topics: dict[tuple[str, int], list[Written]] = {(t, n): [] for t in tables for n in range(partitions)}
    return Reader(Upstream(kind, transactions, topics), tables)


def read_on(reader: Reader) -> int:
    """What is shown when everything was read, a while after the announcements."""
    for _ in range(2):
        reader.read_all()
        while reader.decide():
            pass
    return reader.shown


def killed_after(reader: Reader, records: int, noted: tuple[int, int]) -> None:
    """The connector wrote so many records, and had noted this position: a transaction and its changes."""
    reader.upstream.write(records)
    reader.upstream.go_on_from(noted)


def test_a_restart_within_a_transaction_whose_end_was_written() -> None:
    """PostgreSQL: END comes again without BEGIN. As kill -9 of a connector with 40,000 updates leaves it."""
    many = Transaction(tuple(one("a", n) for n in range(5)))
    reader = reading(POSTGRES, Transaction((one("a"),)), many, Transaction((one("b"),)))
    # BEGIN, 1 change, END; BEGIN, 5 changes, END; BEGIN, 1 change, END.
    killed_after(reader, 3 + 7 + 3, (1, 3))
    assert read_on(reader) == 3
    reader.upstream.write(100)
    assert [told.end for told in reader.upstream.announced[6:]] == [True, False, True]
    assert read_on(reader) == 3 and reader.cuts.waiting is None


@pytest.mark.parametrize("lost", [1, 3, 5])
def test_changes_that_were_not_written_before_an_end_that_was(lost: int) -> None:
    many = Transaction(tuple(one("a", n) for n in range(5)))
    reader = reading(POSTGRES, many, Transaction((one("b"),)))
    killed_after(reader, 7 + 3, (0, 1))
    if lost == 5:
        reader.upstream.go_on_from((0, 0))
    del reader.upstream.topics["a", 0][5 - lost :]
    assert read_on(reader) == 0
    assert reader.cuts.waiting is not None and reader.cuts.waiting.id == "700"
    reader.upstream.write(100)
    assert read_on(reader) == 2


def test_as_many_changes_as_announced_of_which_some_came_twice() -> None:
    """The connector does not say which run wrote a change."""
    reader = reading(POSTGRES, Transaction(tuple(one("a", n) for n in range(10))))
    killed_after(reader, 1 + 5, (0, 3))
    reader.upstream.write(100)
    written = reader.upstream.topics["a", 0]
    written[:] = [replace(record, run=NO_RUN) for record in written]
    assert [record.order for record in written] == [1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9, 10]
    reader.look()
    reader.announce(100)
    reader.scan(("a", 0), 10)
    assert not reader.decide()
    assert read_on(reader) == 1


def test_the_count_of_an_interrupted_copy_is_too_low() -> None:
    """PostgreSQL: Debezium had written all of it, and repeats END with fewer changes than it had before."""
    reader = reading(POSTGRES, Transaction(tuple(one("a", n) for n in range(5))), Transaction((one("b"),)))
    killed_after(reader, 7, (0, 5))
    reader.upstream.write(1)
    reader.upstream.announced[-1] = Told(True, "700:1005", {"a": 4}, reader.upstream.now)
    reader.upstream.write(100)
    assert read_on(reader) == 2


def test_a_repetition_is_seen_before_it_is_announced() -> None:
    """What waits in the log for its changes is completed by those of the next run."""
    reader = reading(POSTGRES, Transaction((one("a"),)), Transaction((one("b"),)))
    killed_after(reader, 3, (0, 0))
    del reader.upstream.topics["a", 0][:]
    assert read_on(reader) == 0
    reader.upstream.write(2)
    reader.look()
    reader.scan(("a", 0), 10)
    # BEGIN of the repetition is not read: as if it was visible later than its change.
    assert reader.decide() and reader.shown == 1
    reader.upstream.write(100)
    reader.upstream.transactions = (*reader.upstream.transactions, Transaction((one("a"),)))
    read_on(reader)
    # The second run went on, so that nothing is missing of what it repeated.
    reader.upstream.now += 2000
    reader.upstream.go_on_from((2, 0))
    reader.upstream.write(100)
    read_on(reader)
    assert read_on(reader) == 3


def test_the_first_part_of_a_transaction_that_mariadb_resumed() -> None:
    """END counts the changes of the second run alone; those of the first are in another partition."""
    both = Transaction((Change("a", 0, 0), Change("a", 1, 1)))
    reader = reading(MARIADB, both, partitions=2)
    killed_after(reader, 2, (0, 1))
    reader.upstream.write(100)
    reader.look()
    reader.announce(10)
    reader.scan(("a", 1), 10)
    assert not reader.decide()
    assert read_on(reader) == 1


def test_the_state_stays_flat_however_often_it_is_killed() -> None:
    """Proportional to what is repeated, and to what is not shown; nothing in the end."""
    many = [Transaction((one("a", n % 3), one("b"))) for n in range(3000)]
    reader = reading(POSTGRES, *many)
    for n in range(60):
        killed_after(reader, 210, (n * 50, n % 2))
        read_on(reader)
    reader.upstream.write(100_000)
    assert read_on(reader) == 3000
    read_on(reader)
    announced, waiting, interrupted = (max(numbers) for numbers in zip(*reader.kept, strict=True))
    assert announced <= 60 and waiting <= 240 and interrupted <= 120
    assert reader.kept[-1] == (0, 0, 0)
    assert len(reader.finished.highest) == 1


# -- captures


def captured(prefix: str) -> Reader:
    """The transactions of a real connector, with its own ids, numbers and times."""
    records: list[dict[str, Any]] = []
    for letter in LETTERS:
        with (CAPTURES / f"{prefix}_{letter}.jsonl").open() as lines:
            records += [json.loads(line) for line in lines]
    records.sort(key=lambda record: record["offset"])
    records.sort(key=lambda record: record["timestamp"])
    upstream = Upstream(prefix, [], {})
    ids: dict[int, int] = {}
    changes: dict[int, list[Change]] = {}
    origins = Origins()
    for record in records:
        value, time = record["value"], record["timestamp"]
        if record["topic"].endswith(".transaction"):
            said = value["data_collections"]
            counts = None if said is None else {each["data_collection"]: each["event_count"] for each in said}
            upstream.announced.append(Told(value["status"] == "END", value["id"], counts, time))
            key = origins.key_of(value["id"])
            if value["status"] == "END":
                ids.setdefault(key, len(ids))
    for record in records:
        value, time = record["value"], record["timestamp"]
        if record["topic"].endswith(".transaction"):
            continue
        place = record["topic"].partition(".")[2], record["partition"]
        block = value and value.get("transaction")
        topic = upstream.topics.setdefault(place, [])
        if not block:
            topic.append(Written(None, -1, None, 0, None, 0, time))
            continue
        at = ids[origins.key_of(block["id"])]
        change = Change(*place, block["total_order"])
        changes.setdefault(at, []).append(change)
        last = json.loads(value["source"].get("sequence") or "[null]")[0]
        order = block["data_collection_order"]
        topic.append(Written(change, at, block["id"], order, last and int(last), 0, time))
    upstream.transactions = [Transaction(tuple(changes.get(at, ()))) for at in range(len(ids))]
    return Reader(upstream, {table: 1 for table, _ in upstream.topics})


@pytest.mark.parametrize("prefix", ["pgf", "mdb"])
def test_captures_up_to_every_point(prefix: str) -> None:
    """Of each topic any part can have come; the next process knows what is durable alone."""
    whole = captured(prefix)
    count = len(whole.upstream.transactions)
    assert count > 60
    for step in (1, 3, 7, 1000):
        reader = captured(prefix)
        for before in range(0, len(reader.upstream.announced), step):
            reader.look()
            reader.announce(step)
            for n, place in enumerate(reader.upstream.topics):
                reader.scan(place, step + n)
            reader.decide(step)
            if before % (5 * step) == 0:
                reader.start()
        assert read_on(reader) == count
