"""Our side of the PostgreSQL benchmark: a source of the upstream's publication."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from bench.ours import OurServer, started
from bench.postgres.upstream import PUBLICATION, Upstream
from tidemill.dev.postgres import DATABASE, USER
from tidemill.dev.process import HOST

CONNECTION = "upstream"
# By the type of its key, whatever else it has: what a source must equal.
CHECKS = {
    "pgbench_accounts": "count(*), sum(aid::bigint), sum(abalance::bigint)",
    "pgbench_tellers": "count(*), sum(tid::bigint), sum(tbalance::bigint)",
    "pgbench_branches": "count(*), sum(bid::bigint), sum(bbalance::bigint)",
    "pgbench_history": "count(*), sum(aid::bigint), sum(delta::bigint)",
}


class Ours(OurServer):
    """One server; sources of one upstream."""

    def connect_to(self, upstream: Upstream) -> None:
        place = f"HOST '{HOST}', PORT {upstream.process.port}, USER '{USER}', DATABASE '{DATABASE}'"
        self.execute(f"CREATE CONNECTION {CONNECTION} TO POSTGRES ({place}, SSL MODE disable)")

    def create(self, name: str, tables: Sequence[str], tick: str = "1s") -> None:
        self.execute(
            f"CREATE SOURCE {name} FROM POSTGRES CONNECTION {CONNECTION} (PUBLICATION '{PUBLICATION}') "
            f"FOR TABLES ({', '.join(tables)}) WITH (TIMESTAMP INTERVAL '{tick}')"
        )
        self.created(name)

    def check(self, upstream: Upstream, tables: Sequence[str]) -> None:
        """Ends the program if a table is not as it is upstream."""
        for table in tables:
            query = f"SELECT {CHECKS[table]} FROM {table}"
            mine = [None if x is None else int(x) for x in self.execute(query)[0]]
            theirs = [
                None if x is None else int(x) for x in upstream.sql.execute(query.encode()).fetchall()[0]
            ]
            if mine != theirs:
                raise SystemExit(f"{table} has {mine}, upstream {theirs}")


@contextmanager
def ours(upstream: Upstream, *args: str) -> Generator[Ours]:
    with started(*args) as (server, scratch):
        one = Ours(server, scratch)
        try:
            one.connect_to(upstream)
            yield one
        finally:
            one.close()
