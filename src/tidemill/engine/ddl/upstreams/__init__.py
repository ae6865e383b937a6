"""From what a statement says of an upstream to its definition: a file per kind, and a line in a table here.

`UPSTREAMS` has, for each clause behind FROM (a class of `sql.parser.upstreams`), the planner of its sources.
`TABLES` has, by the type of a source, the planner of CREATE TABLE ... FROM SOURCE ... FORMAT ..., for kinds
whose tables say how messages are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.catalog.items import Source
from tidemill.engine.ddl.upstreams.described import DescribeContext, Described
from tidemill.engine.ddl.upstreams.files import describe_files
from tidemill.engine.ddl.upstreams.kafka import describe_kafka, describe_kafka_table
from tidemill.engine.ddl.upstreams.load_generator import describe_load_generator
from tidemill.engine.ddl.upstreams.messages import DescribedOutput
from tidemill.errors import TidemillError
from tidemill.sources.definition import KAFKA
from tidemill.sql import ast
from tidemill.sql.parser.upstreams.files import Files
from tidemill.sql.parser.upstreams.kafka import Kafka
from tidemill.sql.parser.upstreams.load_generator import LoadGenerator

__all__ = ["TABLES", "UPSTREAMS", "DescribeContext", "Described", "DescribedOutput", "describe"]

# The second argument is of the class that the kind stands under.
UPSTREAMS: dict[type[ast.Upstream], Callable[[ast.CreateSource, Any, DescribeContext], Described]] = {
    LoadGenerator: describe_load_generator,
    Kafka: describe_kafka,
    Files: describe_files,
}
TABLES: dict[str, Callable[[Source, ast.CreateTableFromSource, DescribeContext], DescribedOutput]] = {
    KAFKA: describe_kafka_table,
}


def describe(statement: ast.CreateSource, context: DescribeContext) -> Described:
    """What the source will be. May ask the upstream, so it may block; raises what is wrong with the
    statement, or with the upstream."""
    upstream = statement.upstream
    try:
        return UPSTREAMS[type(upstream)](statement, upstream, context)
    except TidemillError as e:
        e.position = e.position or upstream.offset + 1
        raise
