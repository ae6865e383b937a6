"""The sink targets: one module per kind, which makes the definition from the statement.

`SINK_TARGETS` maps each clause after INTO (a class of `sql.parser.sink_targets`) to the planner of its
sinks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.engine.ddl.sink_targets.files import describe_into_files
from tidemill.engine.ddl.sink_targets.kafka import describe_into_kafka
from tidemill.engine.ddl.sink_targets.request import SinkRequest
from tidemill.sinks.definition import Definition
from tidemill.sql import ast
from tidemill.sql.parser.sink_targets.files import IntoFiles
from tidemill.sql.parser.sink_targets.kafka import IntoKafka

__all__ = ["SINK_TARGETS", "SinkRequest", "describe_sink"]

# The first argument has the class that is the key of the entry.
SINK_TARGETS: dict[type[ast.SinkTarget], Callable[[Any, SinkRequest], Definition]] = {
    IntoKafka: describe_into_kafka,
    IntoFiles: describe_into_files,
}


def describe_sink(request: SinkRequest) -> Definition:
    """Contacts the brokers and the registry, so it blocks. Raises if the sink cannot be created."""
    request.check_as_of()
    target = request.statement.target
    return SINK_TARGETS[type(target)](target, request)
