"""Upstreams that are set up in unusual ways: the same rows, or an error that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from postgres.source_world import SourceWorld
from support.upstream_postgres import UpstreamDatabase
from tidemill.sources.contract import UpstreamError
from tidemill.sources.postgres import source, table_faults

pytestmark = pytest.mark.server

# Each would change the texts of values, hide rows, or end a session in the middle. (The last timeouts are
# taken back behind the connection.)
SETTINGS = {
    "search_path": "nowhere",
    "DateStyle": "'German, DMY'",
    "IntervalStyle": "sql_standard",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "TimeZone": "'Asia/Kathmandu'",
    "lc_monetary": "'C'",
    "client_encoding": "LATIN1",
    "standard_conforming_strings": "off",
    "quote_all_identifiers": "on",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "statement_timeout": "'1ms'",
    "lock_timeout": "'1ms'",
    "idle_in_transaction_session_timeout": "'1ms'",
    "idle_session_timeout": "'1s'",
    "transaction_timeout": "'1s'",
    "row_security": "on",
    "session_replication_role": "replica",
    "synchronous_commit": "off",
}
ODD = (
    'CREATE SCHEMA "We""ird ä"',
    """CREATE TABLE "We""ird ä"."T'a b\\le" (
      "Sel ect" int, "c""d" text, "e'f" timestamptz, "ö" float8, "%s" interval, "by" bytea, "dä" date)""",
    """ALTER TABLE "We""ird ä"."T'a b\\le" REPLICA IDENTITY FULL""",
    """CREATE PUBLICATION "P ""q'" FOR TABLE "We""ird ä"."T'a b\\le" """,
)
TABLE = """ "We""ird ä"."T'a b\\le" """
FILLED = """INSERT INTO "We""ird ä"."T'a b\\le" VALUES
  (1, 'é\\x', '2024-03-31 01:30:00+00', 0.1::float8 + 0.2, '1 day -02:03:04', '\\x00ff5c', '2024-02-01')"""


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(table_faults, "WATCH_SECONDS", 0.0)


@pytest.fixture
def encoded(upstream: UpstreamDatabase) -> Iterator[Callable[[str], UpstreamDatabase]]:
    """Makes a database in an encoding."""
    made: list[UpstreamDatabase] = []

    def make(encoding: str) -> UpstreamDatabase:
        made.append(UpstreamDatabase(upstream.process, f"{upstream.name}_{encoding.lower()}"))
        upstream.run(
            f"CREATE DATABASE {made[-1].name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0",
        )
        return made[-1]

    yield make
    for database in made:
        for (slot,) in upstream.query(
            "SELECT slot_name::text FROM pg_replication_slots WHERE database = %s", [database.name]
        ):
            upstream.run(f"SELECT pg_drop_replication_slot('{slot}')")
        upstream.run(f"DROP DATABASE {database.name} WITH (FORCE)")


def test_names_settings_and_encodings(
    upstream: UpstreamDatabase, encoded: Callable[[str], UpstreamDatabase]
) -> None:
    """All of it at once: a table whose names need quotes, read by a role whose settings are all wrong."""
    latin = encoded("LATIN1")
    ((version,),) = upstream.query("SELECT current_setting('server_version_num')::int")
    upstream.run("CREATE ROLE odd LOGIN REPLICATION")
    try:
        for database in (upstream, latin):
            database.run(
                *ODD, FILLED, f"GRANT ALL ON {TABLE} TO odd", 'GRANT ALL ON SCHEMA "We""ird ä" TO odd'
            )
            for name, value in SETTINGS.items():
                if name != "transaction_timeout" or version >= 170_000:
                    database.run(f"ALTER ROLE odd IN DATABASE {database.name} SET {name} = {value}")
            database.options["user"] = "odd"
            world = SourceWorld(database, """T'a b\\le""", publication="""P "q'""")
            world.texts = True
            try:
                world.catch_up()
                row = ("é\\x", "2024-03-31 01:30:00+00", "0.30000000000000004", "1 day -02:03:04")
                row = (*row, "\\x00ff5c", "2024-02-01")
                assert world.table() == {("1", *row): 1}
                database.run(
                    # The stream has every row, whatever policies there are now.
                    f"ALTER TABLE {TABLE} ENABLE ROW LEVEL SECURITY",
                    f'UPDATE {TABLE} SET "Sel ect" = 2',
                    FILLED,
                    f"INSERT INTO {TABLE} DEFAULT VALUES",
                )
                world.catch_up()
                assert not world.errors[0]
                assert world.table() == {("2", *row): 1, ("1", *row): 1, (None,) * 7: 1}
            finally:
                world.close()
    finally:
        for database in (upstream, latin):
            database.run("DROP OWNED BY odd")
        upstream.run("DROP ROLE odd")


# Types with values at their ends, or in forms that are easily misread.
VALUES = {
    "date": ("infinity", "-infinity", "0044-03-15 BC", "5874897-12-31", "9999-12-31", "10000-01-01"),
    "timestamp": ("infinity", "-infinity", "0044-03-15 01:02:03 BC", "294276-12-31 23:59:59.999999"),
    "timestamptz": ("infinity", "0001-01-01 00:00:00+00 BC", "12024-01-01 00:00:00+00"),
    "time": ("24:00:00", "23:59:59.999999"),
    "interval": ("-1 year -2 mons +3 days -04:05:06.7", "178000000 years", "infinity", "00:00:00"),
    "float8": ("NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e308"),
    "float4": ("NaN", "-0", "1e-45", "3.4028235e38"),
    "numeric": ("NaN", "Infinity", "1e-20", "1e30", "-0.000000000000000001", "99999999999999999999"),
    "numeric(3,-2)": ("12345", "-50"),
    "numeric(2,5)": ("0.00012",),
    "int[]": ("[2:3]={1,2}", "{}", "{{1,2},{3,4}}", "{NULL}", "[0:0]={7}"),
    "text[]": ('{"a,b","c\\"d","NULL",NULL,"","\\\\"}', '{" x "}'),
    '"char"': ("\\200", "", "a"),
    "char(3)": ("", "a  "),
    "jsonb": ("1e400", '"\\u00e9"', "null", '{"a":1,"b":{"b":2,"a":[]}}'),
    "json": ('{"a":1,"a":2}', " 1.50 "),
    "uuid": ("ffffffff-ffff-ffff-ffff-ffffffffffff",),
    "bool": ("t", "f"),
    "oid": ("4294967295",),
    "varchar(2)": ("ab",),
    "bytea": ("\\x", "\\x00"),
}

REFUSED = {
    ("timestamp", "294276-12-31 23:59:59.999999"),
    ("numeric", "NaN"),
    ("numeric", "Infinity"),
    ("numeric", "1e-20"),
    ("numeric", "1e30"),
    ("int[]", "[2:3]={1,2}"),
    ("int[]", "{{1,2},{3,4}}"),
    ("int[]", "[0:0]={7}"),
}
AS_JSONB = {("json", '{"a":1,"a":2}'): '{"a": 2}', ("json", " 1.50 "): "1.5"}


def test_values_at_the_ends_of_their_types(upstream: UpstreamDatabase) -> None:
    """As PostgreSQL writes it, or an error of the table; in the snapshot and in the stream."""
    cases = [(t, v) for t, values in VALUES.items() for v in values]
    names = [f"v{n}" for n in range(len(cases))]
    with upstream.session() as sql:
        for name, (t, value) in zip(names, cases, strict=True):
            sql.execute(f"CREATE TABLE {name} (v {t})".encode())
            sql.execute(f"INSERT INTO {name} VALUES (%s::text::{t})".encode(), [value])
            sql.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL".encode())
    upstream.run("CREATE PUBLICATION p FOR ALL TABLES")
    world = SourceWorld(upstream, *names)
    world.texts = True
    try:
        world.catch_up()
        with upstream.session() as sql:
            for name, (t, value) in zip(names, cases, strict=True):
                sql.execute(f"INSERT INTO {name} VALUES (%s::text::{t})".encode(), [value])
        world.catch_up()
        refused: set[tuple[str, str]] = set()
        with upstream.session() as sql:
            sql.execute(b"SET TimeZone = 'UTC'")
            for n, (name, case) in enumerate(zip(names, cases, strict=True)):
                cursor = sql.execute(f"SELECT v FROM {name} LIMIT 1".encode())
                assert cursor.pgresult is not None
                shown = bytes(cursor.pgresult.get_value(0, 0) or b"").decode()
                if world.errors[n]:
                    # In both of them, and nothing beside it.
                    assert len(world.errors[n]) == 2 and not world.table(n), case
                    refused.add(case)
                else:
                    assert world.table(n) == {(AS_JSONB.get(case, shown),): 2}, case
        assert refused == REFUSED
    finally:
        world.close()


def test_bytes_that_are_no_text(encoded: Callable[[str], UpstreamDatabase]) -> None:
    """In a database without an encoding. PostgreSQL refuses to send them: the source stands, and says why."""
    database = encoded("SQL_ASCII")
    database.run(
        "CREATE TABLE t (v text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES ('ä')",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    world = SourceWorld(database, "t")
    try:
        world.catch_up()
        assert world.table() == {("ä",): 1}
        database.run("SET client_encoding = SQL_ASCII; INSERT INTO t VALUES (E'\\xe9')")
        failure = world.failure()
        assert "invalid byte sequence" in str(failure.detail) and "SQL_ASCII" in str(failure.hint)
        assert world.table() == {("ä",): 1} and not world.errors[0]
    finally:
        world.close()


def test_a_transaction_that_is_open_for_long(upstream: UpstreamDatabase) -> None:
    """A snapshot waits for its end, and says so. The stream does not wait."""
    upstream.run(
        "CREATE TABLE t (id int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    with upstream.session() as sql, upstream.session() as other:
        sql.execute("BEGIN; INSERT INTO t VALUES (1)")
        world = SourceWorld(upstream, "t")
        try:
            with pytest.raises(UpstreamError, match="waits for the end of its open transactions") as caught:
                world.source.frontier(0)
            assert caught.value.transient and "xact_start" in str(caught.value.hint)
            upstream.run("INSERT INTO t VALUES (2)")
            sql.execute("COMMIT")
            world.catch_up()
            assert world.table() == {(1,): 1, (2,): 1}
            sql.execute("BEGIN; INSERT INTO t VALUES (3)")
            other.execute("BEGIN; INSERT INTO t VALUES (4); DELETE FROM t WHERE id = 1; COMMIT")
            world.catch_up()
            assert world.table() == {(2,): 1, (4,): 1}
            world.crash()
            sql.execute("COMMIT")
            world.catch_up()
            assert world.table() == {(2,): 1, (3,): 1, (4,): 1}
        finally:
            world.close()


def test_tables_that_inherit(upstream: UpstreamDatabase) -> None:
    """Each row is in the table that holds it, and in no other, whichever name the statement had."""
    upstream.run(
        "CREATE TABLE base (id int)",
        "CREATE TABLE child (extra text) INHERITS (base)",
        "ALTER TABLE base REPLICA IDENTITY FULL",
        "ALTER TABLE child REPLICA IDENTITY FULL",
        "INSERT INTO base VALUES (1), (2)",
        "INSERT INTO child VALUES (1, 'x'), (3, 'y')",
        "CREATE PUBLICATION p FOR TABLE base",
    )
    world = SourceWorld(upstream, "base", "child")
    try:
        world.catch_up()
        upstream.run(
            "UPDATE base SET id = id + 10", "DELETE FROM base WHERE id = 13", "INSERT INTO child VALUES (7)"
        )
        world.catch_up()
        assert world.table() == world.wanted("SELECT * FROM ONLY base") == {(11,): 1, (12,): 1}
        assert world.table(1) == world.wanted("SELECT * FROM child") == {(11, "x"): 1, (7, None): 1}
        assert not world.errors[0] and not world.errors[1]
    finally:
        world.close()


def test_many_columns(upstream: UpstreamDatabase) -> None:
    columns = ", ".join(f"c{n} int" for n in range(1600))
    values = ", ".join(str(n) for n in range(1600))
    upstream.run(
        f"CREATE TABLE t ({columns})",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        f"INSERT INTO t VALUES ({values})",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    world = SourceWorld(upstream, "t")
    try:
        world.catch_up()
        upstream.run("UPDATE t SET c1599 = -1", f"INSERT INTO t VALUES ({values})")
        world.catch_up()
        assert world.table() == {(*range(1599), -1): 1, tuple(range(1600)): 1}
    finally:
        world.close()


def test_one_table_in_two_sources(upstream: UpstreamDatabase) -> None:
    upstream.run(
        "CREATE TABLE t (id int)",
        "CREATE TABLE u (id int)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "ALTER TABLE u REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1)",
        "CREATE PUBLICATION p FOR TABLE t, u",
    )
    worlds = [SourceWorld(upstream, "t"), SourceWorld(upstream, "t", "u")]
    try:
        worlds[0].catch_up()
        upstream.run("INSERT INTO t VALUES (2)", "INSERT INTO u VALUES (1)")
        worlds[1].catch_up()
        worlds[1].crash()
        upstream.run("DELETE FROM t WHERE id = 1", "INSERT INTO u VALUES (2)")
        for world in worlds:
            world.catch_up()
            assert world.table() == {(2,): 1} and not world.errors[0]
        assert worlds[1].table(1) == {(1,): 1, (2,): 1}
    finally:
        for world in worlds:
            world.close()
