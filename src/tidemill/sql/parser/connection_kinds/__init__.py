"""CREATE CONNECTION ... TO: the syntax of each kind of connection.

A kind is one file here, with the options that it takes, and a line in `CONNECTION_KINDS`. CONTRIBUTING.md has
the complete recipe for a connection.
"""

from __future__ import annotations

from tidemill.errors import Internal
from tidemill.sql.parser.connection_kinds.aws import AWS
from tidemill.sql.parser.connection_kinds.kafka import KAFKA
from tidemill.sql.parser.connection_kinds.postgres import POSTGRES
from tidemill.sql.parser.connection_kinds.pubnub import PUBNUB
from tidemill.sql.parser.connection_kinds.schema_registry import SCHEMA_REGISTRY
from tidemill.sql.parser.connection_kinds.syntax import ConnectionSyntax
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import refuse_kind, spelled

# The words after TO, and the options; of two with a common start the longer is first.
CONNECTION_KINDS: dict[tuple[str, ...], ConnectionSyntax] = {
    ("kafka",): KAFKA,
    ("confluent", "schema", "registry"): SCHEMA_REGISTRY,
    ("postgres",): POSTGRES,
    ("aws",): AWS,
    ("pubnub",): PUBNUB,
}
# Planned kinds.
_NOT_YET = (
    ("mysql",),
    ("sql", "server"),
    ("aws", "privatelink"),
    ("ssh", "tunnel"),
)


def connection_kind(cursor: TokenCursor) -> tuple[str, ConnectionSyntax]:
    """The words after TO: the kind in the form of `ast.CreateConnection`, and its options."""
    for words, syntax in CONNECTION_KINDS.items():
        if cursor.accept(*words):
            return "-".join(words), syntax
    *names, last = map(spelled, CONNECTION_KINDS)
    hint = f"A connection can be made TO {', '.join(names)} or {last}."
    raise refuse_kind(cursor, "kind of connection", "CREATE CONNECTION ... TO", hint, _NOT_YET)


def any_kind() -> ConnectionSyntax:
    """The options of all kinds: ALTER CONNECTION is parsed before its connection is looked up. Options with
    the same name have the same reader in every kind."""
    every = ConnectionSyntax("", {}, {})
    for syntax in CONNECTION_KINDS.values():
        for words, reader in syntax.readers.items():
            if every.readers.setdefault(words, reader) is not reader:
                raise Internal(f"two kinds of connections read {spelled(words)} in different ways")
        every.same.update(syntax.same)
    return every
