"""Random transactions of two sessions beside a model in Python: after each commit the tables are as it says.

What is read is any range between two commits, in any shares, twice, and again after a crash at any point,
when the transactions are received from the slot once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, LiteralString, TypeAlias

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postgres.source_world import Row, SourceWorld
from support.upstream_postgres import UpstreamDatabase
from tidemill.sources.offsets import Offsets
from tidemill.sources.postgres import segment, source, spool
from tidemill.sources.postgres.lsn import parse_lsn

pytestmark = pytest.mark.server

TABLES = 3
KEYS = 12
MANY = 40
# A value that is moved out of its row.
LARGE = "x" * 5000

# The rows of the tables by key.
State: TypeAlias = list[dict[int, tuple[int | None, str]]]


@pytest.fixture
def world(upstream: UpstreamDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[SourceWorld]:
    """With limits so small that transactions are cut into blocks, and blocks into shares."""
    monkeypatch.setattr(source, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(source, "TASK_MESSAGES", 7)
    monkeypatch.setattr(spool, "BLOCK_MESSAGES", 16)
    monkeypatch.setattr(spool, "SEGMENT_BYTES", 2000)
    monkeypatch.setattr(segment, "CHUNK_MESSAGES", 20)
    names = [f"t{n}" for n in range(TABLES)]
    upstream.run(
        *(f"CREATE TABLE {name} (id int, v int, b text)" for name in names),
        *(f"ALTER TABLE {name} ALTER b SET STORAGE EXTERNAL" for name in names),
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in names),
        f"CREATE PUBLICATION p FOR TABLE {', '.join(names)}",
    )
    made = SourceWorld(upstream, *names)
    made.catch_up()
    yield made
    made.close()


@dataclass
class Session:
    """A session and what it sees; it has the keys that are its number modulo two, so that nobody waits."""

    number: int
    sql: psycopg.Connection[Any]
    committed: State
    seen: State = field(default_factory=lambda: [{} for _ in range(TABLES)])
    savepoints: list[State] = field(default_factory=list[State])
    open: bool = False

    def begin(self) -> None:
        if not self.open:
            self.sql.execute("BEGIN")
            self.seen = copied(self.committed)
            self.savepoints, self.open = [], True

    def write(self, table: int, kind: str, key: int) -> None:
        self.begin()
        key = 2 * key + self.number
        rows = self.seen[table]
        name = f"t{table}"
        if kind == "put" and key not in rows:
            self.run(f"INSERT INTO {name} VALUES (%s, %s, %s)", key, key, "new")
            rows[key] = (key, "new")
        elif kind == "put":
            self.run(f"UPDATE {name} SET v = v + 1 WHERE id = %s", key)
            v, b = rows[key]
            rows[key] = (None if v is None else v + 1, b)
        elif kind == "large":
            self.run(f"UPDATE {name} SET b = %s, v = NULL WHERE id = %s", LARGE, key)
            if key in rows:
                rows[key] = (None, LARGE)
        elif kind == "move" and key + 2 * KEYS not in rows:
            self.run(f"UPDATE {name} SET id = id + {2 * KEYS} WHERE id = %s", key)
            if key in rows:
                rows[key + 2 * KEYS] = rows.pop(key)
        elif kind == "delete":
            self.run(f"DELETE FROM {name} WHERE id = %s", key)
            rows.pop(key, None)
        elif kind == "message":
            # Not asked for.
            self.run("SELECT pg_logical_emit_message(true, 'tidemill', 'x')")
        elif kind == "many":
            first = 1000 + self.number
            self.run(f"DELETE FROM {name} WHERE id >= 1000 AND id %% 2 = %s", self.number)
            self.run(
                f"INSERT INTO {name} SELECT {first} + 2 * i, %s, '' FROM generate_series(1, {MANY}) i", key
            )
            self.seen[table] = {k: row for k, row in rows.items() if k < 1000 or k % 2 != self.number}
            self.seen[table].update({first + 2 * i: (key, "") for i in range(1, MANY + 1)})

    def run(self, statement: str, *values: object) -> None:
        self.sql.execute(statement.encode(), values)

    def savepoint(self) -> None:
        self.begin()
        self.sql.execute(f"SAVEPOINT s{len(self.savepoints)}".encode())
        self.savepoints.append(copied(self.seen))

    def back(self) -> None:
        if self.open and self.savepoints:
            self.seen = self.savepoints.pop()
            self.sql.execute(f"ROLLBACK TO s{len(self.savepoints)}".encode())

    def end(self, how: LiteralString) -> bool:
        """Returns whether something may have been committed."""
        if not self.open:
            return False
        self.open = False
        if how == "prepare":
            name = f"p{self.number}"
            self.run(f"PREPARE TRANSACTION '{name}'")
            self.run(f"COMMIT PREPARED '{name}'")
        else:
            self.run("COMMIT" if how == "commit" else "ROLLBACK")
        if how == "rollback":
            return False
        for table, rows in enumerate(self.seen):
            mine = {key: row for key, row in rows.items() if key % 2 == self.number}
            others = {key: row for key, row in self.committed[table].items() if key % 2 != self.number}
            self.committed[table] = {**others, **mine}
        return True


def copied(state: State) -> State:
    return [dict(rows) for rows in state]


def rows_of(state: State) -> dict[int, dict[Row, int]]:
    return {n: {(key, *row): 1 for key, row in rows.items()} for n, rows in enumerate(state)}


WRITE = st.tuples(
    st.just("write"),
    st.integers(0, TABLES - 1),
    st.sampled_from(["put", "put", "put", "large", "move", "delete", "many", "message"]),
    st.integers(0, KEYS - 1),
)
STEP = st.tuples(
    st.integers(0, 1),
    st.one_of(
        WRITE,
        WRITE,
        WRITE,
        st.just(("savepoint",)),
        st.just(("back",)),
        st.tuples(st.just("end"), st.sampled_from(["commit", "commit", "prepare", "rollback"])),
    ),
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEP, min_size=5, max_size=60), st.data())
def test_the_tables_are_those_of_each_commit(
    world: SourceWorld, steps: list[tuple[int, tuple[Any, ...]]], data: st.DataObject
) -> None:
    world.upstream.run(*(f"DELETE FROM t{n}" for n in range(TABLES)))
    world.catch_up()
    assert all(not world.table(n) for n in range(TABLES))
    begin = world.bound
    committed: State = [{} for _ in range(TABLES)]
    # The end of the log behind each commit, and the tables then.
    course: list[tuple[Offsets, State]] = [(begin, copied(committed))]
    with world.upstream.session() as one, world.upstream.session() as two:
        sessions = [Session(n, sql, committed) for n, sql in enumerate((one, two))]

        def end(session: Session, how: Any) -> None:
            if session.end(how):
                ((lsn,),) = session.sql.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
                course.append((Offsets.at(parse_lsn(lsn)), copied(committed)))

        for number, (what, *how) in steps:
            session = sessions[number]
            if what == "end":
                end(session, *how)
            else:
                getattr(session, {"write": "write", "savepoint": "savepoint", "back": "back"}[what])(*how)
        for session in sessions:
            end(session, "commit")
    _, upper = world.bind(course[-1][0][None])
    # Some of the commits, the last one, and what may be behind it.
    stops = [at for at in course[1:-1] if data.draw(st.booleans())] + course[-1:]
    crash = data.draw(st.integers(0, 2 * len(stops)))
    found = {n: Counter[Row]() for n in range(TABLES)}
    lower = begin
    for n, (at, state) in enumerate(stops):
        ways = data.draw(st.integers(1, 4))
        rows, errors = world.read(lower, at, ways=ways)
        assert not any(errors.values())
        if n == crash:
            world.crash()
        assert world.retry(lambda lower=lower, at=at: world.read(lower, at)) == (rows, errors)
        for table, counted in rows.items():
            found[table].update(counted)
        there = {table: {row: c for row, c in counted.items() if c} for table, counted in found.items()}
        assert there == rows_of(state)
        lower = at
    world.keep(begin, upper)
    assert {n: world.table(n) for n in range(TABLES)} == rows_of(committed)
