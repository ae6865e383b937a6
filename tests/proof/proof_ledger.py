"""A ledger of transfers, who writes it, and what must hold of a data directory in its light.

Writers (threads beside the server's process) note an intent before each transaction and its outcome after it,
one line each, in the order in which they happened. A transfer is one transaction over three tables: two
postings that add up to nothing, its head, and sometimes a remark. `judge` folds the lines and compares them
with the updates that the shards hold; it knows neither SQL nor the server, so planted bugs can test it
(`test_server_crash.py`).
"""

from __future__ import annotations

import json
import os
import random
import threading
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, LiteralString

import psycopg
from psycopg import sql

TABLES: dict[str, LiteralString] = {
    "postings": "txn int8 NOT NULL, account int4 NOT NULL, amount int8 NOT NULL",
    "transfers": "txn int8 NOT NULL, amount int8 NOT NULL",
    "remarks": "txn int8 NOT NULL, remark text",
}
# The server says that it does not know. Every other error of a transaction means that nothing happened.
UNKNOWN = "08007"

Row = tuple[Any, ...]
Update = tuple[Row, int, int]  # row, time, diff
Rows = dict[str, list[Row]]  # table -> rows


class Broken(AssertionError):
    """A promise does not hold."""


class Ledger:
    """Lines of JSON in a file, each written by one system call; thread-safe. The order of the lines is one in
    which things happened: a line comes before whatever follows from it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._lock = threading.Lock()
        self._last = 0
        # How many lines say what; so that nobody reads the file only to count.
        self._counts: Counter[str] = Counter()
        # What was read of the file so far: it only grows, and lines are whole.
        self._lines: list[dict[str, Any]] = []
        self._read = 0

    def next_id(self) -> int:
        with self._lock:
            self._last += 1
            return self._last

    def write(self, what: str, **fields: object) -> None:
        line = (json.dumps({"what": what, **fields}) + "\n").encode()
        with self._lock:
            os.write(self._file, line)
            self._counts[what] += 1

    def count(self, what: str) -> int:
        with self._lock:
            return self._counts[what]

    def lines(self) -> list[dict[str, Any]]:
        """All of them, as the file has them; only what is new is read."""
        with self._lock:
            size = os.fstat(self._file).st_size
            data = os.pread(self._file, size - self._read, self._read)
            self._read += len(data)
            self._lines += [json.loads(line) for line in data.splitlines()]
            return list(self._lines)

    def close(self) -> None:
        os.close(self._file)


def transfer(txn: int, dice: random.Random) -> Rows:
    """The rows of a transfer; all of them carry its id, so they tell whether it happened."""
    source, target = dice.sample(range(20), 2)
    amount = dice.randrange(1, 1000)
    rows: Rows = {
        "postings": [(txn, source, -amount), (txn, target, amount)],
        "transfers": [(txn, amount)],
    }
    if dice.random() < 0.5:
        rows["remarks"] = [(txn, dice.choice([None, "", "rent", 'it\'s \\ "quoted"\t€']))]
    return rows


def insert(connection: psycopg.Connection[Any], table: str, rows: Sequence[Row]) -> None:
    """One INSERT of all the rows."""
    one = sql.SQL("({})").format(sql.SQL(", ").join([sql.Placeholder()] * len(rows[0])))
    text = sql.SQL("INSERT INTO {} VALUES {}").format(
        sql.Identifier(table), sql.SQL(", ").join([one] * len(rows))
    )
    connection.execute(text, [value for row in rows for value in row])


def write_transfers(dsn: str, ledger: Ledger, dice: random.Random, stop: threading.Event) -> None:
    """Transfers, one after the other, until told to stop or the server is gone. An error without SQLSTATE is
    a lost connection: the transaction stays open in the ledger."""
    try:
        with psycopg.connect(dsn) as connection:
            while not stop.is_set():
                txn = ledger.next_id()
                rows = transfer(txn, dice)
                ledger.write("intent", id=txn, rows=rows)
                try:
                    for table in dice.sample(sorted(rows), len(rows)):
                        insert(connection, table, rows[table])
                    if dice.random() < 0.1:
                        connection.rollback()
                        ledger.write("failed", id=txn)
                        continue
                    connection.commit()
                except psycopg.Error as e:
                    if e.sqlstate is None or e.sqlstate.startswith("57P") or e.sqlstate == UNKNOWN:
                        raise
                    connection.rollback()
                    ledger.write("failed", id=txn)
                    continue
                ledger.write("ack", id=txn)
    except psycopg.Error:
        return


def watch_time(dsn: str, ledger: Ledger, stop: threading.Event) -> None:
    """What the server says the time is, over and over."""
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.wait(0.05):
                number = ledger.next_id()
                ledger.write("ask", id=number)
                row = connection.execute("SELECT mz_now()::text").fetchone()
                assert row is not None
                ledger.write("told", id=number, time=int(row[0]))
    except psycopg.Error:
        return


def run_writers(dsn: str, ledger: Ledger, seed: int, count: int) -> Callable[[], None]:
    """Start them; the answer stops them and waits."""
    stop = threading.Event()
    threads = [
        threading.Thread(
            target=write_transfers, args=(dsn, ledger, random.Random(seed + n), stop), daemon=True
        )
        for n in range(count)
    ]
    threads.append(threading.Thread(target=watch_time, args=(dsn, ledger, stop), daemon=True))
    for thread in threads:
        thread.start()

    def end() -> None:
        stop.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a writer hangs on a server that is gone"

    return end


# -- judging -------------------------------------------------------------------------------------------


@dataclass
class Found:
    """What a data directory holds: every update of every table, and the time before which all is closed."""

    updates: Mapping[str, Sequence[Update]]
    closed: int
    since: int = 0
    # Per table: the times of its updates, and the sum of their hashes before each.
    _sums: dict[str, tuple[list[int], list[int]]] = field(
        default_factory=dict[str, tuple[list[int], list[int]]], repr=False
    )

    def at(self, table: str, time: int) -> Counter[Row]:
        rows: Counter[Row] = Counter()
        for row, at, diff in self.updates[table]:
            if at <= time:
                rows[row] += diff
        return Counter({row: count for row, count in rows.items() if count})

    def digest(self, table: str, time: int) -> int:
        """The same for the same multiset, within one process: the sum of the rows' hashes."""
        if table not in self._sums:
            ordered = sorted((at, hash(row) * diff) for row, at, diff in self.updates[table])
            sums = accumulate((part for _, part in ordered), initial=0)
            self._sums[table] = ([at for at, _ in ordered], [total % (1 << 64) for total in sums])
        times, sums = self._sums[table]
        return sums[bisect_right(times, time)]


