"""A new kind of connection is two files and a line in two tables, and a line more each for what goes without
saying and for a relation of its own: one is made here, registered, and used.

CONTRIBUTING.md has the recipe; nothing else is changed for the statements, the catalog, the request to the
server, SHOW CREATE CONNECTION and the system relations to know the kind. Without Spark.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.kafka_context import World
from tidemill.catalog import connections as catalog
from tidemill.catalog.connection_ops import CreateConnectionOp
from tidemill.catalog.items import Connection
from tidemill.catalog.ops import apply_all
from tidemill.engine.ddl import connection_kinds as planners
from tidemill.engine.ddl import connection_options
from tidemill.engine.ddl.connection_kinds.kind import TLS, ConnectionKind, check_choice, wrong_option
from tidemill.engine.ddl.connections import create_connection_sql
from tidemill.engine.ddl.upstreams.connection_check import check_reachable
from tidemill.engine.relations import kind_details
from tidemill.engine.relations.system import Situation
from tidemill.errors import Internal, SyntaxError_, TidemillError
from tidemill.sources.contract import UpstreamError
from tidemill.sql import ast
from tidemill.sql.parse import parse
from tidemill.sql.parser import connection_kinds as syntax
from tidemill.sql.parser.connection_kinds import syntax as values
from tidemill.types.model import INT8, TEXT

# -- the first file: sql/parser/connection_kinds/mail_box.py

MAIL_BOX = values.ConnectionSyntax(
    "mail box",
    {
        ("host",): values.text,
        ("port",): values.port,
        ("ssl", "mode"): values.word,
        ("user",): values.text,
        ("username",): values.text,
        ("password",): values.text,
        **values.TLS,
    },
    {("username",): "USER"},
)

# -- the second file: engine/ddl/connection_kinds/mail_box.py


def check(options: Mapping[str, Any]) -> None:
    if "host" not in options:
        raise wrong_option("a mail box connection needs HOST", "Write HOST 'name'.")
    check_choice("SSL MODE", options["ssl_mode"], ("DISABLE", "REQUIRE"))


def reach(options: Mapping[str, Any]) -> None:
    try:
        with socket.create_connection((options["host"], options["port"]), timeout=5) as box:
            box.sendall(f"{options['user']} {options['password']}\n".encode())
    except OSError as e:
        raise UpstreamError("the mail box cannot be reached", detail=str(e)) from e


FIELDS = {
    "HOST": "host",
    "PORT": "port",
    "SSL MODE": "ssl_mode",
    "USER": "user",
    "PASSWORD": "password",
    **TLS,
}

# -- what goes without saying, and a relation of its own


def defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    return {"port": 143, "ssl_mode": "DISABLE", **given}


def details(options: Mapping[str, Any]) -> tuple[str, int]:
    return options["host"], options["port"]


# -- the lines


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = ConnectionKind(FIELDS, ("PASSWORD", "SSL KEY"), check, reach)
    monkeypatch.setitem(syntax.CONNECTION_KINDS, ("mail", "box"), MAIL_BOX)
    monkeypatch.setitem(planners.CONNECTION_KINDS, "mail-box", kind)
    monkeypatch.setitem(catalog.DEFAULTS, "mail-box", defaults)
    columns = [("host", TEXT), ("port", INT8)]
    monkeypatch.setitem(kind_details.CONNECTION_DETAILS, "mail-box", ("mz_mail_boxes", columns, details))


@pytest.fixture
def world() -> World:
    made = World()
    made.secret("p", "hunter2")
    return made


def create(world: World, options: str, name: str = "m") -> Connection:
    """As CREATE CONNECTION does it, without the request."""
    (parsed,) = parse(f"CREATE CONNECTION {name} TO MAIL BOX ({options})")
    assert isinstance(parsed.statement, ast.CreateConnection)
    kind = parsed.statement.kind
    given = connection_options.given_options(
        kind, parsed.statement.options, lambda found: secret(world, found)
    )
    connection_options.check(kind, given)
    op = CreateConnectionOp("u2", name, kind, json.dumps(given), connection_options.secrets_in(given))
    world.state = apply_all(world.state, [op], time=world.state.time + 1)
    return next(c for c in world.state.connections() if c.name == name)


def secret(world: World, name: ast.Name) -> str:
    return world.state.resolve_item(name.parts, "d", ["public"], "secret").id


def test_a_statement_makes_a_connection_that_is_used(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        made = create(world, f"HOST '127.0.0.1', PORT = {port}, USERNAME 'u', PASSWORD SECRET p")
        assert made.type == "mail-box" and made.depends_on == (secret(world, ast.Name(("p",))),)
        options = catalog.options(world.state, made.id, world)
        assert options == {
            "host": "127.0.0.1",
            "port": port,
            "ssl_mode": "DISABLE",
            "user": "u",
            "password": "hunter2",
        }
        check_reachable(made.type, options)
        with server.accept()[0] as client, client.makefile() as lines:
            assert lines.readline() == "u hunter2\n"
    with pytest.raises(UpstreamError, match="cannot be reached") as away:
        check_reachable(made.type, options)
    assert away.value.hint == "WITH (VALIDATE = false) does without asking."


def test_it_is_shown_as_it_was_written(world: World) -> None:
    made = create(world, "PORT 993, USER 'u', SSL MODE require, HOST 'h', PASSWORD = SECRET p")
    shown = create_connection_sql(world.state, ast.Name(("m",)), made)
    assert shown == (
        "CREATE CONNECTION m TO MAIL BOX "
        "(HOST 'h', PORT 993, SSL MODE 'REQUIRE', USER 'u', PASSWORD = SECRET d.public.p)"
    )
    again = create(world, shown.partition("(")[2].removesuffix(")"), "n")
    assert json.loads(again.options) == json.loads(made.options) and again.type == made.type


def test_it_has_a_relation_of_its_own(world: World) -> None:
    made = create(world, "HOST 'h'")
    world.connection("k", catalog.KAFKA, brokers=["h:1"])
    specs = {name: (columns, rows) for _, name, columns, rows in kind_details.detail_specs()}
    columns, rows = specs["mz_mail_boxes"]
    assert columns == [("id", TEXT), ("host", TEXT), ("port", INT8)]
    assert rows(cast(Situation, SimpleNamespace(catalog=world.state))) == [(made.id, "h", 143)]


def test_it_can_be_altered() -> None:
    (parsed,) = parse("ALTER CONNECTION m SET (PORT 1, USERNAME 'v'), RESET (SSL MODE)")
    assert isinstance(parsed.statement, ast.AlterConnection)
    assert [(o.name, o.value) for o in parsed.statement.changed] == [("PORT", 1), ("USER", "v")]
    assert connection_options.reset_fields("mail-box", parsed.statement.reset) == ["ssl_mode"]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("USER 'u'", "a mail box connection needs HOST"),
        ("HOST 'h', SSL MODE 'fish'", 'SSL MODE cannot be "FISH"'),
        ("HOST 'h', PASSWORD 'hunter2'", "PASSWORD must be a secret"),
        ("HOST 'h', SSL KEY SECRET p", "SSL KEY needs SSL CERTIFICATE"),
        ("HOST 'h', URL 'x'", "a mail box connection has no option URL"),
    ],
)
def test_what_is_wrong_is_refused(world: World, options: str, wanted: str) -> None:
    with pytest.raises(TidemillError) as wrong:
        create(world, options)
    assert wanted in wrong.value.primary and wrong.value.hint and "hunter2" not in str(wrong.value)


def test_it_is_among_the_kinds_that_a_hint_names() -> None:
    with pytest.raises(SyntaxError_, match="unknown kind of connection") as caught:
        parse("CREATE CONNECTION m TO MALL BOX (HOST 'h')")
    assert (
        caught.value.hint
        == "A connection can be made TO KAFKA, CONFLUENT SCHEMA REGISTRY, POSTGRES, AWS, PUBNUB or MAIL BOX."
    )


def test_an_option_is_read_the_same_way_in_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = replace(MAIL_BOX, readers={**MAIL_BOX.readers, ("password",): values.word})
    monkeypatch.setitem(syntax.CONNECTION_KINDS, ("mail", "box"), odd)
    with pytest.raises(Internal, match="read PASSWORD in different ways"):
        parse("ALTER CONNECTION m SET (PORT 1)")


def test_each_kind_has_the_options_of_its_syntax() -> None:
    for words, kind in syntax.CONNECTION_KINDS.items():
        assert {kind.name(option) for option in kind.readers} == set(
            planners.CONNECTION_KINDS["-".join(words)].fields
        )
