"""The upstreams of sources: one module per kind, which makes the definition from the statement.

`UPSTREAMS` maps each clause after FROM (a class of `sql.parser.upstreams`) to the planner of its sources.
`TABLES` maps the type of a source to the planner of CREATE TABLE ... FROM SOURCE, for the kinds whose tables
add an output of their own: they specify how messages are decoded, or are described by the upstream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.catalog.items import Source
from tidemill.engine.ddl.upstreams.described import DescribeContext, Described, DescribedTable
from tidemill.engine.ddl.upstreams.files import describe_files
from tidemill.engine.ddl.upstreams.folders import describe_folder_table
from tidemill.engine.ddl.upstreams.kafka import describe_kafka, describe_kafka_table
from tidemill.engine.ddl.upstreams.kinesis import describe_kinesis, describe_kinesis_table
from tidemill.engine.ddl.upstreams.load_generator import describe_load_generator
from tidemill.engine.ddl.upstreams.messages import DescribedOutput
from tidemill.engine.ddl.upstreams.postgres import (
    describe_postgres,
    describe_postgres_added,
    describe_postgres_table,
)
from tidemill.engine.ddl.upstreams.pubnub import describe_pubnub, describe_pubnub_table
from tidemill.engine.ddl.upstreams.s3 import describe_s3, describe_s3_table
from tidemill.errors import TidemillError
from tidemill.sources.definition import FILES, KAFKA, KINESIS, POSTGRES, PUBNUB
from tidemill.sources.definition import S3 as S3_KIND
from tidemill.sources.offsets import Offsets
from tidemill.sql import ast
from tidemill.sql.parser.upstreams.files import Files
from tidemill.sql.parser.upstreams.kafka import Kafka
from tidemill.sql.parser.upstreams.kinesis import Kinesis
from tidemill.sql.parser.upstreams.load_generator import LoadGenerator
from tidemill.sql.parser.upstreams.postgres import Postgres
from tidemill.sql.parser.upstreams.pubnub import PubNub
from tidemill.sql.parser.upstreams.s3 import S3

__all__ = [
    "ADDED",
    "TABLES",
    "UPSTREAMS",
    "DescribeContext",
    "Described",
    "DescribedOutput",
    "DescribedTable",
    "describe",
]

# The second argument has the class that is the key of the entry.
UPSTREAMS: dict[type[ast.Upstream], Callable[[ast.CreateSource, Any, DescribeContext], Described]] = {
    LoadGenerator: describe_load_generator,
    Kafka: describe_kafka,
    Files: describe_files,
    Postgres: describe_postgres,
    S3: describe_s3,
    Kinesis: describe_kinesis,
    PubNub: describe_pubnub,
}
TABLES: dict[str, Callable[[Source, ast.CreateTableFromSource, DescribeContext], DescribedOutput]] = {
    KAFKA: describe_kafka_table,
    POSTGRES: describe_postgres_table,
    FILES: describe_folder_table,
    S3_KIND: describe_s3_table,
    KINESIS: describe_kinesis_table,
    PUBNUB: describe_pubnub_table,
}
# By the type of a source: the planner of ALTER SOURCE ... ADD SUBSOURCE.
ADDED: dict[
    str,
    Callable[[Source, ast.AddSubsources, DescribeContext], tuple[tuple[DescribedTable, ...], Offsets]],
] = {
    POSTGRES: describe_postgres_added,
}


def describe(statement: ast.CreateSource, context: DescribeContext) -> Described:
    """The description of the new source. May contact the upstream, so it may block. Raises if the statement
    or the upstream is unusable."""
    upstream = statement.upstream
    try:
        return UPSTREAMS[type(upstream)](statement, upstream, context)
    except TidemillError as e:
        e.position = e.position or upstream.offset + 1
        raise
