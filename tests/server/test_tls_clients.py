"""psql, psycopg, asyncpg, SQLAlchemy and pgjdbc log in over TLS, with a password, and check whom they talk
to (sslmode=verify-full, or what the client calls it). Who is not let in, or does not trust us, is told why.

Good logins are with one real server, without Spark. For those that fail before a session begins a listener
in this process does, with the certificate and the address that the case needs.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from guarded import Guarded
from pgjdbc import Logins, driver
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from tablets import Tablets
from wireserver import Served

from support.psql import psql_with_tls
from tidemill.access.scram import make_verifier
from tidemill.dev.certificates import Certificates, make_certificates
from tidemill.server.auth import Gate, Method, Peer
from tidemill.server.pgwire.auth import authentication
from tidemill.server.tls import Tls, load

PAGES = Path(__file__).resolve().parents[2] / "docs" / "clients"
PASSWORD = "s\u00e9same & 'co' 100%"


class NotLetIn(Exception):
    """What the client says."""


@dataclass(frozen=True)
class Address:
    port: int
    # Whom the client trusts.
    ca: Path
    password: str = PASSWORD
    tls: bool = True

    @property
    def dsn(self) -> str:
        quoted = self.password.replace("\\", r"\\").replace("'", r"\'")
        how = f"sslmode=verify-full sslrootcert={self.ca}" if self.tls else "sslmode=disable"
        return (
            f"host=localhost hostaddr=127.0.0.1 port={self.port} user=app dbname=materialize "
            f"password='{quoted}' connect_timeout=60 {how}"
        )

    @property
    def context(self) -> ssl.SSLContext | bool:
        return ssl.create_default_context(cafile=str(self.ca)) if self.tls else False


Client = Callable[[Address], str]


def by_psql(address: Address) -> str:
    done = subprocess.run(
        [psql_with_tls(), address.dsn, "-X", "-A", "-t", "-c", "SELECT current_user"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise NotLetIn(done.stderr)
    return done.stdout.strip()


def by_psycopg(address: Address) -> str:
    try:
        with psycopg.connect(address.dsn) as connection:
            row = connection.execute("SELECT current_user").fetchone()
    except psycopg.OperationalError as e:
        raise NotLetIn(str(e)) from e
    assert row is not None
    return str(row[0])


def by_asyncpg(address: Address) -> str:
    async def main() -> str:
        connection = await asyncpg.connect(
            host="localhost",
            port=address.port,
            user="app",
            password=address.password,
            database="materialize",
            ssl=address.context,
            timeout=60,
        )
        try:
            return str(await connection.fetchval("SELECT current_user"))
        finally:
            await connection.close()

    try:
        return asyncio.run(main())
    except (asyncpg.PostgresError, OSError) as e:
        raise NotLetIn(str(e)) from e


def by_sqlalchemy(address: Address) -> str:
    """With psycopg, by a URL alone."""
    query = (
        {"sslmode": "verify-full", "sslrootcert": str(address.ca)} if address.tls else {"sslmode": "disable"}
    )
    url = sa.URL.create(
        "postgresql+psycopg",
        "app",
        address.password,
        "localhost",
        address.port,
        "materialize",
        {**query, "hostaddr": "127.0.0.1", "connect_timeout": "60"},
    )
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            assert sa.inspect(connection).get_table_names() == ["t"]
            return connection.execute(sa.text("SELECT current_user")).scalar_one()
    except OperationalError as e:
        raise NotLetIn(str(e)) from e
    finally:
        engine.dispose()


def by_sqlalchemy_asyncpg(address: Address) -> str:
    async def main() -> str:
        url = sa.URL.create(
            "postgresql+asyncpg", "app", address.password, "localhost", address.port, "materialize"
        )
        engine = create_async_engine(url, connect_args={"ssl": address.context, "timeout": 60})
        try:
            async with engine.connect() as connection:
                return (await connection.execute(sa.text("SELECT current_user"))).scalar_one()
        finally:
            await engine.dispose()

    try:
        return asyncio.run(main())
    except (asyncpg.PostgresError, OSError, DBAPIError) as e:
        raise NotLetIn(str(e)) from e


class ByPgjdbc:
    """The driver's JVM, started by the first login."""

    def __init__(self) -> None:
        self.logins: Logins | None = None

    def __call__(self, address: Address) -> str:
        if self.logins is None:
            self.logins = Logins(driver())
        options = {"user": "app", "password": address.password, "connectTimeout": "60"}
        options |= (
            {"sslmode": "verify-full", "sslrootcert": str(address.ca)}
            if address.tls
            else {"sslmode": "disable"}
        )
        query = urllib.parse.urlencode(options, quote_via=urllib.parse.quote)
        said = self.logins.try_url(f"jdbc:postgresql://localhost:{address.port}/materialize?{query}")
        if not said.startswith("in: "):
            raise NotLetIn(said)
        return said.removeprefix("in: ")


