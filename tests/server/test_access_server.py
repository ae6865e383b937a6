"""The real server with passwords and TLS: clients, roles over both ports, and no secret anywhere.

One server for all, without Spark: what a role may not do is known before anything runs.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from websockets.asyncio.client import connect

from support.server import ServerProcess
from tidemill.dev.certificates import Certificates, make_certificates

ROOT = "root of all passwords"
PASSWORD = "canary-password-8b1f"
NEXT_PASSWORD = "canary-next-55aa"
SECRET = "canary-secret-07e3"
CONNECTION = (
    "CREATE CONNECTION k TO KAFKA (BROKER 'h:1', SASL MECHANISMS PLAIN, SASL USERNAME 'u', "
    "SASL PASSWORD = SECRET s) WITH (VALIDATE = false)"
)
CANARIES = (ROOT, PASSWORD, NEXT_PASSWORD, SECRET)

pytestmark = pytest.mark.server


class Guarded(ServerProcess):
    """A server that asks for passwords."""

    def __init__(self, folder: Path) -> None:
        self.certificates: Certificates = make_certificates(folder / "certificates")
        super().__init__(
            folder / "data",
            {"TIDEMILL_SYSTEM_PASSWORD": ROOT, "TIDEMILL_LOG_LEVEL": "debug"},
            ["--authentication", "password", "--tls-cert", str(self.certificates.server)],
        )
        self.spark = False

    def dsn(self, user: str, password: str) -> str:
        return (
            f"host=localhost hostaddr=127.0.0.1 port={self.sql_port} user={user} dbname=materialize "
            f"password='{password}' sslmode=verify-full sslrootcert={self.certificates.ca} connect_timeout=60"
        )

    @property
    def sql_dsn(self) -> str:
        return self.dsn("mz_system", ROOT)

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificates.ca))

    def http(
        self, path: str, user: str | None = None, password: str = "", body: Any = None
    ) -> tuple[int, Any]:
        request = urllib.request.Request(f"https://localhost:{self.http_port}{path}")
        if user is not None:
            token = base64.b64encode(f"{user}:{password}".encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=120, context=self.context) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    server = Guarded(tmp_path_factory.mktemp("guarded"))
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
    psql = shutil.which("psql")
    if psql is None:
        pytest.skip("there is no psql with TLS")
    done = subprocess.run(
        [psql, guarded.dsn("app", PASSWORD), "-X", "-A", "-t", "-c", "SELECT current_user"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "app"), done.stderr


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
        assert root.execute("SELECT pg_terminate_backend(0)").fetchone() == (False,)


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
        root.execute("CREATE ROLE noted")
        root.execute("DROP ROLE noted")
        rows = root.execute(
            "SELECT event_type, role, client_address, object_type, object_name FROM mz_audit_events"
        ).fetchall()
    assert ("create role", "mz_system", "127.0.0.1", "role", "noted") in rows
    assert ("drop role", "mz_system", "127.0.0.1", "role", "noted") in rows
    assert ("login", "mz_system", "127.0.0.1", None, None) in rows
    assert "login role=mz_system address=127.0.0.1" in guarded.log


# Last, so that it sees the traces of the others too.
def test_no_canary_sings(guarded: Guarded, tmp_path: Path) -> None:
    """Passwords and secrets are in no log, error, plan, SHOW CREATE, system relation or file but the secret's
    own."""
    seen: list[str] = []
    statements = [
        f"CREATE SECRET s AS '{SECRET}'",
        f"ALTER ROLE app PASSWORD '{NEXT_PASSWORD}'",
        f"CREATE ROLE app PASSWORD '{NEXT_PASSWORD}'",
        f"CREATE ROLE other PASSWORD '{NEXT_PASSWORD}' VALID UNTIL 'x'",
        f"ALTER ROLE nobody PASSWORD '{NEXT_PASSWORD}'",
        f"CREATE SECRET s AS '{SECRET}'",
        f"PREPARE q AS CREATE SECRET s AS '{SECRET}'",
        CONNECTION,
        "SHOW CREATE CONNECTION k",
        "SHOW ALL",
        "EXPLAIN SELECT * FROM t",
    ]
    with psycopg.connect(guarded.sql_dsn, autocommit=True) as root:
        root.add_notice_handler(lambda d: seen.append(str(d.message_primary)))
        for statement in statements:
            try:
                cursor = root.execute(statement.encode())
                seen += [str(row) for row in (cursor.fetchall() if cursor.description else [])]
            except psycopg.Error as e:
                seen.append(f"{e.diag.message_primary} {e.diag.message_detail} {e.diag.message_hint}")
        names = root.execute(
            "SELECT table_schema, table_name FROM information_schema.tables "
            "WHERE table_schema IN ('mz_catalog', 'mz_internal', 'pg_catalog', 'information_schema')"
        ).fetchall()
        assert len(names) > 30
        # There is no Spark here; what would need it is not waited for.
        root.execute("SET statement_timeout = '60s'")
        for schema, name in names:
            try:
                seen += [
                    str(row) for row in root.execute(f'SELECT * FROM {schema}."{name}"'.encode()).fetchall()
                ]
            except (psycopg.errors.FeatureNotSupported, psycopg.errors.QueryCanceled):
                pass
        with pytest.raises(psycopg.OperationalError) as caught:
            psycopg.connect(guarded.dsn("other", NEXT_PASSWORD))
        seen.append(str(caught.value))
    seen.append(guarded.http("/metrics", "mz_system", ROOT)[1])
    seen.append(guarded.log)
    for text in seen:
        for canary in CANARIES:
            assert canary not in text, text[:2000]
    for path in Path(guarded.data_dir).rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            found = [c for c in CANARIES if c.encode() in content]
            assert found == ([SECRET] if "secrets" in path.parts and found else []), path
