"""What a PostgreSQL server says happened, in the order in which it happened: the transactions of a
replication slot with the plugin test_decoding, as text. Nothing of Tidemill's reading of the stream is used.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable

import psycopg

Row = tuple[str, int, int]  # table, id, balance

_CHANGE = re.compile(r"table public\.(\w+): (INSERT|UPDATE|DELETE): (.*)")
_VALUE = re.compile(r"(\w+)\[integer\]:(-?\d+)")
MASK = (1 << 64) - 1
_PEEK = (
    "SELECT (lsn - '0/0')::int8, data FROM pg_logical_slot_peek_changes(%s, NULL, NULL, 'include-xids', '0')"
)
_MOVE = "SELECT pg_replication_slot_advance(%s, '0/0'::pg_lsn + %s)"


class Broken(AssertionError):
    """The tables are not those of a whole number of transactions."""


class Course:
    """The states of the upstream, from the creation of the slot on, each as a digest of its rows. It grows
    with each `read`."""

    def __init__(self, dsn: str, slot: str) -> None:
        self._dsn = dsn
        self._slot = slot
        # The position of the last commit.
        self._end = 0
        # Digests, and for each of them the numbers of the states that have it.
        self.digests: list[int] = [0]
        self.places: dict[int, list[int]] = {0: [0]}
        # Rows of the last state.
        self.rows: dict[Row, int] = {}

    def create(self) -> None:
        """The tables must be empty."""
        with psycopg.connect(self._dsn, autocommit=True) as sql:
            sql.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [self._slot])

    def read(self) -> None:
        """What was committed since. A slot that was moved is back where it was after a crash."""
        with psycopg.connect(self._dsn, autocommit=True) as sql:
            transaction: list[str] = []
            for at, line in sql.execute(_PEEK, [self._slot]).fetchall():
                transaction.append(line)
                if line.startswith("COMMIT"):
                    if at > self._end:
                        self._fold(transaction)
                        self._end = at
                    transaction = []
            sql.execute(_MOVE, [self._slot, self._end])

    def _fold(self, transaction: Iterable[str]) -> None:
        digest = self.digests[-1]
        for line in transaction:
            for row, diff in _changes(line):
                digest = (digest + diff * hash(row)) & MASK
                self.rows[row] = self.rows.get(row, 0) + diff
        if digest != self.digests[-1]:
            self.places.setdefault(digest, []).append(len(self.digests))
            self.digests.append(digest)

    def place(self, digest: int, after: int) -> int | None:
        """The first state with this digest from the number `after` on."""
        found = self.places.get(digest, [])
        at = bisect_left(found, after)
        return found[at] if at < len(found) else None


def _changes(line: str) -> Iterable[tuple[Row, int]]:
    found = _CHANGE.match(line)
    if found is None:
        return
    table, kind, rest = found.groups()
    old, _, new = rest.partition(" new-tuple: ")
    if kind == "INSERT":
        yield _row(table, rest), 1
        return
    yield _row(table, old), -1
    if kind == "UPDATE":
        yield _row(table, new), 1


def _row(table: str, text: str) -> Row:
    values = {name: int(value) for name, value in _VALUE.findall(text)}
    return table, values["id"], values["balance"]


def judge(course: Course, updates: Iterable[tuple[int, int, Row]], place: int) -> int:
    """Check the updates of a SUBSCRIBE (time, diff, row), from the beginning: at each time the rows are those
    of a state, and states come in order. `place` is the least number of the first. Returns the last one."""
    digest, last = 0, None
    for time, diff, row in updates:
        if last is not None and time != last:
            place = _placed(course, digest, place, last)
        digest, last = (digest + diff * hash(row)) & MASK, time
    return place if last is None else _placed(course, digest, place, last)


def _placed(course: Course, digest: int, place: int, time: int) -> int:
    found = course.place(digest, place)
    if found is None:
        earlier = course.place(digest, 0)
        what = (
            "no state of the upstream" if earlier is None else f"state {earlier}, and was at {place} before"
        )
        raise Broken(f"at {time} the tables are {what}")
    return found
