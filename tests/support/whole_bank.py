"""Two tables of an upstream whose transactions change both, and the sources over them, which must show whole
ones."""

from __future__ import annotations

from typing import Any

import psycopg

from support.kafka import Kafka
from support.upstream_log import UpstreamLog

TABLES = ("left", "right")
BOTH = (
    "SELECT l.v, r.v FROM (SELECT (data->>'v')::int AS v FROM l) l, (SELECT (data->>'v')::int AS v FROM r) r"
)
# How far the tables are, and how many changes of the left one were put aside.
WITH_LETTERS = (
    "SELECT l.v AS l, r.v AS r, b.n AS bad FROM (SELECT (data->>'v')::int AS v FROM l) l, "
    "(SELECT (data->>'v')::int AS v FROM r) r, (SELECT count(*)::int AS n FROM l_dead_letters) b"
)


class Bank:
    """Two tables with one row each, and the sources `l` and `r` over them."""

    def __init__(self, home: psycopg.Connection[Any], kafka: Kafka) -> None:
        self.home = home
        names = [*(f"public.{table}" for table in TABLES), "transaction"]
        self.log = UpstreamLog(kafka, {name: kafka.create_topic() for name in names})
        self.run(f"CREATE CONNECTION k TO KAFKA (BROKER '{kafka.bootstrap}')")
        self.value = 0
        for table in TABLES:
            self.log.snapshot(f"public.{table}", {"id": 1, "v": 0})
        self.log.flush()

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        cursor = self.home.execute(sql.encode())
        return [] if cursor.description is None else cursor.fetchall()

    def create(self, envelope: str = "DEBEZIUM") -> None:
        self.create_topic()
        for table in TABLES:
            self.create_table(table, envelope)

    def create_topic(self, clauses: str = "") -> None:
        topic = self.log.topics["transaction"]
        self.run(f"CREATE SOURCE tx FROM KAFKA CONNECTION k (TOPIC '{topic}') FORMAT JSON {clauses}")

    def create_table(self, table: str, envelope: str = "DEBEZIUM", clauses: str = "") -> None:
        topic = self.log.topics[f"public.{table}"]
        self.run(
            f"CREATE SOURCE {table[0]} FROM KAFKA CONNECTION k (TOPIC '{topic}') "
            f"KEY FORMAT JSON VALUE FORMAT JSON ENVELOPE {envelope} "
            f"(TRANSACTION METADATA (SOURCE tx, COLLECTION 'public.{table}')) {clauses}",
        )

    def raise_both(self, **options: Any) -> str:
        """One transaction: the values of both tables."""
        before, self.value = self.value, self.value + 1
        return self.log.transaction(
            *((f"public.{table}", {"id": 1, "v": before}, {"id": 1, "v": self.value}) for table in TABLES),
            **options,
        )

    def damage(self, **changed: str | None) -> None:
        """What was queued last of the left table."""
        queued = self.log.queued["public.left"]
        queued[-1] = queued[-1]._replace(**changed)

    def torn_letters(self, view: str) -> object:
        """Of WITH_LETTERS, the times at which a dead letter was not there with the rest of its transaction:
        the left table is where it was before the letters that came since."""
        rows = self.run(f"SUBSCRIBE {view} AS OF EARLIEST UP TO LATEST")
        shown = [tuple(map(int, row[2:])) for row in rows if row[1] > 0]
        assert shown == sorted(shown, key=lambda row: row[1])
        return [(left, right, bad) for left, right, bad in shown if not left <= right <= left + bad]

    def torn(self) -> object:
        """The times at which one table was ahead of the other."""
        seen = self.run(
            "SUBSCRIBE (SELECT l.v - r.v AS off FROM (SELECT (data->>'v')::int AS v FROM l) l, "
            "(SELECT (data->>'v')::int AS v FROM r) r) AS OF EARLIEST UP TO LATEST",
        )
        assert seen
        return [row for row in seen if row[-1]]

    def values(self) -> object:
        """The values, or an error's first line."""
        try:
            return self.run(BOTH)
        except psycopg.Error as e:
            return e.diag.message_primary
