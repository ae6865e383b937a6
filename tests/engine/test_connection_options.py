"""The options of connections: what a statement says, what the catalog keeps, what SHOW CREATE gives back."""

from __future__ import annotations

import json

import pytest

from tidemill.catalog.connection_ops import CreateConnectionOp, CreateSecretOp
from tidemill.catalog.connections import completed
from tidemill.catalog.items import BUILTINS, Connection
from tidemill.catalog.ops import CreateDatabaseOp, RenameOp, apply_all
from tidemill.catalog.state import CatalogState
from tidemill.engine.ddl import connection_options
from tidemill.engine.ddl.connection_options import given_options, secrets_in
from tidemill.engine.ddl.connections import create_connection_sql
from tidemill.errors import TidemillError
from tidemill.sql import ast
from tidemill.sql.parse import parse

PEM = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"


def read(sql: str) -> ast.CreateConnection:
    (parsed,) = parse(sql)
    assert isinstance(parsed.statement, ast.CreateConnection)
    return parsed.statement


def kept(sql: str) -> tuple[str, dict[str, object]]:
    """The kind and the checked options of a statement; the id of a secret is its name."""
    statement = read(sql)
    kind = statement.kind
    options = given_options(kind, statement.options, lambda name: name.item)
    connection_options.check(kind, options)
    return kind, options


PLAIN = "SASL MECHANISMS plain, SASL USERNAME = SECRET u, SASL PASSWORD = SECRET p"
KAFKA = [
    ("BROKER 'h:9092'", {"brokers": ["h:9092"]}),
    ("BROKERS ['a:1', '[::1]:2', '10.0.0.1:3']", {"brokers": ["a:1", "[::1]:2", "10.0.0.1:3"]}),
    ("BROKER 'a:1, b:2'", {"brokers": ["a:1", "b:2"]}),
    (
        "BROKER 'h:1', SASL MECHANISMS 'SCRAM-SHA-512', SASL USERNAME 'u', SASL PASSWORD = SECRET p",
        {
            "brokers": ["h:1"],
            "sasl_mechanism": "SCRAM-SHA-512",
            "sasl_username": "u",
            "sasl_password": {"secret": "p"},
        },
    ),
    (
        f"BROKER 'h:1', SECURITY PROTOCOL sasl_plaintext, {PLAIN}",
        {
            "brokers": ["h:1"],
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_username": {"secret": "u"},
            "sasl_password": {"secret": "p"},
        },
    ),
    (
        f"BROKER 'h:1', SSL CERTIFICATE AUTHORITY '{PEM}', SSL CERTIFICATE = SECRET c, SSL KEY = SECRET k",
        {
            "brokers": ["h:1"],
            "ssl_ca": PEM,
            "ssl_certificate": {"secret": "c"},
            "ssl_key": {"secret": "k"},
        },
    ),
]
REGISTRY = [
    ("URL 'http://h:8081'", {"url": "http://h:8081"}),
    (
        f"URL 'https://h/path', USERNAME 'u', PASSWORD SECRET p, SSL CERTIFICATE AUTHORITY '{PEM}'",
        {"url": "https://h/path", "username": "u", "password": {"secret": "p"}, "ssl_ca": PEM},
    ),
    (
        f"URL 'https://h', SSL CERTIFICATE '{PEM}', SSL KEY = SECRET k",
        {"url": "https://h", "ssl_certificate": PEM, "ssl_key": {"secret": "k"}},
    ),
]
POSTGRES = [
    ("HOST 'h', DATABASE 'd', USER 'u'", {"host": "h", "database": "d", "user": "u"}),
    (
        f"""HOST '::1', PORT 5433, DATABASE 'd', USER SECRET u, PASSWORD SECRET p, SSL MODE verify_full,
        SSL CERTIFICATE AUTHORITY '{PEM}', SSL CERTIFICATE '{PEM}', SSL KEY SECRET k""",
        {
            "host": "::1",
            "port": 5433,
            "database": "d",
            "user": {"secret": "u"},
            "password": {"secret": "p"},
            "ssl_mode": "VERIFY_FULL",
            "ssl_ca": PEM,
            "ssl_certificate": PEM,
            "ssl_key": {"secret": "k"},
        },
    ),
]


