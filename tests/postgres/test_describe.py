"""What a publication on a real server has, and what is refused when a source is made of it."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support.upstream_postgres import UpstreamDatabase
from tidemill.dev.postgres import Postgres
from tidemill.errors import TidemillError, Unsupported
from tidemill.sources.postgres import connect
from tidemill.sources.postgres.describe import Published, PublishedTable, look, replicated
from tidemill.types.model import type_name

pytestmark = pytest.mark.server


def published(upstream: UpstreamDatabase) -> Published:
    return look(upstream.options, "p")


def table(found: Published, name: str) -> PublishedTable:
    return next(t for t in found.tables if t.table == name)


def types_of(upstream: UpstreamDatabase, name: str, **options: Any) -> dict[str, str]:
    found = published(upstream)
    return {c.name: type_name(c.type) for c in replicated(found, table(found, name), **options).columns}


def refused(upstream: UpstreamDatabase, name: str, **options: Any) -> TidemillError:
    found = published(upstream)
    with pytest.raises(TidemillError) as caught:
        replicated(found, table(found, name), **options)
    return caught.value


def test_columns_have_the_types_of_the_upstream(upstream: UpstreamDatabase) -> None:
    upstream.run(
        "CREATE DOMAIN small AS numeric(5,2) CHECK (value > 0)",
        "CREATE DOMAIN many AS small[]",
        """CREATE TABLE t (b bool NOT NULL, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric,
        n2 numeric(10,2), big numeric(5,-2), tiny numeric(2,5), t text, v varchar(7), v0 varchar, c char(4),
        nm name, ch "char", by bytea, d date, tm time, ts timestamp(3), tz timestamptz, iv interval, u uuid,
        j json, jb jsonb, o oid, ia int4[], ta varchar(3)[], dom small, doms many,
        g int GENERATED ALWAYS AS (i4 + 1) STORED)""",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    assert types_of(upstream, "t") == {
        "b": "boolean",
        "i2": "smallint",
        "i4": "integer",
        "i8": "bigint",
        "f4": "real",
        "f8": "double precision",
        "n": "numeric",
        "n2": "numeric(10,2)",
        "big": "numeric(7,0)",
        "tiny": "numeric(5,5)",
        "t": "text",
        "v": "character varying(7)",
        "v0": "character varying",
        "c": "character(4)",
        "nm": "text",
        "ch": "text",
        "by": "bytea",
        "d": "date",
        "tm": "time without time zone",
        "ts": "timestamp without time zone",
        "tz": "timestamp with time zone",
        "iv": "interval",
        "u": "uuid",
        "j": "jsonb",
        "jb": "jsonb",
        "o": "oid",
        "ia": "integer[]",
        "ta": "character varying(3)[]",
        "dom": "numeric(5,2)",
        "doms": "numeric(5,2)[]",
    }
    found = published(upstream)
    assert [c.nullable for c in replicated(found, table(found, "t")).columns][:2] == [False, True]
    assert table(found, "t").left_out == ("g",)


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        ("mood", "mood"),
        ("mood[]", "mood[]"),
        ("int4range", "int4range"),
        ("point", "point"),
        ("inet", "inet"),
        ("timetz", "time with time zone"),
        ("money", "money"),
        ("bit(3)", "bit"),
        ("int2vector", "int2vector"),
        ("numeric(39,1)", "numeric(39,1)"),
        ("numeric(1000,1)[]", "numeric[]"),
    ],
)
def test_another_type_is_refused_or_kept_as_text(upstream: UpstreamDatabase, column: str, shown: str) -> None:
    upstream.run(
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        f"CREATE TABLE t (a int, x {column})",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR ALL TABLES",
    )
    error = refused(upstream, "t")
    assert error.primary.startswith(f"type {shown if 'mood' not in shown else f'public.{shown}'} of column")
    assert "public.t.x" in error.primary and "TEXT COLUMNS (t.x)" in str(error.hint)
    assert types_of(upstream, "t", text=["x"]) == {"a": "integer", "x": "text"}
    assert types_of(upstream, "t", exclude=["x"]) == {"a": "integer"}


@pytest.mark.parametrize("column", ["regclass", "regtype[]", "aclitem", "names"])
def test_names_of_other_objects_are_not_kept_as_text(upstream: UpstreamDatabase, column: str) -> None:
    """They change when the object is renamed, and the rows that have them do not."""
    upstream.run(
        "CREATE DOMAIN names AS regrole",
        f"CREATE TABLE t (a int, x {column})",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR ALL TABLES",
    )
    with pytest.raises(Unsupported, match=r"of column public\.t\.x is not supported") as caught:
        types_of(upstream, "t", text=["x"])
    assert "EXCLUDE COLUMNS (t.x)" in str(caught.value.hint)
    assert types_of(upstream, "t", exclude=["x"]) == {"a": "integer"}


def test_replica_identity_must_be_full(upstream: UpstreamDatabase) -> None:
    upstream.run(
        'CREATE TABLE "My" (a int PRIMARY KEY)',
        "CREATE TABLE parts (a int) PARTITION BY LIST (a)",
        "CREATE TABLE one PARTITION OF parts FOR VALUES IN (1)",
        "CREATE TABLE two PARTITION OF parts FOR VALUES IN (2)",
        "ALTER TABLE two REPLICA IDENTITY FULL",
        'CREATE PUBLICATION p FOR TABLE "My", parts WITH (publish_via_partition_root)',
    )
    error = refused(upstream, "My")
    assert error.primary == 'table public."My" must have REPLICA IDENTITY FULL'
    assert error.hint == 'ALTER TABLE public."My" REPLICA IDENTITY FULL; at the server'
    assert refused(upstream, "parts").primary == "table public.one must have REPLICA IDENTITY FULL"
    upstream.run("ALTER TABLE one REPLICA IDENTITY FULL")
    assert types_of(upstream, "parts") == {"a": "integer"}


def test_a_publication_can_leave_columns_and_rows_out(upstream: UpstreamDatabase) -> None:
    upstream.run(
        "CREATE TABLE t (a int, b int, c int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE t (a, b) WHERE (a > 10)",
    )
    found = published(upstream)
    assert table(found, "t").filter == "(a > 10)" and table(found, "t").left_out == ("c",)
    assert types_of(upstream, "t") == {"a": "integer", "b": "integer"}
    assert "is not published" in refused(upstream, "t", text=["c"]).primary
    assert "Did you mean a" in str(refused(upstream, "t", exclude=["aa"]).hint)


def test_generated_columns_are_read_where_they_are_published(upstream: UpstreamDatabase) -> None:
    upstream.run(
        "CREATE TABLE t (a int, g int GENERATED ALWAYS AS (a + 1) STORED)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE t WITH (publish_generated_columns = stored)",
    )
    assert list(types_of(upstream, "t")) == ["a", "g"]


def look_error(options: dict[str, Any], publication: str = "p") -> TidemillError:
    with pytest.raises(TidemillError) as caught:
        look(options, publication)
    return caught.value


def test_rights_are_checked(upstream: UpstreamDatabase) -> None:
    user = f"u_{upstream.name}"
    upstream.run(
        f"CREATE ROLE {user} LOGIN REPLICATION",
        "CREATE TABLE t (a int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    try:
        found = look({**upstream.options, "user": user}, "p")
        with pytest.raises(TidemillError) as caught:
            replicated(found, found.tables[0])
        assert "permission denied for table public.t" in caught.value.primary
        upstream.run(f"GRANT SELECT ON t TO {user}", "ALTER TABLE t ENABLE ROW LEVEL SECURITY")
        found = look({**upstream.options, "user": user}, "p")
        with pytest.raises(TidemillError) as caught:
            replicated(found, found.tables[0])
        assert "row-level security" in caught.value.primary
        upstream.run(f"ALTER ROLE {user} NOREPLICATION")
        error = look_error({**upstream.options, "user": user})
        assert error.hint == f"ALTER ROLE {user} REPLICATION; at the server"
    finally:
        upstream.run(f"DROP OWNED BY {user}", f"DROP ROLE {user}")


def test_a_partitioned_table_is_as_its_partitions(upstream: UpstreamDatabase) -> None:
    """The snapshot reads each partition, so that a right to the table that they are of is not enough."""
    user = f"u_{upstream.name}"
    upstream.run(
        f"CREATE ROLE {user} LOGIN REPLICATION",
        "CREATE TABLE parts (a int, b int) PARTITION BY LIST (a)",
        "CREATE UNLOGGED TABLE one PARTITION OF parts FOR VALUES IN (1)",
        "ALTER TABLE one REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE parts WITH (publish_via_partition_root)",
        f"GRANT SELECT ON parts TO {user}",
        f"GRANT SELECT (a, b) ON one TO {user}",
    )
    upstream.options["user"] = user
    try:
        error = refused(upstream, "parts")
        assert error.primary == "table public.one is UNLOGGED at the server"
        assert error.hint == "ALTER TABLE public.one SET LOGGED; at the server"
        upstream.run("ALTER TABLE one SET LOGGED")
        # (LOCK TABLE is refused with rights to columns.)
        error = refused(upstream, "parts")
        assert error.primary == "permission denied for table public.one at the server"
        assert str(error.hint).startswith("GRANT USAGE ON SCHEMA public and GRANT SELECT ON public.one ")
        upstream.run(f"GRANT SELECT ON one TO {user}", "ALTER TABLE one ENABLE ROW LEVEL SECURITY")
        assert refused(upstream, "parts").primary == "table public.one has row-level security at the server"
        upstream.run("ALTER TABLE one DISABLE ROW LEVEL SECURITY")
        assert types_of(upstream, "parts") == {"a": "integer", "b": "integer"}
    finally:
        upstream.run(f"DROP OWNED BY {user}", f"DROP ROLE {user}")


def test_a_publication_must_be_there_and_have_every_change(upstream: UpstreamDatabase) -> None:
    upstream.run("CREATE TABLE t (a int)", "CREATE PUBLICATION pubs FOR TABLE t WITH (publish = 'insert')")
    error = look_error(upstream.options, "pub")
    assert error.primary == 'publication "pub" does not exist at the server'
    assert error.hint == "Did you mean pubs?"
    assert "leaves changes out" in look_error(upstream.options, "pubs").primary
    upstream.run("CREATE PUBLICATION none")
    assert "has no tables" in look_error(upstream.options, "none").primary


def test_a_server_that_refuses_or_is_not_there(upstream: UpstreamDatabase) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        error = look_error({**upstream.options, "port": free.getsockname()[1]})
    assert error.primary.startswith("cannot reach database") and "refused" in str(error.detail)
    assert "listen_addresses" in str(error.hint) and error.transient
    error = look_error({**upstream.options, "database": "nowhere"})
    assert 'database "nowhere" does not exist' in str(error.detail)
    error = look_error({**upstream.options, "user": "nobody"})
    assert 'role "nobody" does not exist' in str(error.detail)
    error = look_error({**upstream.options, "ssl_mode": "require"})
    assert "SSL" in str(error.detail) and "SSL MODE" in str(error.hint)


def test_the_environment_says_nothing_about_connections(
    upstream: UpstreamDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password of this process is not sent to a server that a user names."""
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("PGUSER", "someone")
    monkeypatch.setenv("PGOPTIONS", "-c DateStyle=German")
    with connect.connect({**upstream.options, "ssl_mode": "prefer"}) as sql:
        assert sql.info.password == "" and sql.info.user == "postgres"
        assert sql.execute("SHOW DateStyle").fetchone() == ("ISO, MDY",)


def test_wal_level_must_be_logical(upstream_server: Postgres, upstream: UpstreamDatabase) -> None:
    """Asked of a server of its own, with the least that it starts with."""
    with tempfile.TemporaryDirectory(prefix="tidemill-wal-", ignore_cleanup_errors=True) as folder:
        process = Postgres(Path(folder), settings={"wal_level": "replica"})
        process.start()
        try:
            error = look_error({**upstream.options, "port": process.port, "database": "postgres"})
        finally:
            process.stop()
    assert error.detail == "wal_level is replica." and "wal_level = logical" in str(error.hint)
