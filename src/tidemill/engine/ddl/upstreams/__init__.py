"""From what a statement says of an upstream to its definition: one file per kind, and one branch here."""

from __future__ import annotations

from tidemill.engine.ddl.upstreams.described import Context, Described
from tidemill.engine.ddl.upstreams.files import describe_files
from tidemill.engine.ddl.upstreams.kafka import describe_kafka
from tidemill.engine.ddl.upstreams.load_generator import describe_load_generator
from tidemill.sql import ast

__all__ = ["Context", "Described", "describe"]


def describe(statement: ast.CreateSource, context: Context) -> Described:
    """What the source will be. May ask the upstream, so it may block; raises what is wrong with the
    statement, or with the upstream."""
    match statement.upstream:
        case ast.LoadGenerator():
            return describe_load_generator(statement, statement.upstream, context.started)
        case ast.Kafka():
            return describe_kafka(statement, statement.upstream, context)
        case ast.Files():
            return describe_files(statement, statement.upstream, context)
