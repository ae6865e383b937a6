"""A PostgreSQL whose tables a source can follow, with two tables and a load on them.

Called by `tidemill dev postgres`.
"""

from __future__ import annotations

from pathlib import Path

import psycopg

from tidemill.dev import bank
from tidemill.dev.jars import Progress
from tidemill.dev.postgres import DATABASE, USER, Postgres
from tidemill.dev.process import HOST, LocalProgram
from tidemill.dev.stack import Stack, addressed, indented

# Of all tables, also of those that are created later.
PUBLICATION = "tidemill"
CREATE_PUBLICATION = f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES WITH (publish_via_partition_root)"
# Sources hold a slot each, and a second one while they take a snapshot.
SETTINGS = {"max_replication_slots": "20", "max_wal_senders": "20"}


class PostgresStack(Stack):
    """`folder` is kept between starts. `load` is the rate of transfers per second; none if it is 0."""

    def __init__(self, folder: Path, port: int, *, load: float) -> None:
        super().__init__([port])
        self.postgres = Postgres(folder / "postgres", port=port, settings=SETTINGS)
        self._load = load
        self._transfers: bank.Transfers | None = None

    @property
    def programs(self) -> list[LocalProgram]:
        return [self.postgres]

    def _prepare(self, tell: Progress) -> None:
        created = bank.create_tables(self.postgres)
        with psycopg.connect(self.postgres.dsn, autocommit=True) as sql:
            if not sql.execute("SELECT FROM pg_publication WHERE pubname = %s", [PUBLICATION]).rowcount:
                sql.execute(CREATE_PUBLICATION.encode())
            if created:
                sql.execute(bank.TRANSFER)
            # Tables of an earlier start may be others.
            loaded = sql.execute("SELECT to_regclass('public.transfers')").fetchall()[0][0] is not None
        if self._load and loaded:
            self._transfers = bank.Transfers(self.postgres, self._load)
            self._transfers.start()

    def stop(self) -> None:
        if self._transfers is not None:
            self._transfers.close()
            self._transfers = None
        super().stop()

    def introduction(self) -> list[str]:
        return [
            *addressed({"PostgreSQL": f'psql "{self.postgres.dsn}"'}),
            "",
            f"It has the tables accounts and transfers; transfers per second: {self._load:g} (--load).",
            f"The publication {PUBLICATION} has all tables.",
            "For your own, first: ALTER TABLE t REPLICA IDENTITY FULL;",
            "",
            "In Tidemill:",
            "",
            *indented(self._statements()),
            "",
            "and then in PostgreSQL:",
            "",
            f"  {bank.CHANGE}",
        ]

    def _statements(self) -> list[str]:
        """The two statements that make the tables live, and one that shows it."""
        place = f"HOST '{HOST}', PORT {self.postgres.port}, USER '{USER}', DATABASE '{DATABASE}'"
        return [
            f"CREATE CONNECTION pg TO POSTGRES ({place});",
            f"CREATE SOURCE bank FROM POSTGRES CONNECTION pg (PUBLICATION '{PUBLICATION}') FOR ALL TABLES;",
            "SUBSCRIBE accounts;",
        ]
