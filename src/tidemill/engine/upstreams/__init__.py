"""From what a statement says of an upstream to its definition: one file per kind, and one branch here."""

from __future__ import annotations

from tidemill.engine.upstreams.described import Described
from tidemill.engine.upstreams.load_generator import describe_load_generator
from tidemill.errors import Unsupported
from tidemill.sql import ast

__all__ = ["Described", "describe"]


def describe(statement: ast.CreateSource, started: int) -> Described:
    """What the source will be, made at the time `started`. May ask the upstream, so it may block; raises what
    is wrong with the statement, or with the upstream."""
    match statement.upstream:
        case ast.LoadGenerator():
            return describe_load_generator(statement, statement.upstream, started)
        case ast.Kafka():
            raise Unsupported("CREATE SOURCE ... FROM KAFKA is not supported yet")
