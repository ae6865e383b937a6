"""The real server with passwords and TLS: clients, roles over both ports, and no secret anywhere.

One server for all, without Spark: what a role may not do is known before anything runs.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from canaries import by_commands, by_http, by_relations, by_sql, by_websocket
from guarded import ROOT, Guarded
from websockets.asyncio.client import connect

from support.psql import psql_with_tls

PASSWORD = "canary-password-8b1f"
NEXT_PASSWORD = "canary-next-55aa"
SECRET = "canary-secret-07e3"
KEY = "canary-key-91cd"
CANARIES = (ROOT, PASSWORD, NEXT_PASSWORD, SECRET, KEY)
# Nobody listens on port 1.
CONNECTION = (
    "CREATE CONNECTION k TO KAFKA (BROKER '127.0.0.1:1', SASL MECHANISMS PLAIN, SASL USERNAME 'u', "
    "SASL PASSWORD = SECRET s) WITH (VALIDATE = {})"
)
REGISTRY = (
    "CREATE CONNECTION r TO CONFLUENT SCHEMA REGISTRY (URL 'http://127.0.0.1:1', USERNAME 'u', "
    "PASSWORD = SECRET s)"
)
# What people type.
MISTAKES = [
    f"CREATE SECRET s AS '{SECRET}'",
    f"CREATE SECRET s '{SECRET}'",
    f"CREATE SECRET s AS '{SECRET}' x",
    f"CREATE SECRET s AS 'it's {SECRET}",
    f"CREATE SECRET s AS '{SECRET}",
    f"ALTER SECRET nothing AS '{SECRET}'",
    f"PREPARE q AS CREATE SECRET s AS '{SECRET}'",
    f"EXPLAIN CREATE SECRET s AS '{SECRET}'",
    f"CREATE ROLE app PASSWORD '{NEXT_PASSWORD}'",
    f"CREATE ROLE other PASSWORD '{NEXT_PASSWORD}' VALID UNTIL 'x'",
    f"CREATE ROLE other PASSWORD '{NEXT_PASSWORD}' '{NEXT_PASSWORD}'",
    f"CREATE ROLE other PASSWORD {NEXT_PASSWORD}",
    f"ALTER ROLE nobody PASSWORD '{NEXT_PASSWORD}'",
    f"CREATE CONNECTION p TO KAFKA (BROKER '127.0.0.1:1', SASL PASSWORD '{SECRET}')",
    f"CREATE CONNECTION p TO KAFKA (BROKER 'u:{SECRET}@h:1')",
    f"CREATE CONNECTION p TO CONFLUENT SCHEMA REGISTRY (URL 'http://u:{SECRET}@127.0.0.1:1')",
    f"CREATE CONNECTION p TO CONFLUENT SCHEMA REGISTRY (URL 'u:{SECRET}@127.0.0.1:1')",
]
STATEMENTS = [
    f"ALTER ROLE app PASSWORD '{NEXT_PASSWORD}'",
    f"ALTER SECRET s AS '{SECRET}'",
    CONNECTION.format("true"),
    CONNECTION.format("false"),
    REGISTRY,
    "CREATE SOURCE src FROM KAFKA CONNECTION k (TOPIC 't') FORMAT TEXT WITH (VALIDATE = false)",
    "SHOW CREATE CONNECTION k",
    "SHOW CREATE SOURCE src",
    "SHOW SECRETS",
    "SHOW ALL",
    "EXPLAIN SELECT * FROM t",
    "EXPLAIN SELECT * FROM src",
]

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    # A fault in the second secret, and a key of a store that is not used.
    env = {"TIDEMILL_FAILPOINTS": "secrets.written=error@2", "TIDEMILL_S3_SECRET_ACCESS_KEY": KEY}
    env["TIDEMILL_RETAIN_HISTORY"] = "6h"
    server = Guarded(tmp_path_factory.mktemp("guarded"), env)
    try:
        server.start()
        with psycopg.connect(server.sql_dsn, autocommit=True) as root:
            root.execute(f"CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'".encode())
            root.execute("CREATE ROLE idle PASSWORD 'x'")
            root.execute("CREATE TABLE t (a int)")
            root.execute("GRANT INSERT ON t TO app")
        yield server
    finally:
        server.close()


@pytest.fixture
def app(guarded: Guarded) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(guarded.dsn("app", PASSWORD), autocommit=True) as connection:
        yield connection


def test_psycopg(app: psycopg.Connection[Any]) -> None:
    assert app.execute("SELECT current_user, session_user").fetchone() == ("app", "app")
    assert app.execute("INSERT INTO t VALUES (1)").statusmessage == "INSERT 0 1"
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table t"):
        app.execute("SELECT * FROM t")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for schema public"):
        app.execute("CREATE TABLE u (a int)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner of table t"):
        app.execute("DROP TABLE t")


def test_asyncpg(guarded: Guarded) -> None:
    async def main() -> None:
        connection = await asyncpg.connect(
            host="localhost",
            port=guarded.sql_port,
            user="app",
            password=PASSWORD,
            database="materialize",
            ssl=guarded.context,
            timeout=60,
        )
        try:
            assert await connection.fetchval("SELECT current_user::text") == "app"
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetch("SELECT * FROM t WHERE a = $1", 1)
        finally:
            await connection.close()

    asyncio.run(main())


def test_psql(guarded: Guarded) -> None:
    done = subprocess.run(
        [psql_with_tls(), guarded.dsn("app", PASSWORD), "-X", "-A", "-t", "-c", "SELECT current_user"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "app"), done.stderr


def test_psql_sends_no_password_but_its_verifier(guarded: Guarded) -> None:
    psql = psql_with_tls()
    with psycopg.connect(guarded.sql_dsn, autocommit=True) as root:
        root.execute("CREATE ROLE keeper LOGIN")
        try:
            done = subprocess.run(
                [psql, guarded.sql_dsn, "-X", "-c", r"\password keeper"],
                input=f"{NEXT_PASSWORD}\n{NEXT_PASSWORD}\n",
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
                # Without a terminal it reads the password from its input.
                start_new_session=True,
            )
            assert done.returncode == 0 and "ERROR" not in done.stderr, done.stderr
            with psycopg.connect(guarded.dsn("keeper", NEXT_PASSWORD)) as keeper:
                assert keeper.execute("SELECT current_user").fetchone() == ("keeper",)
        finally:
            root.execute("DROP ROLE keeper")


@pytest.mark.parametrize(
    ("user", "password", "error"),
    [
        ("app", "wrong", "password authentication failed"),
        ("nobody", "wrong", "password authentication failed"),
        ("materialize", "", "no password supplied|password authentication failed"),
        ("idle", "x", "not permitted to log in"),
    ],
)
def test_refused(guarded: Guarded, user: str, password: str, error: str) -> None:
    with pytest.raises(psycopg.OperationalError, match=error):
        psycopg.connect(f"{guarded.dsn(user, password)} passfile=/nonexistent")


def test_a_role_is_not_taken_by_an_option(guarded: Guarded) -> None:
    with pytest.raises(psycopg.OperationalError, match="permission denied to set role"):
        psycopg.connect(f"{guarded.dsn('app', PASSWORD)} options='-c role=mz_system'")


def test_settings_at_the_start_are_had_or_told(guarded: Guarded) -> None:
    """Nobody is kept out by a setting that there is not; but who asks for it is told."""
    options = "-c shared_pets=off -c is_superuser=on -c my_app.tenant=7 -c statement_timeout=5s"
    wanted = ("my_app.tenant", "is_superuser", "statement_timeout")
    done = subprocess.run(
        [
            psql_with_tls(),
            f"{guarded.dsn('app', PASSWORD)} options='{options}'",
            "-XAtc",
            "SELECT " + ", ".join(f"current_setting('{n}')" for n in wanted),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "7|off|5s\n"
    assert done.stderr.splitlines() == [
        'WARNING:  unrecognized configuration parameter "shared_pets"; ignored',
        'WARNING:  parameter "is_superuser" cannot be changed; ignored',
    ]


def test_limits_of_the_system_hold_at_once(guarded: Guarded) -> None:
    dsn = guarded.dsn("app", PASSWORD)
    with psycopg.connect(guarded.sql_dsn, autocommit=True) as root, psycopg.connect(dsn) as app:
        root.execute("ALTER SYSTEM SET max_result_size = 2000")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="limit of 2000 bytes"):
            app.execute("SELECT * FROM pg_catalog.pg_type")
        root.execute("ALTER SYSTEM RESET max_result_size")
        root.execute("ALTER SYSTEM SET max_connections = 2")
        try:
            with pytest.raises(psycopg.OperationalError, match="The limit is 2 connections"):
                psycopg.connect(dsn)
            # Somebody must be able to raise it again.
            with psycopg.connect(guarded.sql_dsn) as second:
                assert second.execute("SELECT current_setting('max_connections')").fetchone() == ("2",)
        finally:
            root.execute("ALTER SYSTEM RESET max_connections")
        psycopg.connect(dsn).close()


def test_what_the_server_was_started_with_is_shown(guarded: Guarded) -> None:
    with psycopg.connect(guarded.sql_dsn, autocommit=True) as root:
        assert root.execute("SHOW default_retain_history").fetchone() == ("6h",)
        root.execute("ALTER SYSTEM SET default_retain_history = '90min'")
        assert root.execute("SHOW default_retain_history").fetchone() == ("90min",)
        root.execute("ALTER SYSTEM RESET default_retain_history")
        assert root.execute("SHOW default_retain_history").fetchone() == ("6h",)


def test_whether_a_session_is_encrypted_is_told(guarded: Guarded) -> None:
    mine = "SELECT ssl, version, cipher IS NOT NULL, bits FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    with psycopg.connect(guarded.sql_dsn) as inside:
        assert inside.execute(mine.encode()).fetchone() == (True, "TLSv1.3", True, 256)
    with psycopg.connect(guarded.sql_dsn.replace("verify-full", "disable")) as plain:
        assert plain.execute(mine.encode()).fetchone() == (False, None, False, None)
    _, answer = guarded.http("/api/sql", "app", PASSWORD, {"query": "SELECT bool_and(ssl) FROM pg_stat_ssl"})
    assert json.loads(answer)["results"][0]["rows"] == [[True]]


def test_prepared_statements_notice_a_revoke(guarded: Guarded, app: psycopg.Connection[Any]) -> None:
    with psycopg.connect(guarded.sql_dsn, autocommit=True) as root:
        root.execute("CREATE TABLE shared (a int)")
        root.execute("GRANT INSERT ON shared TO app")
        app.execute("PREPARE p AS INSERT INTO shared VALUES (1)")
        app.execute("EXECUTE p")
        root.execute("REVOKE INSERT ON shared FROM app")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            app.execute("EXECUTE p")
        root.execute("DROP TABLE shared")


def test_clients_that_look_at_privileges(guarded: Guarded) -> None:
    with psycopg.connect(guarded.sql_dsn, autocommit=True) as root:
        rows = root.execute(
            "SELECT grantee, privilege_type, is_grantable FROM information_schema.table_privileges "
            "WHERE table_name = 't'"
        ).fetchall()
        assert ("app", "INSERT", "NO") in rows
        assert ("mz_system", "SELECT", "YES") in rows
        assert ("app", "SELECT", "NO") not in rows
        answer = root.execute(
            "SELECT has_table_privilege('app', 't', 'INSERT'), pg_get_userbyid(relowner), relacl "
            "FROM pg_class WHERE relname = 't'"
        ).fetchone()
        assert answer == (True, "mz_system", ["mz_system=arwd/mz_system", "app=a/mz_system"])


def test_other_sessions_are_ended_by_who_may(guarded: Guarded, app: psycopg.Connection[Any]) -> None:
    with psycopg.connect(guarded.sql_dsn, autocommit=True) as root:
        number = root.info.backend_pid
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied to terminate"):
            app.execute(f"SELECT pg_terminate_backend({number})".encode())
        row = root.execute("SELECT pg_cancel_backend(%s)", [app.info.backend_pid]).fetchone()
        assert row == (True,)
        assert app.execute("SELECT 1").fetchone() == (1,)
        row = root.execute("SELECT pg_terminate_backend(%s)", [app.info.backend_pid]).fetchone()
        assert row == (True,)
        with pytest.raises(psycopg.errors.AdminShutdown):
            app.execute("SELECT 1")
        told: list[tuple[str | None, str | None]] = []
        root.add_notice_handler(lambda n: told.append((n.severity, n.sqlstate)))
        assert root.execute("SELECT pg_terminate_backend(0)").fetchone() == (False,)
        assert told == [("WARNING", "01000")]


def test_sessions_are_found_and_ended_by_one_query(guarded: Guarded) -> None:
    with psycopg.connect(guarded.sql_dsn, autocommit=True) as root:
        found = [psycopg.connect(f"{guarded.sql_dsn} application_name=stray", autocommit=True) for _ in "ab"]
        try:
            rows = root.execute(
                "SELECT pg_terminate_backend(pid), client_addr FROM pg_stat_activity "
                "WHERE application_name = %s AND pid <> pg_backend_pid()",
                ["stray"],
            ).fetchall()
            assert rows == [(True, "127.0.0.1")] * 2
            for stray in found:
                with pytest.raises(psycopg.errors.AdminShutdown):
                    stray.execute("SELECT 1")
        finally:
            for stray in found:
                stray.close()


def test_http_asks_for_the_password(guarded: Guarded) -> None:
    query = {"query": "SELECT current_user::text"}
    assert guarded.http("/healthz")[0] == 200
    assert guarded.http("/readyz")[0] in (200, 503)
    for path, body in (
        ("/api/sql", query),
        ("/metrics", None),
        ("/", None),
        ("/api/subscribe?query=t", None),
    ):
        assert guarded.http(path, body=body)[0] == 401
        assert guarded.http(path, "web", "wrong", body)[0] == 401
    status, text = guarded.http("/api/sql", "mz_system", ROOT, query)
    assert (status, json.loads(text)["results"][0]["rows"]) == (200, [["mz_system"]])
    denied = guarded.http("/api/sql", "mz_system", ROOT, {"query": "SET ROLE app; SELECT * FROM t"})[1]
    assert json.loads(denied)["results"][-1]["error"]["code"] == "42501"


def test_a_websocket_says_its_password_first(guarded: Guarded) -> None:
    async def main() -> None:
        url = f"wss://localhost:{guarded.http_port}/api/experimental/sql"
        async with connect(url, ssl=guarded.context) as socket:
            await socket.send(json.dumps({"user": "mz_system", "password": ROOT}))
            kinds: list[str] = []
            while "ReadyForQuery" not in kinds:
                kinds.append(json.loads(await socket.recv())["type"])
            assert "Error" not in kinds
        async with connect(url, ssl=guarded.context) as socket:
            await socket.send(json.dumps({"user": "materialize"}))
            said = json.loads(await socket.recv())
            assert (said["type"], said["payload"]["code"]) == ("Error", "28P01")

    asyncio.run(main())


def test_what_happened_is_noted(guarded: Guarded) -> None:
    with psycopg.connect(guarded.sql_dsn, autocommit=True) as root:
        root.execute("CREATE ROLE noted CREATEDB")
        root.execute("GRANT CREATE ON SCHEMA public TO noted")
        root.execute("DROP OWNED BY noted")
        root.execute("DROP ROLE noted")
        rows = root.execute(
            "SELECT event_type, role, client_address, object_type, object_name, detail FROM mz_audit_events"
        ).fetchall()
    root_here = ("mz_system", "127.0.0.1")
    assert ("create role", *root_here, "role", "noted", "CREATEDB") in rows
    assert ("grant", *root_here, "schema", "materialize.public", "CREATE to noted") in rows
    assert ("drop owned", *root_here, "schema", "materialize.public", "CREATE from noted") in rows
    assert ("drop role", *root_here, "role", "noted", None) in rows
    assert ("login", *root_here, None, None) in [row[:5] for row in rows]
    assert "login role=mz_system address=127.0.0.1" in guarded.log


# Almost last, so that it hears the traces of the others too.
def test_no_canary_sings(guarded: Guarded) -> None:
    """Passwords and secrets are in no log, error, plan, SHOW CREATE, system relation, status, metric, frame,
    command's output or file but the secret's own."""
    heard: list[str] = []
    with psycopg.connect(guarded.sql_dsn, autocommit=True) as root:
        # The second one fails as a bug would, with a trace in the log.
        heard += by_sql(root, [f"CREATE SECRET s AS '{SECRET}'", f"CREATE SECRET bug AS '{SECRET}'"])
        assert "XX000" not in heard and "FailpointError" in guarded.log
        heard += by_sql(root, [*MISTAKES, *STATEMENTS])
        # Kept under a name by the driver, for pg_prepared_statements.
        root.execute(f"ALTER ROLE app PASSWORD '{NEXT_PASSWORD}'".encode(), prepare=True)
        assert root.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (1,)
        heard += by_relations(root)
        with pytest.raises(psycopg.OperationalError) as caught:
            psycopg.connect(guarded.dsn("other", NEXT_PASSWORD))
        heard.append(str(caught.value))
    heard += by_http(guarded, "mz_system", ROOT, MISTAKES)
    heard.append(guarded.http("/api/sql", "app", SECRET, {"query": "SELECT 1"})[1])
    heard += by_websocket(guarded, {"user": "mz_system", "password": ROOT}, MISTAKES)
    heard += by_websocket(guarded, {"user": "app", "password": SECRET}, [])
    heard += by_commands(guarded)
    heard.append(guarded.log)
    assert len(heard) > 500
    for text in heard:
        for canary in CANARIES:
            assert canary not in text, text[:2000]
    for path in Path(guarded.data_dir).rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            found = [c for c in CANARIES if c.encode() in content]
            assert found == ([SECRET] if "secrets" in path.parts and found else []), path


# After the canaries: they look at the log of the one server.
def test_what_happened_is_still_known_after_a_restart(guarded: Guarded) -> None:
    query = "SELECT id, event_type, role, object_name FROM mz_audit_events ORDER BY id"
    with psycopg.connect(guarded.sql_dsn, autocommit=True) as root:
        root.execute("CREATE ROLE remembered")
        before = root.execute(query).fetchall()
    guarded.kill9()
    guarded.start()
    with psycopg.connect(guarded.sql_dsn, autocommit=True) as root:
        root.execute("DROP ROLE remembered")
        after = root.execute(query).fetchall()
    assert after[: len(before)] == before
    assert ("create role", "mz_system", "remembered") in [row[1:] for row in before]
    assert after[-1][1:] == ("drop role", "mz_system", "remembered")
    assert [row[0] for row in after] == sorted({row[0] for row in after})
    folder = Path(guarded.data_dir) / "audit"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {p.stem.split("-")[0] for p in folder.iterdir()} == {"changes", "logins"}
