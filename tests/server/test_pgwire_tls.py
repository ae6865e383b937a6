"""TLS and passwords on the SQL port: the clients people use, and those who mean harm."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pgframes as f
import psycopg
import pytest
from prometheus_client import REGISTRY
from tablets import Tablets, table
from wireserver import PSQL, Served, errors

from support.psql import psql_with_tls
from tidemill.access.attempts import FREE_FAILURES
from tidemill.access.scram import make_verifier
from tidemill.dev.certificates import Certificates, make_certificates
from tidemill.errors import TidemillError
from tidemill.server.auth import Gate, Method, Peer
from tidemill.server.pgwire.auth import authentication
from tidemill.server.pgwire.messages import MalformedMessage, Startup
from tidemill.server.tls import CertificateError, Tls, load
from tidemill.types import model

PASSWORD = "open \u2168 sesame"


class Roles:
    """What the engine says of its roles."""

    login_key = b"k" * 32

    def __init__(self) -> None:
        self.verifier = make_verifier(PASSWORD).text()
        self.refused: list[tuple[str, str, str]] = []

    def stored_password(self, role: str) -> str | None:
        return self.verifier if role == "materialize" else None

    def login_refused(self, role: str, address: str, reason: str) -> None:
        self.refused.append((role, address, reason))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls(certificates: Certificates) -> Tls:
    return load(str(certificates.server), "")


@pytest.fixture
def roles() -> Roles:
    return Roles()


@pytest.fixture
def served(tls: Tls, roles: Roles) -> Iterator[Served]:
    engine = Tablets()
    engine.tables["t"] = table(
        ("id", model.INT8), ("name", model.TEXT), rows=[(1, "x" * 3_000_000), (2, None)]
    )
    with Served(engine, tls=tls, authentication=authentication(Gate(Method.PASSWORD, roles))) as served:
        yield served


@pytest.fixture
def dsn(served: Served, certificates: Certificates) -> str:
    return (
        f"host=localhost hostaddr=127.0.0.1 port={served.port} user=materialize dbname=materialize "
        f"sslmode=verify-full sslrootcert={certificates.ca} password='{PASSWORD}' connect_timeout=60"
    )


@pytest.mark.parametrize(
    "more",
    [
        "channel_binding=require",
        "channel_binding=disable",
        "sslnegotiation=direct channel_binding=require",
        "max_protocol_version=3.2",
        "ssl_max_protocol_version=TLSv1.2",
    ],
)
def test_psycopg_verifies_us_and_proves_its_password(dsn: str, more: str) -> None:
    with psycopg.connect(f"{dsn} {more}", autocommit=True) as connection:
        assert connection.pgconn.ssl_in_use
        rows = connection.execute("SELECT * FROM t").fetchall()
        assert [(row[0], row[1] and len(row[1])) for row in rows] == [(1, 3_000_000), (2, None)]


def test_a_name_that_the_certificate_lacks_is_noticed_by_the_client(dsn: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="does not match"):
        psycopg.connect(dsn.replace("host=localhost", "host=other.example"))


def test_a_cancel_comes_through_tls(dsn: str, served: Served) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:

        def cancel() -> None:
            while not served.engine.sessions[-1].open_streams:
                time.sleep(0.01)
            connection.cancel_safe(timeout=60)

        thread = threading.Thread(target=cancel, daemon=True)
        thread.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("select sleep(300)")
        thread.join()
        assert connection.execute("SELECT * FROM t").rowcount == 2


def test_asyncpg(served: Served, certificates: Certificates) -> None:
    async def main() -> None:
        context = ssl.create_default_context(cafile=str(certificates.ca))
        connection = await asyncpg.connect(
            host="localhost",
            port=served.port,
            user="materialize",
            database="materialize",
            password=PASSWORD,
            ssl=context,
            timeout=60,
        )
        try:
            assert len(await connection.fetch("SELECT * FROM t")) == 2
        finally:
            await connection.close()

    asyncio.run(main())


@pytest.mark.parametrize("encrypted", [False, True])
def test_psql(dsn: str, encrypted: bool) -> None:
    found = psql_with_tls() if encrypted else PSQL
    dsn = (
        dsn
        if encrypted
        else dsn.replace("sslmode=verify-full", "sslmode=disable").replace(" sslrootcert=", " passfile=")
    )
    done = subprocess.run(
        [found, dsn, "-X", "-A", "-t", "-c", "SELECT * FROM t"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PGCHANNELBINDING": "require"} if encrypted else os.environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1|xxx")


def test_wrong_passwords_and_unknown_roles_look_the_same(dsn: str, roles: Roles) -> None:
    for user in ("materialize", "somebody"):
        with pytest.raises(
            psycopg.OperationalError, match=f'password authentication failed for user "{user}"'
        ):
            psycopg.connect(dsn.replace(PASSWORD, "guess").replace("user=materialize", f"user={user}"))
    assert roles.refused == [(u, "127.0.0.1", "wrong password") for u in ("materialize", "somebody")]


def test_guessing_is_slowed_down(dsn: str, roles: Roles) -> None:
    wrong = dsn.replace(PASSWORD, "guess")
    for _ in range(FREE_FAILURES):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)
    with pytest.raises(psycopg.OperationalError, match="too many failed logins"):
        psycopg.connect(wrong)
    assert roles.refused[-1] == ("materialize", "127.0.0.1", "too many failures")


def test_a_password_that_is_not_sent_is_asked_for(dsn: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(dsn.replace(f"password='{PASSWORD}'", "passfile=/nonexistent"))


def test_bytes_behind_the_request_for_tls_are_refused(served: Served) -> None:
    """Somebody in between could put a statement there."""
    with served.raw(login=False) as c:
        c.send(f.SSL + f.startup())
        (error,) = errors(c.rest())
        assert (error["C"], error["M"]) == ("08P01", "received unencrypted data after SSL request")


def test_direct_tls_of_another_protocol_is_refused(served: Served, certificates: Certificates) -> None:
    context = ssl.create_default_context(cafile=str(certificates.ca))
    with (
        socket.create_connection(("127.0.0.1", served.port), timeout=120) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as c,
    ):
        assert b"without ALPN" in c.recv(65536)


@pytest.mark.parametrize(
    "garbage", [b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" + b"\0" * 70_000, b"\x16\x03\x03"]
)
def test_no_tls_at_all(served: Served, garbage: bytes) -> None:
    with (
        socket.create_connection(("127.0.0.1", served.port), timeout=120) as c,
        contextlib.suppress(ConnectionError),
    ):
        c.sendall(garbage)
        c.shutdown(socket.SHUT_WR)
        while c.recv(65536):
            pass


def test_neither_door_negotiates_anew(certificates: Certificates) -> None:
    """A client that asks for it again and again would cost a handshake each time."""
    tls = load(str(certificates.server), "")
    for context in (tls.sql, tls.http):
        assert context.options & ssl.OP_NO_RENEGOTIATION
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_tls_that_breaks_off_harms_nobody(served: Served, dsn: str) -> None:
    for after in (b"", b"\x16", b"\0" * 100, b"\x17\x03\x03\x00\x02xx"):
        with served.raw(login=False) as c:
            c.send(f.SSL)
            assert c.socket.recv(1) == b"S"
            if after:
                with contextlib.suppress(ConnectionError):
                    c.send(after)
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT * FROM t").rowcount == 2


def test_plain_connections_from_this_machine_work_too(served: Served, dsn: str) -> None:
    with psycopg.connect(f"{dsn} sslmode=disable channel_binding=disable") as connection:
        assert not connection.pgconn.ssl_in_use


def test_client_certificates(certificates: Certificates, roles: Roles) -> None:
    tls = load(str(certificates.server), "", str(certificates.ca))
    engine = Tablets()
    engine.tables["t"] = table(("id", model.INT8), rows=[(1,)])
    with Served(engine, tls=tls, authentication=authentication(Gate(Method.CERTIFICATE, roles))) as served:
        base = f"host=localhost port={served.port} dbname=materialize sslmode=verify-full "
        base += f"sslrootcert={certificates.ca}"
        own = f"{base} sslcert={certificates.client} sslkey={certificates.client_key}"
        with psycopg.connect(f"{own} user=tidemill-dev-client") as connection:
            assert connection.execute("SELECT * FROM t").fetchall() == [(1,)]
        with pytest.raises(psycopg.OperationalError, match="certificate authentication failed"):
            psycopg.connect(f"{own} user=materialize")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(f"{base} sslcert=/nonexistent user=tidemill-dev-client").execute("SELECT 1")


# -- without a socket


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SCRAM-SHA-256",
        b"SCRAM-SHA-256\0",
        b"SCRAM-SHA-256\0\0\0\0\x09n,,",
        b"OTHER\0\0\0\0\x03n,,",
        b"\xff" * 40,
    ],
)
def test_malformed_first_answers(roles: Roles, data: bytes) -> None:
    exchange = authentication(Gate(Method.PASSWORD, roles))(
        Startup(0, {"user": "materialize"}, ()), Peer("a"), None
    )
    assert next(exchange).startswith(b"R")
    with pytest.raises(MalformedMessage):
        exchange.send(data)


def test_wrong_passwords_by_the_thousand(roles: Roles) -> None:
    """Each is refused, for some must wait; what is remembered of them stays small."""
    gate = Gate(Method.PASSWORD, roles)
    method = authentication(gate)
    refused: set[str] = set()
    for n in range(3000):
        startup = Startup(0, {"user": f"guess{n % 20}"}, ())
        exchange = method(startup, Peer(f"10.0.0.{n % 10}"), None)
        try:
            next(exchange)
            nonce = b"n,,n=,r=abc"
            first = exchange.send(b"SCRAM-SHA-256\0" + len(nonce).to_bytes(4) + nonce)
            agreed = first[9:].split(b",")[0]
            exchange.send(b"c=biws," + agreed + b",p=" + base64.b64encode(b"\0" * 32))
        except TidemillError as e:
            refused.add(e.sqlstate)
        else:
            raise AssertionError("a guess was let in")
    assert refused == {"28P01", "28000"}
    assert REGISTRY.get_sample_value("tidemill_logins_total", {"outcome": "unseen"})
    assert len(roles.refused) == 3000


def test_a_renewed_certificate(tmp_path: Path, certificates: Certificates) -> None:
    file = tmp_path / "server.pem"
    shutil.copy(certificates.server, file)
    tls = load(str(file), "")
    before = tls.end_point
    file.write_text("half of a certi")
    with pytest.raises(CertificateError):
        tls.reload()
    assert tls.end_point == before
    renewed = make_certificates(tmp_path / "renewed")
    shutil.copy(renewed.server, file)
    engine = Tablets()
    engine.tables["t"] = table(("id", model.INT8), rows=[(1,)])
    with Served(engine, tls=tls) as served:
        dsn = f"host=localhost port={served.port} user=u dbname=d sslmode=verify-full sslrootcert="
        with psycopg.connect(f"{dsn}{certificates.ca}") as connection:
            tls.reload()
            assert connection.execute("SELECT * FROM t").rowcount == 1
        assert tls.end_point != before
        with psycopg.connect(f"{dsn}{renewed.ca}") as connection:
            assert connection.execute("SELECT * FROM t").rowcount == 1
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(f"{dsn}{certificates.ca}")


def test_files_that_are_no_certificates(certificates: Certificates, tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("nothing")
    for server, key, ca in (
        ("/nonexistent", "", ""),
        (str(tmp_path / "x.pem"), "", ""),
        (str(certificates.server), str(certificates.client_key), ""),
        (str(certificates.server), "", "/nonexistent"),
        (str(certificates.server), "", str(tmp_path / "x.pem")),
    ):
        with pytest.raises(CertificateError, match="--tls-"):
            load(server, key, ca)


def test_stalled_handshakes(served: Served, dsn: str) -> None:
    """They hold a little memory until the time for logins is over, and nobody else up."""
    held: list[socket.socket] = []
    try:
        for n in range(90):
            c = socket.create_connection(("127.0.0.1", served.port), timeout=120)
            c.sendall((f.SSL, b"\x16\x03\x01", b"\0\0")[n % 3])
            held.append(c)
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT * FROM t").rowcount == 2
    finally:
        for c in held:
            c.close()