@pytest.mark.parametrize(("options", "wanted"), KAFKA, ids=range(len(KAFKA)))
def test_kafka(options: str, wanted: dict[str, object]) -> None:
    assert kept(f"CREATE CONNECTION k TO KAFKA ({options})") == ("kafka", wanted)


@pytest.mark.parametrize(("options", "wanted"), REGISTRY, ids=range(len(REGISTRY)))
def test_registry(options: str, wanted: dict[str, object]) -> None:
    sql = f"CREATE CONNECTION c TO CONFLUENT SCHEMA REGISTRY ({options})"
    assert kept(sql) == ("confluent-schema-registry", wanted)


@pytest.mark.parametrize(("options", "wanted"), POSTGRES, ids=range(len(POSTGRES)))
def test_postgres(options: str, wanted: dict[str, object]) -> None:
    assert kept(f"CREATE CONNECTION c TO POSTGRES ({options})") == ("postgres", wanted)


def test_the_mode_of_tls_is_what_the_other_options_make_likely() -> None:
    assert completed("postgres", {})["ssl_mode"] == "prefer"
    assert completed("postgres", {"ssl_ca": PEM})["ssl_mode"] == "verify-full"
    assert completed("postgres", {"ssl_mode": "VERIFY_CA"}) == {"port": 5432, "ssl_mode": "verify-ca"}


SASL = "SASL MECHANISMS 'PLAIN', SASL USERNAME 'u', SASL PASSWORD = SECRET p"
WRONG_KAFKA = [
    ("SECURITY PROTOCOL SSL", "a kafka connection needs BROKER"),
    ("BROKER 'h'", '"h" is no address of a broker'),
    ("BROKER 'h:0'", '"h:0" is no address of a broker'),
    ("BROKER 'h:99999'", '"h:99999" is no address'),
    ("BROKER 'PLAINTEXT://h:1'", "is no address of a broker"),
    ("BROKER 'h:1,'", '"" is no address of a broker'),
    ("BROKER 'h:1', SECURITY PROTOCOL fish", 'SECURITY PROTOCOL cannot be "FISH"'),
    ("BROKER 'h:1', SASL USERNAME 'u'", "SECURITY PROTOCOL SASL_SSL needs SASL MECHANISMS"),
    ("BROKER 'h:1', SASL MECHANISMS plain, SASL USERNAME 'u'", "SASL_SSL needs SASL PASSWORD"),
    (
        f"BROKER 'h:1', SECURITY PROTOCOL SSL, {SASL}",
        "SASL MECHANISMS does not go with SECURITY PROTOCOL SSL",
    ),
    (
        f"BROKER 'h:1', SECURITY PROTOCOL SASL_PLAINTEXT, {SASL}, SSL CERTIFICATE AUTHORITY '{PEM}'",
        "SSL CERTIFICATE AUTHORITY does not go with SECURITY PROTOCOL SASL_PLAINTEXT",
    ),
    (f"BROKER 'h:1', {SASL.replace('PLAIN', 'GSSAPI')}", 'SASL MECHANISMS cannot be "GSSAPI"'),
    ("BROKER 'h:1', SASL PASSWORD 'hunter2'", "SASL PASSWORD must be a secret"),
    ("BROKER 'h:1', SSL KEY 'hunter2'", "SSL KEY must be a secret"),
    ("BROKER 'h:1', SSL KEY SECRET k", "SSL KEY needs SSL CERTIFICATE"),
    (f"BROKER 'h:1', SSL CERTIFICATE '{PEM}'", "SSL CERTIFICATE needs SSL KEY"),
    (
        "BROKER 'h:1', SSL CERTIFICATE AUTHORITY '/etc/ca.pem'",
        "SSL CERTIFICATE AUTHORITY is no certificate in PEM",
    ),
]
WRONG_REGISTRY = [
    ("USERNAME 'u'", "a schema registry connection needs URL"),
    ("URL 'h:8081'", "URL is no address of a schema registry"),
    ("URL 'ftp://h'", "URL is no address of a schema registry"),
    ("URL 'http://h:port'", "URL is no address of a schema registry"),
    ("URL 'http://h?x=1'", "URL is no address of a schema registry"),
    ("URL 'http://u:hunter2@h'", "URL cannot hold a name or a password"),
    ("URL = SECRET s", "URL cannot be a secret"),
    ("URL 'http://h', PASSWORD = SECRET p", "PASSWORD needs USERNAME"),
    ("URL 'http://h', USERNAME 'u', PASSWORD 'hunter2'", "PASSWORD must be a secret"),
    (f"URL 'http://h', SSL CERTIFICATE AUTHORITY '{PEM}'", "needs a URL that begins with https://"),
    (f"URL 'http://h', SSL CERTIFICATE '{PEM}', SSL KEY SECRET k", "needs a URL that begins with https://"),
    ("URL 'https://h', SSL KEY SECRET k", "SSL KEY needs SSL CERTIFICATE"),
    ("URL 'https://h', SSL KEY 'hunter2'", "SSL KEY must be a secret"),
]

