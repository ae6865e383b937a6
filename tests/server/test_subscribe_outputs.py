"""Every output of SUBSCRIBE over a real socket: at each progress row what was told adds up to what SELECT
says, and what the outputs tell of each time is what plain rows mean; over random histories, and over the
examples of the outputs' design, cell by cell."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from support.server import ServerProcess, connected

Connection = psycopg.Connection[tuple[Any, ...]]
Row = tuple[Any, ...]


def now(c: Connection) -> int:
    (row,) = c.execute("SELECT mz_now()").fetchall()
    return int(row[0])


def told(c: Connection, statement: str) -> list[Row]:
    """The rows of a subscription that ends; the times as numbers."""
    return [(int(at), *row) for at, *row in c.cursor().stream(statement.encode())]


# -- random histories

COLUMNS = ["v", "k", "w", "a"]
KEY = (3, 1)  # a, k: neither the first columns nor in their order
KEY_TEXT = "KEY (a, k)"


def history(c: Connection, seed: int, transactions: int = 12) -> tuple[int, int]:
    """Random writes, several in one transaction: copies, NULLs in keys and values, keys that are violated for
    some while. The time before the first, and that of the last."""
    rng = random.Random(seed)
    begin = now(c)

    def value() -> str:
        return rng.choice(["NULL", "1", "2"])

    for _ in range(transactions):
        with c.transaction():
            for _ in range(rng.randrange(1, 4)):
                key = rng.choice(["a = 1", "a = 2 AND k = 'x'", "a IS NULL", "k IS NULL", "v = 1"])
                match rng.randrange(5):
                    case 0:
                        c.execute(f"DELETE FROM t WHERE {key}".encode())
                    case 1:
                        c.execute(f"UPDATE t SET v = {value()}, w = 'new' WHERE {key}".encode())
                    case _:
                        rows = ", ".join(
                            f"({value()}, {rng.choice(['NULL', chr(39) + 'x' + chr(39)])}, "
                            f"{rng.choice(['NULL', chr(39) + 'w' + chr(39)])}, {value()})"
                            for _ in range(rng.randrange(1, 4))
                        )
                        c.execute(f"INSERT INTO t VALUES {rows}".encode())
    return begin, now(c)


def meant(plain: Sequence[Row]) -> dict[tuple[int, Row], list[tuple[Row, int]]]:
    """(time, key) -> the updates of that key, from the plain rows."""
    groups: dict[tuple[int, Row], list[tuple[Row, int]]] = defaultdict(list)
    for at, diff, *row in plain:
        groups[at, tuple(row[i] for i in KEY)].append((tuple(row), diff))
    return groups


def enveloped(plain: Sequence[Row], *, debezium: bool) -> Counter[Row]:
    """What an envelope makes of plain rows, by the four cases."""
    rest = [i for i in range(len(COLUMNS)) if i not in KEY]
    nothing = (None,) * len(rest)
    found: Counter[Row] = Counter()
    for (at, key), updates in meant(plain).items():
        came = [tuple(row[i] for i in rest) for row, diff in updates if diff == 1]
        went = [tuple(row[i] for i in rest) for row, diff in updates if diff == -1]
        if len(came) + len(went) != len(updates) or len(came) > 1 or len(went) > 1:
            state, before, after = "key violation", nothing, nothing
        elif came and went:
            state, before, after = "upsert", went[0], came[0]
        elif came:
            state, before, after = "insert" if debezium else "upsert", nothing, came[0]
        else:
            state, before, after = "delete", went[0], nothing
        found[at, state, *key, *(before if debezium else ()), *after] += 1
    return found


def key_order(row: Row) -> tuple[Any, ...]:
    """(time, then the key with NULLs last)."""
    return row[0], *((value is None, value if value is not None else 0) for value in row[2:4])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_output_of_a_random_history(server: ServerProcess, database: str, seed: int) -> None:
    with connected(server, database) as c:
        c.execute("CREATE TABLE t (v int, k text, w text, a int)")
        begin, end = history(c, seed)
        bounds = f"AS OF {begin} UP TO {end + 1}"
        plain = told(c, f"SUBSCRIBE t {bounds}")
        assert len(plain) > 20
        assert max(Counter((at, *row) for at, _, *row in plain).values()) == 1  # each row once in each time
        for debezium in (False, True):
            envelope = "DEBEZIUM" if debezium else "UPSERT"
            rows = told(c, f"SUBSCRIBE t {bounds} ENVELOPE {envelope} ({KEY_TEXT})")
            assert Counter(rows) == enveloped(plain, debezium=debezium)
            assert rows == sorted(rows, key=key_order)
        rows = told(c, f"SUBSCRIBE t {bounds} WITHIN TIMESTAMP ORDER BY k DESC NULLS LAST, mz_diff, a")
        assert Counter(rows) == Counter(plain)
        order = [(r[0], r[3] is None, r[1], r[5] is None, r[5] or 0) for r in rows]
        assert order == sorted(order)


def keyed_history(c: Connection, seed: int, transactions: int = 12) -> tuple[int, int]:
    """Random writes that keep one row for each key; values, and parts of keys, may be NULL."""
    rng = random.Random(seed)
    begin = now(c)
    there: set[tuple[str, str]] = set()
    for _ in range(transactions):
        with c.transaction():
            for _ in range(rng.randrange(1, 4)):
                a, k = rng.choice(["NULL", "1", "2"]), rng.choice(["NULL", "'x'"])
                v, w = rng.choice(["NULL", "1", "2"]), rng.choice(["NULL", "'w'"])
                where = " AND ".join(
                    f"{name} IS NULL" if value == "NULL" else f"{name} = {value}"
                    for name, value in (("a", a), ("k", k))
                )
                if (a, k) not in there:
                    there.add((a, k))
                    c.execute(f"INSERT INTO t VALUES ({v}, {k}, {w}, {a})".encode())
                elif rng.random() < 0.6:
                    c.execute(f"UPDATE t SET v = {v}, w = {w} WHERE {where}".encode())
                else:
                    there.remove((a, k))
                    c.execute(f"DELETE FROM t WHERE {where}".encode())
    return begin, now(c)


class Kept:
    """What a reader of one output has, from what it was told."""

    def __init__(self) -> None:
        self.counts: Counter[Row] = Counter()
        self.by_key: dict[Row, Row] = {}

    def apply(self, output: str, state: Any, row: Row) -> None:
        if not output.startswith("ENVELOPE"):
            self.counts[row] += state
            return
        key, values = row[:2], row[2:]
        assert state != "key violation"
        if "DEBEZIUM" in output:
            before, values = values[:2], values[2:]
            assert before == self.by_key.get(key, (None, None))
            assert (state == "insert") == (key not in self.by_key)
        if state == "delete":
            del self.by_key[key]
        else:
            self.by_key[key] = values

    def rows(self) -> Counter[Row]:
        """As the relation has them: v, k, w, a."""
        return +self.counts + Counter((v, k, w, a) for (a, k), (v, w) in self.by_key.items())


@pytest.mark.parametrize(
    "output",
    [
        "",
        "WITHIN TIMESTAMP ORDER BY mz_diff DESC, w",
        f"ENVELOPE UPSERT ({KEY_TEXT})",
        f"ENVELOPE DEBEZIUM ({KEY_TEXT})",
    ],
)
def test_at_each_progress_row_it_is_what_select_says(
    server: ServerProcess, database: str, output: str
) -> None:
    with connected(server, database) as c:
        c.execute("CREATE TABLE t (v int, k text, w text, a int)")
        heard = Heard(server, database, f"SUBSCRIBE t WITH (PROGRESS) {output}")
        write = keyed_history if "KEY" in output else history
        _, end = write(c, 5)
        rows = heard.until(end)
        kept, checked, complete = Kept(), 0, 0
        for at, progressed, state, *row in rows:
            assert int(at) >= complete
            if not progressed:
                kept.apply(output, state, tuple(row))
                continue
            # The first progress row comes before the snapshot.
            if complete:
                found = c.execute(f"SELECT * FROM t AS OF {int(at) - 1}".encode()).fetchall()
                assert kept.rows() == Counter(found), at
                checked += 1
            complete = int(at)
        assert checked > 2


class Heard:
    """A subscription that is read while others write."""

    def __init__(self, server: ServerProcess, database: str, statement: str) -> None:
        self._rows: list[Row] = []
        self._end: int | None = None
        self._begun = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, args=(server, database, statement))
        self._thread.start()
        assert self._begun.wait(120)

    def _read(self, server: ServerProcess, database: str, statement: str) -> None:
        try:
            with connected(server, database) as mine:
                for row in mine.cursor().stream(statement.encode()):
                    self._rows.append(row)
                    self._begun.set()
                    if self._end is not None and row[1] and int(row[0]) > self._end:
                        mine.cancel_safe()
        except psycopg.errors.QueryCanceled:
            pass
        except BaseException as e:
            self._error = e
            self._begun.set()

    def until(self, end: int) -> list[Row]:
        """The rows until a time is complete."""
        self._end = end
        self._thread.join(120)
        assert not self._thread.is_alive() and self._error is None, self._error
        return self._rows


# -- the design's examples


def test_within_timestamp_order_by_example(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c:
        c.execute("CREATE TABLE t (c1 int, c2 int, c3 text)")
        c.execute("INSERT INTO t VALUES (1, 2, 'bar'), (2, 0, 'old')")
        begin = now(c)
        with c.transaction():
            c.execute("DELETE FROM t")
            c.execute("INSERT INTO t VALUES (2, 0, 'new'), (1, 2, 'boo'), (1, 0, 'data'), (1, 20, 'foo')")
        rows = told(
            c,
            f"SUBSCRIBE t WITH (SNAPSHOT = false) AS OF {begin} UP TO {now(c) + 1} "
            "WITHIN TIMESTAMP ORDER BY c1, c2 DESC NULLS LAST, mz_diff",
        )
    assert len({at for at, *_ in rows}) == 1
    assert [row for _, *row in rows] == [
        [1, 1, 20, "foo"],
        [-1, 1, 2, "bar"],
        [1, 1, 2, "boo"],
        [1, 1, 0, "data"],
        [-1, 2, 0, "old"],
        [1, 2, 0, "new"],
    ]


UPSERT_EXAMPLE = [
    [("upsert", 1, 2), ("upsert", 2, 4)],
    [("upsert", 1, 10)],
    [("upsert", 3, 6)],
    [("delete", 1, None), ("delete", 2, None), ("delete", 3, None)],
    [("key violation", 1, None)],
]
DEBEZIUM_EXAMPLE = [
    [("insert", 1, None, 2), ("insert", 2, None, 4)],
    [("upsert", 1, 2, 10)],
    [("insert", 3, None, 6)],
    [("delete", 1, 10, None), ("delete", 2, 4, None), ("delete", 3, 6, None)],
    [("key violation", 1, None, None)],
]


@pytest.mark.parametrize("spelling", ["blank", "underscore"])
@pytest.mark.parametrize("progress", [False, True])
@pytest.mark.parametrize(
    ("envelope", "example", "names"),
    [
        ("UPSERT", UPSERT_EXAMPLE, ["mz_state", "key", "value"]),
        ("DEBEZIUM", DEBEZIUM_EXAMPLE, ["mz_state", "key", "before_value", "after_value"]),
    ],
)
def test_envelope_examples(
    story: tuple[ServerProcess, str, int, int],
    envelope: str,
    example: list[list[Row]],
    names: list[str],
    progress: bool,
    spelling: str,
) -> None:
    server, database, begin, end = story
    with connected(server, database) as c:
        c.execute(f"SET subscribe_key_violation = {spelling}".encode())
        options = " WITH (PROGRESS)" if progress else ""
        cursor = c.execute(
            f"SUBSCRIBE kv_store{options} AS OF {begin} UP TO {end + 1} "
            f"ENVELOPE {envelope} (KEY (key))".encode()
        )
        assert cursor.description is not None
        head = ["mz_timestamp", "mz_progressed"] if progress else ["mz_timestamp"]
        assert [d.name for d in cursor.description] == head + names
        by_time: dict[int, list[Row]] = defaultdict(list)
        complete = 0
        for at, *row in cursor.fetchall():
            if progress:
                assert int(at) >= complete
                if row.pop(0):
                    assert row == [None] * len(names)
                    complete = int(at)
                    continue
            by_time[int(at)].append(tuple(row))
        assert not progress or complete == end + 1
    if spelling == "underscore":
        example = [[(row[0].replace(" ", "_"), *row[1:]) for row in rows] for rows in example]
    assert list(by_time.values()) == example
    assert list(by_time) == sorted(by_time)


@pytest.fixture(scope="module")
def story(server: ServerProcess) -> Iterator[tuple[ServerProcess, str, int, int]]:
    """What happens to kv_store in the design's examples, at five times."""
    name = f"story_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute(f"CREATE DATABASE {name}".encode())
        with connected(server, name) as mine:
            notices: list[str] = []
            mine.add_notice_handler(lambda n: notices.append(n.message_primary or ""))
            mine.execute("CREATE TABLE kv_store (key int, value int, UNIQUE (key))")
            assert any("UNIQUE" in notice for notice in notices), notices
            mine.execute("INSERT INTO kv_store VALUES (1, 2), (2, 4)")
            begin = now(mine)
            mine.execute("UPDATE kv_store SET value = 10 WHERE key = 1")
            mine.execute("INSERT INTO kv_store VALUES (3, 6)")
            mine.execute("DELETE FROM kv_store")
            mine.execute("INSERT INTO kv_store VALUES (1, 7), (1, 8)")
            end = now(mine)
        yield server, name, begin, end
        c.execute(f"DROP DATABASE {name} CASCADE".encode())