@dataclass
class Records:
    """What earlier looks saw at closed times: it must stay (I3)."""

    seen: dict[tuple[str, int], int] = field(default_factory=dict[tuple[str, int], int])

    def check(self, found: Found) -> int:
        """How many still hold; raises where one changed. Those that retention let go are forgotten."""
        self.seen = {key: digest for key, digest in self.seen.items() if key[1] >= found.since}
        for (table, time), digest in self.seen.items():
            if found.digest(table, time) != digest:
                raise Broken(f"{table} at {time} is not what it was")
        return len(self.seen)

    def add(self, found: Found, times: Iterable[int]) -> None:
        for time in times:
            if time < found.closed:
                for table in found.updates:
                    self.seen[(table, time)] = found.digest(table, time)


def judge(lines: Sequence[Mapping[str, Any]], found: Found) -> dict[int, int]:
    """Raises `Broken` where the ledger and the directory disagree; the time of each transaction that is
    there."""
    intents = {line["id"]: line["rows"] for line in lines if line["what"] == "intent"}
    outcomes = {line["id"]: line["what"] for line in lines if line["what"] in ("ack", "failed")}
    there: dict[int, dict[str, list[Update]]] = defaultdict(lambda: defaultdict(list))
    for table, updates in found.updates.items():
        for update in updates:
            there[update[0][0]][table].append(update)
    times: dict[int, int] = {}
    for txn, tables in there.items():
        if txn not in intents:
            raise Broken(f"transaction {txn} was never begun")
        if outcomes.get(txn) == "failed":
            raise Broken(f"transaction {txn} was refused and is there")
        times[txn] = _whole(txn, intents[txn], tables)
        if times[txn] >= found.closed:
            raise Broken(f"transaction {txn} is at {times[txn]}, which is still open ({found.closed})")
    for txn, outcome in outcomes.items():
        if outcome == "ack" and txn not in times:
            raise Broken(f"transaction {txn} was acknowledged and is gone")
    _order(lines, times)
    return times


def _whole(
    txn: int, intended: Mapping[str, Sequence[Sequence[Any]]], there: Mapping[str, list[Update]]
) -> int:
    """All of its rows, once, at one time, which is returned."""
    expected = {table: Counter(tuple(row) for row in rows) for table, rows in intended.items()}
    actual: dict[str, Counter[Row]] = {}
    for table, updates in there.items():
        actual[table] = Counter()
        for row, _, diff in updates:
            actual[table][row] += diff
    if actual != expected:
        raise Broken(f"transaction {txn} should be {expected} and is {actual}")
    times = {time for updates in there.values() for _, time, _ in updates}
    if len(times) != 1:
        raise Broken(f"transaction {txn} is spread over the times {sorted(times)}")
    return times.pop()


def _order(lines: Sequence[Mapping[str, Any]], times: Mapping[int, int]) -> None:
    """Times never go back: whatever began after an answer is later than what the answer told."""
    written = read = -1  # the latest time that somebody knew when the line was written
    floors: dict[int, tuple[int, int]] = {}
    for line in lines:
        number = line.get("id", 0)
        if line["what"] in ("intent", "ask"):
            floors[number] = (written, read)
        elif line["what"] == "ack":
            written = max(written, times[number])
        elif line["what"] == "told":
            if line["time"] < max(floors[number]):
                raise Broken(f"the time went back to {line['time']} from {floors[number]}")
            read = max(read, line["time"])
    for txn, time in times.items():
        if time <= max(floors[txn]):
            raise Broken(f"transaction {txn} is at {time}, but began after {floors[txn]} was known")