HDU = "HOST 'h', DATABASE 'd', USER 'u'"
WRONG_POSTGRES = [
    ("DATABASE 'd', USER 'u'", "a postgres connection needs HOST"),
    ("HOST 'h', USER 'u'", "a postgres connection needs DATABASE"),
    ("HOST 'h', DATABASE 'd'", "a postgres connection needs USER"),
    ("HOST '/tmp', DATABASE 'd', USER 'u'", "HOST is no name or address of a machine"),
    ("HOST 'a,b', DATABASE 'd', USER 'u'", "HOST is no name or address of a machine"),
    ("HOST 'db:5432', DATABASE 'd', USER 'u'", "HOST is no name or address of a machine"),
    ("HOST SECRET s, DATABASE 'd', USER 'u'", "HOST cannot be a secret"),
    (f"{HDU}, PORT 0", "PORT cannot be 0"),
    (f"{HDU}, PORT 65536", "PORT cannot be 65536"),
    (f"{HDU}, PASSWORD 'hunter2'", "PASSWORD must be a secret"),
    (f"{HDU}, SSL MODE maybe", 'SSL MODE cannot be "maybe"'),
    (f"{HDU}, SSL MODE verify_ca", "SSL MODE verify-ca needs SSL CERTIFICATE AUTHORITY"),
    (f"{HDU}, SSL MODE disable, SSL CERTIFICATE AUTHORITY '{PEM}'", "does not go with SSL MODE disable"),
    (f"{HDU}, SSL KEY SECRET k", "SSL KEY needs SSL CERTIFICATE"),
]


@pytest.mark.parametrize(
    ("kind", "options", "wanted"),
    [("KAFKA", *case) for case in WRONG_KAFKA]
    + [("POSTGRES", *case) for case in WRONG_POSTGRES]
    + [("CONFLUENT SCHEMA REGISTRY", *case) for case in WRONG_REGISTRY],
)
def test_what_does_not_go_together_is_told_with_what_does(kind: str, options: str, wanted: str) -> None:
    with pytest.raises(TidemillError) as wrong:
        kept(f"CREATE CONNECTION k TO {kind} ({options})")
    assert wanted in wrong.value.primary and wrong.value.hint
    assert wrong.value.sqlstate == "22023"
    assert "hunter2" not in str(wrong.value)


