"""What CREATE SOURCE ... FROM POSTGRES refuses, worked out against a real PostgreSQL: what is wrong, where in
the statement, and what to do. (`tests/postgres/test_describe.py` has what the server itself lacks.)"""

from __future__ import annotations

import psycopg
import pytest

from engine.kafka_context import World
from support.upstream_postgres import UpstreamDatabase
from tidemill.errors import TidemillError

TABLES = (
    "CREATE TABLE good (id int PRIMARY KEY, n numeric(10, 2))",
    "CREATE TABLE plain (id int PRIMARY KEY)",
    "CREATE TABLE bare (id int)",
    "CREATE TABLE wide (id int, big numeric(60, 2), place point)",
    "CREATE TABLE unpublished (id int)",
    "CREATE TABLE nothing ()",
    "ALTER TABLE nothing REPLICA IDENTITY FULL",
    "CREATE SCHEMA other",
    "CREATE TABLE other.good (id int)",
    *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("good", "wide", "other.good", "unpublished")),
    "CREATE PUBLICATION p FOR TABLE good, plain, bare, wide, nothing, other.good",
)


@pytest.fixture
def world(upstream: UpstreamDatabase) -> World:
    upstream.run(*TABLES)
    world = World()
    world.connection("pg", "postgres", **upstream.options)
    world.connection("k", "kafka", brokers=["h:1"])
    return world


HEAD = "CREATE SOURCE s FROM POSTGRES CONNECTION pg (PUBLICATION 'p'"


def test_statements_that_are_refused(world: World) -> None:
    for statement, primary, more in (
        ("CREATE SOURCE s FROM POSTGRES CONNECTION k (PUBLICATION 'p')", "is a kafka connection", ""),
        ("CREATE SOURCE s FROM POSTGRES CONNECTION pg (TEXT COLUMNS (t.a))", "needs the option PUBL", ""),
        ("CREATE SOURCE s FROM POSTGRES CONNECTION pg (PUBLICATION '')", "needs the option PUBLICATION", ""),
        (
            "CREATE SOURCE s FROM POSTGRES CONNECTION pg (PUBLICATION 'q') FOR ALL TABLES",
            'publication "q" does not exist',
            "CREATE PUBLICATION q FOR TABLE ...; at the server",
        ),
        (f"{HEAD}) FORMAT JSON", "FORMAT, INCLUDE, ENVELOPE and ON ERROR are not possible", "Leave them out"),
        (f"{HEAD}) ENVELOPE UPSERT", "ENVELOPE and ON ERROR are not possible", ""),
        (f"{HEAD}) FOR TABLES (good) WITH (VALIDATE = false)", "VALIDATE = false is not possible", ""),
        (f"{HEAD}, TEXT COLUMNS (good.n))", "TEXT COLUMNS and EXCLUDE COLUMNS need tables", "FOR TABLES"),
        # Tables.
        (f"{HEAD}) FOR TABLES (gone)", 'has no table "gone"', "ALTER PUBLICATION p ADD TABLE gone; at the"),
        (f"{HEAD}) FOR TABLES (unpublished)", 'has no table "unpublished"', "ALTER PUBLICATION p ADD TABLE"),
        (f"{HEAD}) FOR TABLES (d.public.plain)", "named by its schema and its name", "Write public.plain"),
        (f"{HEAD}) FOR TABLES (plane)", 'has no table "plane"', "Did you mean plain?"),
        (f"{HEAD}) FOR TABLES (good)", '"good" is ambiguous', "other.good and public.good"),
        (f"{HEAD}) FOR TABLES (public.good, public.good AS h)", "public.good is named more than once", ""),
        (f"{HEAD}) FOR TABLES (public.good, other.good)", 'have the name "good"', "AS another"),
        (f"{HEAD}) FOR SCHEMAS (public, othr)", 'no tables in schema "othr"', "Did you mean other?"),
        (
            f"{HEAD}) FOR TABLES (plain)",
            "plain must have REPLICA IDENTITY FULL",
            "ALTER TABLE public.plain R",
        ),
        (f"{HEAD}) FOR TABLES (bare)", "public.bare must have REPLICA IDENTITY FULL", "at the server"),
        (f"{HEAD}) FOR TABLES (nothing)", "has no columns that could be read", "p DROP TABLE public.nothing"),
        # Columns.
        (
            f"{HEAD}) FOR TABLES (wide)",
            "type numeric(60,2) of column public.wide.big is not supported: more than 38 digits",
            "TEXT COLUMNS (wide.big) keeps it as text",
        ),
        (
            f"{HEAD}, TEXT COLUMNS (wide.big)) FOR TABLES (wide)",
            "type point of column public.wide.place is not supported",
            "EXCLUDE COLUMNS leaves it out",
        ),
        (f"{HEAD}, TEXT COLUMNS (wide.bog)) FOR TABLES (wide)", 'column "bog" of table', "Did you mean big?"),
        (
            f"{HEAD}, TEXT COLUMNS (bare.id)) FOR TABLES (wide)",
            '"bare.id" is no column of one',
            "table.column, or schema.table.column. The tables are public.wide.",
        ),
        (f"{HEAD}, TEXT COLUMNS (wid.big)) FOR TABLES (wide)", '"wid.big" is no column', "mean wide?"),
        (f"{HEAD}, EXCLUDE COLUMNS (big)) FOR TABLES (wide)", '"big" is no column of one of', "table.column"),
    ):
        with pytest.raises(TidemillError) as caught:
            world.describe(statement)
        error = caught.value
        assert primary in error.primary, statement
        assert more in f"{error.detail} {error.hint}", (statement, error.detail, error.hint)
        assert error.sqlstate not in ("XX000", "58000"), statement
        assert error.position, statement
        if "bog" in statement:
            assert statement[error.position - 1 :].startswith("wide.bog")


