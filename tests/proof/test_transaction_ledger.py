"""TRANSACTION METADATA over a real Debezium on a real PostgreSQL, with kill -9 of Connect, the broker and
the server in turn: at every time three tables show a whole number of upstream transactions, in their order,
and in the end they equal the upstream. So do views over them, materialized and not, and what the reader of a
durable subscription is told all the while. `make chaos` goes 100 rounds.

A transfer goes between accounts of different tables, so the sum of all tells a torn transaction. One writer
also numbers its transactions in every table, so unequal numbers tell a torn or exchanged one.

Connect restarts its tasks when it is killed, and also when the broker is. A Debezium before 3.7 then loses
transactions, which is no fault of ours: where the rows differ, the test reads the topics, and tells which
committed change is in none of them, and which rows are not those that the topics add up to.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from proof_debezium import SECONDS, SEED, DebeziumProof
from proof_subscriber import Rows, Subscriber
from proof_topics import Row, Topics

from support.debezium import Debezium, SchemaRegistry
from support.kafka import Kafka

TABLES = ("east", "north", "west")
ACCOUNTS = 8
BALANCE = 100
# By the form of the messages: the envelope, the format, and a table's rows from its relation.
FORMS = {
    "avro": ("DEBEZIUM", "FORMAT AVRO USING CONFLUENT SCHEMA REGISTRY CONNECTION c", "id, balance"),
    "json": (
        "DEBEZIUM UPSERT",
        "KEY FORMAT JSON VALUE FORMAT JSON",
        "(data->>'id')::int AS id, (data->>'balance')::int AS balance",
    ),
}
# The number of a writer's last transaction is the balance of this account.
NUMBER = 0
# Of these accounts the random transfers know nothing: a transaction may hold them while others work.
APART = (ACCOUNTS + 1, ACCOUNTS + 2)
ROWS = len(TABLES) * (APART[-1] + 1)
TOTAL = len(TABLES) * ACCOUNTS * BALANCE


class Ledger(DebeziumProof):
    """`number` of the last numbered transaction. `checked`: from which time on histories were not checked.
    `committed`: by the id of a transaction of the upstream the rows that it wrote. `prefixes` of the topics,
    by form."""

    rng: random.Random
    number: int
    checked: dict[str, int]
    committed: dict[int, list[Row]]
    prefixes: dict[str, str]
    subscribers: dict[str, Subscriber]

    def create(self) -> None:
        self.rng, self.number, self.checked = random.Random(11 + SEED), 0, {}
        self.committed = {}
        with self.debezium.sql() as sql:
            for table in TABLES:
                sql.execute(f"DROP TABLE IF EXISTS {table}".encode())
                sql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, balance int NOT NULL)".encode())
                sql.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL".encode())
                sql.execute(
                    f"INSERT INTO {table} "
                    f"SELECT n, CASE WHEN n BETWEEN 1 AND {ACCOUNTS} THEN {BALANCE} ELSE 0 END "
                    f"FROM generate_series(0, {APART[-1]}) n".encode()
                )
        names = [f"public.{table}" for table in TABLES]
        # So that a kill of Connect makes it repeat something.
        often = {"offset.flush.interval.ms": "3000"}
        prefixes = {form: self.debezium.capture(*names, avro=form == "avro", **often) for form in FORMS}
        self.prefixes = prefixes
        self.wait_for_records(*(f"{p}.public.{t}" for p in prefixes.values() for t in TABLES))
        # The transaction topic is made by the first transaction.
        self.transfers(1)
        self.wait_for_records(*(f"{prefix}.transaction" for prefix in prefixes.values()))
        self.server.start()
        with self.ask() as c:
            self.connect(c)
            for form, (envelope, clauses, columns) in FORMS.items():
                topic, plain = prefixes[form], clauses.replace("KEY FORMAT JSON VALUE ", "")
                read = "FROM KAFKA CONNECTION k"
                c.execute(f"CREATE SOURCE {form}_tx {read} (TOPIC '{topic}.transaction') {plain}".encode())
                for table in TABLES:
                    c.execute(
                        f"CREATE SOURCE {form}_{table} {read} (TOPIC '{topic}.public.{table}') {clauses} "
                        f"ENVELOPE {envelope} (TRANSACTION METADATA (SOURCE {form}_tx, "
                        f"COLLECTION 'public.{table}')) WITH (RETAIN HISTORY FOR '1 hour')".encode()
                    )
                of_all = " UNION ALL ".join(
                    f"SELECT '{table}' AS name, {columns} FROM {form}_{table}" for table in TABLES
                )
                c.execute(f"CREATE VIEW {form}_all AS {of_all}".encode())
                c.execute(
                    f"CREATE VIEW {form}_state AS SELECT count(*) AS rows, "
                    f"sum(CASE id WHEN {NUMBER} THEN 0 ELSE balance END) AS total, "
                    f"min(CASE id WHEN {NUMBER} THEN balance END) AS least, "
                    f"max(CASE id WHEN {NUMBER} THEN balance END) AS most FROM {form}_all".encode()
                )
                c.execute(f"CREATE MATERIALIZED VIEW {form}_kept AS SELECT * FROM {form}_state".encode())
                c.execute(f"CREATE SUBSCRIPTION {form}_told FOR {form}_all".encode())
        for form in FORMS:
            self.subscribers[form] = Subscriber(f"{form}_told", self.ask, whole_rows)

    def transfers(self, count: int, *, numbered: bool = True, seed: int = 0) -> None:
        rng = random.Random(seed)
        with self.debezium.sql() as sql:
            for _ in range(count):
                number = self.number + 1 if numbered else None
                try:
                    with sql.transaction():
                        transaction, rows = self.transfer(sql, rng, number)
                except psycopg.errors.DeadlockDetected:
                    continue
                self.committed[transaction] = rows
                self.number = number or self.number

    def transfer(
        self, sql: psycopg.Connection[Any], rng: random.Random, number: int | None
    ) -> tuple[int, list[Row]]:
        rows: list[Row] = []
        if number is not None:
            rows += [update(sql, table, NUMBER, str(number)) for table in TABLES]
        for _ in range(rng.choice((1, 1, 2, 30))):
            amount = rng.randint(1, 9)
            for table, by in zip(rng.sample(TABLES, 2), (amount, -amount), strict=True):
                rows.append(update(sql, table, rng.randint(1, ACCOUNTS), f"balance + {by}"))
        return transaction_id(sql), rows

    def trouble(self, which: str) -> None:
        self.work()
        behind = self.behind() if which != "server" else None
        self.kill(which)
        if behind is not None:
            behind.commit()
            behind.close()
        self.work()
        self.start(which)
        self.work()

    def behind(self) -> psycopg.Connection[Any]:
        """A transaction, not committed, with a change right behind the commit of another one in PostgreSQL's
        log. That commit is the last that the connectors noted. A Debezium before 3.7 then loses it."""
        early, late = APART
        begun = psycopg.connect(self.debezium.postgres.dsn)
        rows = [update(begun, "east", early, "balance - 1")]
        with self.debezium.sql() as sql, sql.transaction():
            others = [
                update(sql, table, late, f"balance {by}") for table, by in (("east", "- 1"), ("west", "+ 1"))
            ]
            self.committed[transaction_id(sql)] = others
        with self.debezium.sql() as sql:
            (commit,) = sql.execute("SELECT pg_current_wal_insert_lsn()").fetchall()
        rows.append(update(begun, "north", early, "balance + 1"))
        self.committed[transaction_id(begun)] = rows
        slots = [f"{prefix}_slot" for prefix in self.prefixes.values()]
        slot = b"SELECT count(*) FROM pg_replication_slots WHERE slot_name = ANY(%s)"
        noted = slot + b" AND confirmed_flush_lsn >= %s"
        deadline = time.monotonic() + SECONDS
        with self.debezium.sql() as sql:
            while sql.execute(noted, (slots, *commit)).fetchall() != [(len(slots),)]:
                assert time.monotonic() < deadline, "the connectors do not note how far they are"
                time.sleep(0.2)
        return begun

    def work(self) -> None:
        """Two writers, whose commits are in another order than their changes."""
        seed = self.rng.randrange(1 << 30)
        with ThreadPoolExecutor(2) as pool:
            other = pool.submit(self.transfers, 10, numbered=False, seed=seed)
            self.transfers(15, seed=seed + 1)
            other.result()

    def equal(self) -> None:
        """All tables come to hold what the upstream holds."""
        rows = " UNION ALL ".join(f"SELECT '{table}', id, balance FROM {table}" for table in TABLES)
        with self.debezium.sql() as sql:
            wanted = sql.execute(f"{rows} ORDER BY 1, 2".encode()).fetchall()
        with self.ask() as c:
            for form in FORMS:
                deadline = time.monotonic() + SECONDS
                while (found := self.rows(c, form)) != wanted:
                    if isinstance(found, str) or time.monotonic() > deadline:
                        raise AssertionError(self.explained(c, form, found, wanted))
                    time.sleep(0.2)
                self.subscribers[form].wait_for(Counter(wanted), SECONDS)

    def rows(self, c: psycopg.Connection[Any], form: str) -> list[Row] | str:
        """What the tables have; the error if they have a row less often than not at all."""
        try:
            return c.execute(f"SELECT name, id, balance FROM {form}_all ORDER BY 1, 2".encode()).fetchall()
        except psycopg.errors.DataException as error:
            return str(error)

    def explained(
        self, c: psycopg.Connection[Any], form: str, found: list[Row] | str, wanted: list[Row]
    ) -> str:
        """Whose fault it is that the tables do not have the rows of the upstream."""
        topics = Topics.read(self.kafka, self.registry, self.prefixes[form], TABLES)
        lines = [f"The tables of {form} are not those of the upstream."]
        if lacking := topics.lacks(self.committed):
            lines.append(f"Debezium's: of these transactions no topic has these rows: {lacking}")
        told = topics.rows()
        if told != Counter(wanted):
            lines.append(f"The topics add up to {told - Counter(wanted)}, without {Counter(wanted) - told}")
        if isinstance(found, str):
            lines.append(f"Tidemill: {found}")
        elif Counter(found) != told:
            ours, theirs = Counter(found) - told, told - Counter(found)
            lines.append(f"Tidemill's: not what the topics add up to: {ours} too much, {theirs} too little")
        lines += map(
            str,
            c.execute(b"SELECT name, status, error, details FROM mz_internal.mz_source_statuses").fetchall(),
        )
        return "\n".join(lines)

    def whole(self) -> None:
        """At every time that was not checked yet, the tables show whole transactions."""
        with self.ask() as c:
            for view in (f"{form}_{which}" for form in FORMS for which in ("state", "kept")):
                since = self.checked.get(view)
                begin = f"AS OF {since}" if since else "AS OF EARLIEST"
                seen = c.execute(f"SUBSCRIBE {view} {begin} UP TO LATEST".encode()).fetchall()
                rows = [row for row in seen if row[1] > 0]
                assert rows or since
                torn = [r for r in rows if r[3] != TOTAL or r[4] != r[5] or r[2] != ROWS]
                assert torn == [], (view, torn[:5])
                numbers = [int(row[4]) for row in rows]
                assert numbers == sorted(numbers), (view, numbers)
                if rows:
                    self.checked[view] = int(rows[-1][0])
        for form, subscriber in self.subscribers.items():
            assert subscriber.times > 1, form


def whole_rows(rows: Rows) -> None:
    """What is true of the rows of all tables at every time."""
    assert set(rows.values()) == {1} and len(rows) == ROWS, rows
    assert len({balance for _, account, balance in rows if account == NUMBER}) == 1, rows
    assert sum(balance for _, account, balance in rows if account != NUMBER) == TOTAL, rows


def update(sql: psycopg.Connection[Any], table: str, account: int, balance: str) -> Row:
    """The row that is there afterwards."""
    query = f"UPDATE {table} SET balance = {balance} WHERE id = {account} RETURNING id, balance"
    (row,) = sql.execute(query.encode()).fetchall()
    return table, row[0], row[1]


def transaction_id(sql: psycopg.Connection[Any]) -> int:
    """Of the transaction that is open; as Debezium tells it, which is without the epoch."""
    (row,) = sql.execute("SELECT (pg_current_xact_id()::text::int8 % 4294967296)::int8").fetchall()
    return row[0]


@pytest.fixture
def ledger(tmp_path: Path, kafka: Kafka, registry: SchemaRegistry, debezium: Debezium) -> Generator[Ledger]:
    with Ledger.of(tmp_path, kafka, registry, debezium) as made:
        made.subscribers = {}
        try:
            yield made
        finally:
            for subscriber in made.subscribers.values():
                subscriber.stop()


@pytest.mark.timeout(1200)
def test_every_time_shows_whole_transactions_whoever_is_killed(ledger: Ledger) -> None:
    ledger.create()
    ledger.equal()
    for which in ("connect", "server", "broker", "server", "connect"):
        ledger.trouble(which)
    ledger.equal()
    ledger.whole()


@pytest.mark.chaos
@pytest.mark.timeout(14400)
def test_every_time_shows_whole_transactions_in_many_rounds(ledger: Ledger) -> None:
    ledger.create()
    for compared in ledger.rounds():
        if compared:
            ledger.equal()
            ledger.whole()