def test_an_address_without_a_scheme_is_given_one() -> None:
    for url, hint in (
        ("h:8081", "http://h:8081 or https://h:8081?"),
        ("registry/path", "http://registry/path or"),
        ("http://h?x=1", "behind a ? or a #"),
        ("ftp://h", "Write http://host:port or https://host:port, with the path"),
    ):
        with pytest.raises(TidemillError) as wrong:
            kept(f"CREATE CONNECTION k TO CONFLUENT SCHEMA REGISTRY (URL '{url}')")
        assert hint in (wrong.value.hint or ""), url


def test_many_brokers_are_too_many() -> None:
    brokers = ", ".join(f"'h:{n}'" for n in range(1, 102))
    with pytest.raises(TidemillError, match="at most 100 brokers"):
        kept(f"CREATE CONNECTION k TO KAFKA (BROKERS ({brokers}))")


def test_options_of_another_kind_are_refused() -> None:
    option = ast.ConnectionOption("URL", "http://x")
    with pytest.raises(TidemillError, match="a kafka connection has no option URL"):
        given_options("kafka", (option,), lambda name: name.item)
    with pytest.raises(TidemillError, match="a kafka connection has no option URL"):
        connection_options.reset_fields("kafka", ("BROKERS", "URL"))
    assert connection_options.reset_fields("kafka", ("SASL MECHANISMS",)) == ["sasl_mechanism"]


@pytest.mark.parametrize(
    "sql",
    [f"CREATE CONNECTION k TO KAFKA ({options})" for options, _ in KAFKA]
    + [f"CREATE CONNECTION k TO CONFLUENT SCHEMA REGISTRY ({options})" for options, _ in REGISTRY]
    + [f"CREATE CONNECTION k TO POSTGRES ({options})" for options, _ in POSTGRES],
)
def test_show_create_gives_it_back_under_the_names_of_today(sql: str) -> None:
    names = ["p", "u", "c", "k2"]
    state = apply_all(CatalogState(BUILTINS.items, next_id=1, time=0), [CreateDatabaseOp("d")], time=1)
    state = apply_all(state, [CreateSecretOp("u2", name) for name in names], time=2)
    ids = {s.name: s.id for s in state.secrets()} | {"k": "u6"}
    statement = read(sql)
    kind = statement.kind
    options = given_options(kind, statement.options, lambda name: ids[name.item])
    op = CreateConnectionOp("u2", "k", kind, json.dumps(options), secrets_in(options))
    state = apply_all(state, [op, RenameOp(ids["p"], "Odd one")], time=3)
    (connection,) = state.connections()
    assert set(connection.depends_on) <= set(ids.values())
    shown = create_connection_sql(state, ast.Name(state.full_name(connection)), connection)
    again = read(shown)
    assert again.name.parts == ("d", "public", "k")
    today = {s.name: s.id for s in state.secrets()}
    assert given_options(kind, again.options, lambda name: today[name.item]) == options
    if "SECRET p" in sql:
        assert 'SECRET d.public."Odd one"' in shown
    assert isinstance(connection, Connection)


@pytest.mark.parametrize(
    "options",
    [
        "KAFKA (BROKER 'u:hush@h:1:2')",
        "KAFKA (BROKER 'u:hush@h')",
        "CONFLUENT SCHEMA REGISTRY (URL 'u:hush@h:8081')",
        "CONFLUENT SCHEMA REGISTRY (URL 'http://u:hush@h:8081')",
        "CONFLUENT SCHEMA REGISTRY (URL 'ftp://u:hush@h:8081')",
        "KAFKA (BROKER 'h:1', SASL PASSWORD 'hush')",
    ],
)
def test_a_password_in_the_wrong_place_is_not_repeated(options: str) -> None:
    with pytest.raises(TidemillError) as caught:
        kept(f"CREATE CONNECTION c TO {options}")
    assert "hush" not in f"{caught.value.primary} {caught.value.detail} {caught.value.hint}"