by_pgjdbc = ByPgjdbc()
CLIENTS: dict[str, Client] = {
    "psql": by_psql,
    "psycopg": by_psycopg,
    "asyncpg": by_asyncpg,
    "sqlalchemy": by_sqlalchemy,
    "sqlalchemy-asyncpg": by_sqlalchemy_asyncpg,
    "pgjdbc": by_pgjdbc,
}


@pytest.fixture(scope="module", autouse=True)
def end_of_the_jvm() -> Iterator[None]:
    yield
    if by_pgjdbc.logins is not None:
        by_pgjdbc.logins.close()
        by_pgjdbc.logins = None


@pytest.fixture(params=CLIENTS, scope="module")
def client(request: pytest.FixtureRequest) -> Client:
    return CLIENTS[request.param]


# -- let in


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    server = Guarded(tmp_path_factory.mktemp("guarded_clients"))
    try:
        server.start()
        with psycopg.connect(server.sql_dsn, autocommit=True) as root:
            root.execute("CREATE ROLE app LOGIN PASSWORD '{}'".format(PASSWORD.replace("'", "''")).encode())
            root.execute("CREATE TABLE t (a int)")
        yield server
    finally:
        server.close()


@pytest.mark.server
def test_let_in(guarded: Guarded, client: Client) -> None:
    assert client(Address(guarded.sql_port, guarded.certificates.ca)) == "app"


# -- the examples of docs/clients


