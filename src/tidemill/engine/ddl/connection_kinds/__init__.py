"""The kinds of connections: one module per kind, with its options, their checks and a request to its server.

`CONNECTION_KINDS` maps the type of a connection, as mz_connections shows it, to its kind.
`engine.ddl.connection_options` and `engine.ddl.upstreams.connection_check` read it.
"""

from __future__ import annotations

from tidemill.catalog.connections import AWS, KAFKA, POSTGRES, PUBNUB, SCHEMA_REGISTRY
from tidemill.engine.ddl.connection_kinds.aws import AWS_CONNECTION
from tidemill.engine.ddl.connection_kinds.kafka import KAFKA_CONNECTION
from tidemill.engine.ddl.connection_kinds.kind import ConnectionKind
from tidemill.engine.ddl.connection_kinds.postgres import POSTGRES_CONNECTION
from tidemill.engine.ddl.connection_kinds.pubnub import PUBNUB_CONNECTION
from tidemill.engine.ddl.connection_kinds.schema_registry import REGISTRY_CONNECTION

__all__ = ["CONNECTION_KINDS", "ConnectionKind"]

CONNECTION_KINDS: dict[str, ConnectionKind] = {
    KAFKA: KAFKA_CONNECTION,
    SCHEMA_REGISTRY: REGISTRY_CONNECTION,
    POSTGRES: POSTGRES_CONNECTION,
    AWS: AWS_CONNECTION,
    PUBNUB: PUBNUB_CONNECTION,
}
