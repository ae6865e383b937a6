"""The tour of the page on PostgreSQL sources, typed into a real Tidemill and a real PostgreSQL."""

from __future__ import annotations

import re
from pathlib import Path

from support.server import ServerProcess
from support.upstream_postgres import UpstreamDatabase
from support.wire import Wire

from .docs import Psql, matches, split
from .test_docs_sql import settled

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sql" / "create-source-postgres.md"
_BLOCK = re.compile(r"^```sql (upstream|tidemill)\n(.*?)^```$(?:\s*^```\n(.*?)^```$)?", re.M | re.S)


def test_the_tour(server: ServerProcess, upstream: UpstreamDatabase) -> None:
    admin = Wire(server.sql_dsn)
    admin.run("CREATE DATABASE docs_postgres")
    here, there = Wire(f"{server.sql_dsn} dbname=docs_postgres"), Wire(upstream.dsn)
    blocks = _BLOCK.findall(PAGE.read_text())
    assert len(blocks) > 8
    try:
        for where, sql, shown in blocks:
            psql = Psql(there if where == "upstream" else here)
            got, failed, statement = "", False, ""
            for statement in split(sql):
                assert not failed, got
                got, failed = psql.type(_reached(statement, upstream))
            if shown:
                got = settled(psql, statement, shown.rstrip("\n"), got)
                assert matches(shown.rstrip("\n"), got), f"{statement}\nshows\n{shown}\nbut it is\n{got}"
            else:
                assert not failed, got
    finally:
        here.close()
        there.close()
        admin.run("DROP DATABASE docs_postgres CASCADE")
        admin.close()


def _reached(statement: str, upstream: UpstreamDatabase) -> str:
    """The test's server in the place of the reader's."""
    statement = statement.replace("PORT 5432", f"PORT {upstream.process.port}")
    return statement.replace("HOST 'localhost'", "HOST '127.0.0.1'").replace("'shop'", f"'{upstream.name}'")