def example(page: str, language: str) -> str:
    """The one over TLS."""
    text = (PAGES / f"{page}.md").read_text()
    (found,) = re.findall(rf"^```{language} tls\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return found


def here(text: str, guarded: Guarded) -> str:
    for shown, meant in (
        ("db.example.org", "localhost"),
        ("6875", str(guarded.sql_port)),
        ("ca.pem", str(guarded.certificates.ca)),
    ):
        assert shown in text
        text = text.replace(shown, meant)
    return text


def run_example(command: Sequence[str]) -> str:
    done = subprocess.run(
        command,
        env={**os.environ, "PGPASSWORD": PASSWORD},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.server
@pytest.mark.parametrize("page", ["psycopg", "asyncpg", "sqlalchemy"])
def test_the_example_in_python(guarded: Guarded, page: str) -> None:
    run_example([sys.executable, "-c", here(example(page, "python"), guarded)])


@pytest.mark.server
def test_the_example_of_psql(guarded: Guarded) -> None:
    psql_with_tls()
    command = here(example("psql", "sh"), guarded).strip()
    assert run_example(["sh", "-c", f"{command} -X -A -t -c 'SELECT current_user'"]) == "app"


@pytest.mark.server
def test_the_example_of_jdbc(guarded: Guarded, tmp_path: Path) -> None:
    jar = driver()
    program = tmp_path / "Example.java"
    body = here(example("jdbc", "java"), guarded)
    program.write_text(
        "import java.sql.*;\nimport java.util.*;\nclass Example {\n"
        f"public static void main(String[] arguments) throws Exception {{\n{body}}}\n}}\n"
    )
    assert run_example(["java", "-cp", str(jar), str(program)]) == "app"


@pytest.mark.server
def test_the_example_of_grafana(guarded: Guarded) -> None:
    """A data source of these settings is let in. Its driver takes them as libpq does."""
    text = here(example("grafana", "yaml"), guarded)
    settings = dict(re.findall(r"^ +(?:- )?(\w+): (.+)$", text, re.MULTILINE))
    host, port = settings["url"].split(":")
    assert settings["password"] == "$PGPASSWORD"
    with psycopg.connect(
        host=host,
        port=port,
        user=settings["user"],
        dbname=settings["database"],
        sslmode=settings["sslmode"],
        sslrootcert=settings["sslRootCertFile"],
        password=PASSWORD,
        connect_timeout=60,
    ) as connection:
        assert connection.execute("SELECT current_user").fetchone() == ("app",)


@pytest.mark.server
def test_the_example_of_metabase(guarded: Guarded) -> None:
    """These settings are pgjdbc's under other names."""
    details = json.loads(here(example("metabase", "json"), guarded))["details"]
    assert details["ssl"] and details["host"] == "localhost" and details["password"] == "$PGPASSWORD"
    assert (details["user"], details["dbname"], details["ssl-mode"]) == ("app", "materialize", "verify-full")
    assert by_pgjdbc(Address(details["port"], Path(details["ssl-root-cert-path"]))) == "app"


# -- refused


class Roles:
    """An engine with one role."""

    login_key = b"k" * 32

    def __init__(self) -> None:
        self._verifier = make_verifier(PASSWORD).text()

    def stored_password(self, role: str) -> str | None:
        return self._verifier if role == "app" else None

    def login_refused(self, role: str, address: str, reason: str) -> None:
        pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def listening(tls: Tls) -> Served:
    return Served(Tablets(), tls=tls, authentication=authentication(Gate(Method.PASSWORD, Roles())))


@pytest.fixture(scope="module")
def tls(certificates: Certificates) -> Tls:
    return load(str(certificates.server), "")


@pytest.fixture(scope="module")
def address(tls: Tls, certificates: Certificates) -> Iterator[Address]:
    with listening(tls) as served:
        yield Address(served.port, certificates.ca)


def said_by(client: Client, address: Address) -> str:
    with pytest.raises(NotLetIn) as caught:
        client(address)
    return str(caught.value)


def test_a_wrong_password(client: Client, tls: Tls, certificates: Certificates) -> None:
    # Each with a listener of its own: failures add up.
    with listening(tls) as served:
        said = said_by(client, Address(served.port, certificates.ca, "guess"))
    assert 'password authentication failed for user "app"' in said


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of another authority."""
    return make_certificates(tmp_path_factory.mktemp("others"))


def test_an_unknown_authority(client: Client, address: Address, others: Certificates) -> None:
    said = said_by(client, replace(address, ca=others.ca))
    assert "certificate verify failed" in said or "PKIX path" in said


@pytest.fixture(scope="module")
def late(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return load(str(expired(certificates, tmp_path_factory.mktemp("expired"))), "")


def test_an_expired_certificate(client: Client, certificates: Certificates, late: Tls) -> None:
    with listening(late) as served:
        said = said_by(client, Address(served.port, certificates.ca))
    # OpenSSL names what is wrong in its log alone; Java says it here.
    assert "certificate verify failed" in said or "validity check failed" in said


def expired(certificates: Certificates, folder: Path) -> Path:
    """A certificate of the same authority and for the same names, that ended yesterday."""
    home = certificates.ca.parent
    names = folder / "names"
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:false\n")
    key, request, made = home / "server.key", folder / "request", folder / "expired.crt"
    asked = ["req", "-new", "-key", str(key), "-subj", "/CN=expired", "-out", str(request)]
    signed = ["x509", "-req", "-in", str(request), "-CA", str(certificates.ca)]
    signed += ["-CAkey", str(home / "ca.key")]
    signed += ["-CAserial", str(folder / "serial"), "-CAcreateserial", "-days", "-1", "-extfile", str(names)]
    for arguments in (asked, [*signed, "-out", str(made)]):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
    both = folder / "expired.pem"
    both.write_text(key.read_text() + made.read_text())
    return both


@pytest.fixture(scope="module")
def renamed(others: Certificates) -> Tls:
    """A certificate that is good, for nobody's name."""
    both = others.ca.parent / "renamed.pem"
    both.write_text(others.client_key.read_text() + others.client.read_text())
    return load(str(both), "")


def test_another_name(client: Client, others: Certificates, renamed: Tls) -> None:
    with listening(renamed) as served:
        said = said_by(client, Address(served.port, others.ca))
    assert any(
        word in said
        for word in ("does not match", "Hostname mismatch", "not valid for", "could not be verified")
    )


def test_without_tls_from_another_machine(
    client: Client, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Peer, "local", property(lambda _: False))
    said = said_by(client, replace(address, tls=False))
    assert "this server takes connections from other machines by TLS only" in said
