"""Connection resolution: replaces the ids in the definition of a source by connections and secrets.

Called by the code that runs sources, and by the engine. A definition names a connection by id, and a
connection names secrets by id, so neither passwords nor addresses are copied. When a source is opened,
`opened(state, source, secrets)` returns the definition that `sources.definition.open_source` takes:

- `"connection": "<id>"` becomes `"connection": {"brokers": [...], "security_protocol": ..., ...}`;
- `"registry": {"connection": "<id>"}` of a format becomes `"registry": {"url": ..., "username": ..., ...}`;
- the outputs of tables (CREATE TABLE ... FROM SOURCE ... FORMAT ...) follow the outputs of the source;
- `{"secret": "<id>"}` becomes the text of the secret.

The result holds passwords: never log or store it. `hangs_on(state, source)` returns the items whose change
requires reopening the source.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

from tidemill.catalog.items import Connection, ItemId, Secret, Source
from tidemill.catalog.state import CatalogState
from tidemill.errors import WrongObjectType

Definition = dict[str, Any]

KAFKA = "kafka"
SCHEMA_REGISTRY = "confluent-schema-registry"
POSTGRES = "postgres"
AWS = "aws"
PUBNUB = "pubnub"

# As libpq calls them.
POSTGRES_SSL_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")
POSTGRES_PORT = 5432
AWS_REGION = "us-east-1"


class Secrets(Protocol):
    """The store of secrets (`secrets.SecretStore`)."""

    def read(self, secret: Secret) -> str: ...


def opened(state: CatalogState, source: Source, secrets: Secrets) -> Definition:
    """The definition that opens `source` in its current state in the catalog. Raises TidemillError."""
    definition: Definition = json.loads(source.definition)
    tables = [json.loads(t.definition) for t in state.source_tables(source.id) if t.definition is not None]
    if tables:
        definition["outputs"] = [*definition.get("outputs", ()), *tables]
    return resolved(state, definition, secrets)


def resolved(state: CatalogState, definition: Mapping[str, Any], secrets: Secrets) -> Definition:
    """`definition` with the current connections."""
    found = dict(definition)
    if "connection" in found:
        found["connection"] = _reached(state, found["connection"], secrets)
    if "outputs" in found:
        found["outputs"] = [
            {name: _format(state, part, secrets) for name, part in output.items()}
            for output in found["outputs"]
        ]
    return found


def _format(state: CatalogState, part: Any, secrets: Secrets) -> Any:
    """A part of an output; formats are those that have a registry."""
    if not isinstance(part, dict) or not cast("Definition", part).get("registry"):
        return part
    form = cast("Definition", part)
    registry: Definition = form["registry"]
    if "connection" in registry:
        return {**form, "registry": options(state, registry["connection"], secrets)}
    return form


def _reached(state: CatalogState, connection: Any, secrets: Secrets) -> Any:
    """If the connection is not an item, its options are in the definition."""
    return options(state, connection, secrets) if isinstance(connection, str) else connection


def options(state: CatalogState, connection: ItemId, secrets: Secrets) -> Definition:
    """The options of a connection, secrets in the place of their names."""
    item = state.get(connection, Connection)
    return with_secrets(state, completed(item.type, json.loads(item.options)), secrets)


def _secured(given: Mapping[str, Any]) -> Definition:
    """How a Kafka connection is secured, by what else it says."""
    if "security_protocol" in given:
        return dict(given)
    sasl = any(name.startswith("sasl_") for name in given)
    tls = any(name.startswith("ssl_") for name in given)
    protocol = "SASL_SSL" if sasl else "SSL" if tls else "PLAINTEXT"
    return {**given, "security_protocol": protocol}


def _addressed(given: Mapping[str, Any]) -> Definition:
    """A PostgreSQL connection with its port and the mode of TLS, whichever way it is spelled. Whoever gives
    an authority wants the server to be checked."""
    mode = "verify-full" if "ssl_ca" in given else "prefer"
    spelled = str(given.get("ssl_mode", mode)).lower().replace("_", "-")
    return {"port": POSTGRES_PORT, **given, "ssl_mode": spelled}


def _located(given: Mapping[str, Any]) -> Definition:
    return {"region": AWS_REGION, **given}


# Options with their defaults, for kinds that have defaults.
DEFAULTS: dict[str, Callable[[Mapping[str, Any]], Definition]] = {
    KAFKA: _secured,
    POSTGRES: _addressed,
    AWS: _located,
}


def completed(kind: str, given: Mapping[str, Any]) -> Definition:
    """The options with their defaults."""
    return DEFAULTS.get(kind, dict)(given)


def with_secrets(state: CatalogState, given: Mapping[str, Any], secrets: Secrets) -> Definition:
    """Options as a connection has them, secrets in the place of their names."""
    found: Definition = {}
    for name, value in given.items():
        if isinstance(value, dict):
            found[name] = secrets.read(state.get(cast("Definition", value)["secret"], Secret))
        else:
            found[name] = value
    return found


def hangs_on(state: CatalogState, source: Source) -> tuple[Connection | Secret, ...]:
    """The connections and secrets that the source and its tables are opened with, in the order of their
    ids."""
    tables = [i for table in state.source_tables(source.id) for i in table.connections]
    return behind(state, [*source.depends_on, *tables])


def behind(state: CatalogState, connections: Sequence[ItemId]) -> tuple[Connection | Secret, ...]:
    """These connections and the secrets that they name, in the order of their ids."""
    found: dict[ItemId, Connection | Secret] = {}
    waiting = list(connections)
    while waiting:
        item = state.items[waiting.pop()]
        if isinstance(item, Connection | Secret) and item.id not in found:
            found[item.id] = item
            waiting += item.depends_on
    return tuple(found[i] for i in sorted(found))


def transaction_source(state: CatalogState, source: Source) -> Source | None:
    """The source of the transaction topic that its envelope names."""
    found = (state.items.get(i) for i in source.depends_on)
    return next((item for item in found if isinstance(item, Source)), None)


def connection_of(state: CatalogState, source: Source) -> Connection | None:
    """The connection that a source reads through; None where it has none with a name."""
    found = json.loads(source.definition).get("connection") if source.depends_on else None
    return state.get(found, Connection) if isinstance(found, str) else None


def expect_type(connection: Connection, kind: str, position: int | None = None) -> Connection:
    """The connection, if it is of that kind."""
    if connection.type != kind:
        raise WrongObjectType(
            f'connection "{connection.name}" is a {connection.type} connection, not a {kind} connection',
            position=position,
        )
    return connection