def test_what_is_chosen(world: World) -> None:
    described = world.describe(
        f"{HEAD}, TEXT COLUMNS (wide.big), EXCLUDE COLUMNS (public.wide.place)) "
        "FOR TABLES (public.good, other.good AS second, wide)"
    )
    assert described.tables is not None and described.own is None
    assert [(str(t.name), t.output.name) for t in described.tables] == [
        ("good", "public.good"),
        ("second", "other.good"),
        ("wide", "public.wide"),
    ]
    assert described.tables[2].output.desc.names == ["id", "big"]
    described = world.describe(f"{HEAD}) FOR SCHEMAS (other)")
    assert [str(t.name) for t in described.tables or ()] == ["good"]
    described = world.describe(f"{HEAD})")
    assert described.tables == () and len(str(described.definition["slot"])) < 64


def test_a_wrong_password_and_a_server_that_is_gone(upstream: UpstreamDatabase) -> None:
    """The test's server trusts everybody but this user."""
    rules = upstream.process.folder / "data" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{before}")
    upstream.run("CREATE ROLE locked LOGIN REPLICATION PASSWORD 'right'", "SELECT pg_reload_conf()")
    try:
        world = World()
        world.connection("pg", "postgres", **{**upstream.options, "user": "locked", "password": "wrong"})
        world.connection("away", "postgres", **{**upstream.options, "host": "127.0.0.1", "port": 1})
        with pytest.raises(TidemillError) as caught:
            world.describe(f"{HEAD}) FOR ALL TABLES")
        assert caught.value.sqlstate == "28P01"
        assert caught.value.hint == "Check USER and PASSWORD of the connection."
        assert "wrong" not in str(caught.value)
        world.connection("none", "postgres", **{**upstream.options, "user": "locked"})
        with pytest.raises(TidemillError, match="refuses the connection") as caught:
            world.describe("CREATE SOURCE s FROM POSTGRES CONNECTION none (PUBLICATION 'p') FOR ALL TABLES")
        assert caught.value.sqlstate == "28000"
        assert "add PASSWORD SECRET" in str(caught.value.hint)
        with pytest.raises(TidemillError, match="cannot reach database") as caught:
            world.describe("CREATE SOURCE s FROM POSTGRES CONNECTION away (PUBLICATION 'p')")
        assert caught.value.sqlstate == "08001"
    finally:
        rules.write_text(before)
        upstream.run("SELECT pg_reload_conf()", "DROP ROLE locked")


def test_a_publication_with_which_the_upstream_cannot_be_changed(
    world: World, upstream: UpstreamDatabase
) -> None:
    """PostgreSQL wants every column of REPLICA IDENTITY FULL in it, or refuses UPDATE and DELETE."""
    upstream.run(
        "CREATE TABLE listed (id int, secret text)",
        "CREATE TABLE computed (id int, g int GENERATED ALWAYS AS (id * 2) STORED)",
        "ALTER TABLE listed REPLICA IDENTITY FULL",
        "CREATE PUBLICATION q FOR TABLE listed (id), computed",
        "INSERT INTO listed VALUES (1, 'a')",
        "INSERT INTO computed VALUES (1)",
    )
    head = "CREATE SOURCE s FROM POSTGRES CONNECTION pg (PUBLICATION 'q') FOR TABLES "
    (notice,) = world.describe(f"{head} (listed)").notices
    assert (notice.severity, notice.text) == (
        "WARNING",
        "PostgreSQL refuses UPDATE and DELETE of table public.listed",
    )
    assert "leaves out secret." in str(notice.detail) and "EXCLUDE COLUMNS" in str(notice.hint)
    with pytest.raises(psycopg.Error, match="cannot update table"):
        upstream.run("UPDATE listed SET id = 2")
    with pytest.raises(TidemillError, match="must have REPLICA IDENTITY FULL") as caught:
        world.describe(f"{head} (computed)")
    assert "but first: ALTER PUBLICATION q SET (publish_generated_columns = stored);" in str(
        caught.value.hint
    )
    upstream.run("ALTER TABLE computed REPLICA IDENTITY FULL")
    assert len(world.describe(f"{head} (computed)").notices) == 1
    with pytest.raises(psycopg.Error, match="cannot update table"):
        upstream.run("UPDATE computed SET id = 2")
    upstream.run("ALTER PUBLICATION q SET (publish_generated_columns = stored)", "UPDATE computed SET id = 2")
    assert not world.describe(f"{head} (computed)").notices