def test_expressions_are_keys_and_columns(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c:
        c.execute("CREATE TABLE t (a int, b text)")
        c.execute("INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, NULL)")
        begin = now(c)
        c.execute("UPDATE t SET b = 'z' WHERE a = 1")
        c.execute("UPDATE t SET b = NULL WHERE a = 2")
        query = "SELECT upper(b) AS u, a % 2 AS half, a * 10 AS ten FROM t"
        rows = told(
            c, f"SUBSCRIBE ({query}) AS OF {begin} UP TO {now(c) + 1} ENVELOPE DEBEZIUM (KEY (ten, half))"
        )
    assert [row[1:] for row in rows] == [
        ("insert", 10, 1, None, "X"),
        ("insert", 20, 0, None, "Y"),
        ("insert", 30, 1, None, None),
        ("upsert", 10, 1, "X", "Z"),
        ("upsert", 20, 0, "Y", None),
    ]


def test_a_violation_appears_persists_and_goes(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c:
        c.execute("CREATE TABLE t (k int, v int)")
        begin = now(c)
        for values in ("(1, 1)", "(1, 2)", "(1, 3), (1, 4)"):
            c.execute(f"INSERT INTO t VALUES {values}".encode())
        c.execute("DELETE FROM t WHERE v < 4")
        c.execute("UPDATE t SET v = 5")
        c.execute("INSERT INTO t VALUES (NULL, NULL), (NULL, NULL)")
        rows = told(c, f"SUBSCRIBE t AS OF {begin} UP TO {now(c) + 1} ENVELOPE UPSERT (KEY (k))")
    assert [row[1:] for row in rows] == [
        ("upsert", 1, 1),
        ("upsert", 1, 2),
        ("key violation", 1, None),
        ("key violation", 1, None),
        ("upsert", 1, 5),
        ("key violation", None, None),
    ]


def test_mz_subscriptions(server: ServerProcess, database: str) -> None:
    with connected(server, database) as c, connected(server, database) as mine:
        c.execute("CREATE TABLE t (v int, k text)")
        c.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        query = (
            "SELECT relation, output, as_of <= frontier, rows, bytes > 0, lag >= 0 "
            f"FROM mz_internal.mz_subscriptions WHERE session = {mine.info.backend_pid}"
        )
        with pytest.raises(psycopg.errors.QueryCanceled):
            stream = mine.cursor().stream(b"SUBSCRIBE t ENVELOPE UPSERT (KEY (k))")
            for number, _ in enumerate(stream, 1):
                if number == 2:
                    assert c.execute(query.encode()).fetchall() == [
                        ("t", "envelope_upsert", True, 2, True, True)
                    ]
                    mine.cancel_safe()
        # It ends when the client has been told so, and perhaps a moment later.
        deadline = time.monotonic() + 120
        while c.execute(query.encode()).fetchall():
            assert time.monotonic() < deadline
