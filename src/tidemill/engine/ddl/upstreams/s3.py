"""FROM S3: makes the definition of a source over a bucket from the statement."""

from __future__ import annotations

import json
from typing import Any

from tidemill.catalog import connections
from tidemill.catalog.items import Connection, Source
from tidemill.engine.ddl.upstreams.connection_check import asking
from tidemill.engine.ddl.upstreams.described import DescribeContext, Described
from tidemill.engine.ddl.upstreams.messages import DescribedOutput
from tidemill.engine.ddl.upstreams.objects import (
    FirstObject,
    check_chosen,
    describe_object_output,
    expect_reference,
)
from tidemill.errors import InvalidValue, Unsupported
from tidemill.sources.aws_role import frozen
from tidemill.sources.contract import OutputDefinition
from tidemill.sources.definition import S3 as KIND
from tidemill.sources.objects.bucket import BucketStore
from tidemill.sources.objects.bucket_source import listing_of
from tidemill.sources.objects.layout import GAUGE
from tidemill.sources.objects.notifications import NotificationQueue
from tidemill.sql import ast
from tidemill.sql.parser.upstreams.s3 import S3

# How long CREATE SOURCE looks for a first object.
_LOOK_SECONDS = 10.0


def describe_s3(statement: ast.CreateSource, s3: S3, context: DescribeContext) -> Described:
    if statement.tables is not None:
        raise Unsupported("FOR TABLES is not possible: a bucket has no tables")
    if not s3.bucket or "/" in s3.bucket:
        raise InvalidValue(
            f'"{s3.bucket}" is no name of a bucket',
            hint="A folder in the bucket belongs into MATCHING 'folder/**'.",
            sqlstate="22023",
        )
    connection = context.find(s3.connection, connections.AWS)
    chosen = check_chosen(s3.matching, s3.compression)
    store = BucketStore(s3.bucket, frozen(context.reached(connection)))
    if statement.validate:
        asking(lambda: _first(store, s3.matching, seconds=0.0))
        if s3.queue is not None:
            asking(NotificationQueue(s3.queue, s3.bucket, dict(store.options)).check)
    specs: list[dict[str, Any]] = []
    outputs: list[OutputDefinition] = []
    if not statement.messages.silent:
        first = _first_object(store, chosen)
        spec, output = describe_object_output(s3.bucket, statement.messages, context, first)
        specs, outputs = [spec], [output]
    definition = {
        "kind": KIND,
        "connection": connection.id,
        "bucket": s3.bucket,
        **chosen,
        **({} if s3.queue is None else {"queue": s3.queue}),
        "outputs": specs,
        "started": context.started,
    }
    envelope = specs[0]["envelope"]["kind"] if specs else None
    label = f'bucket "{s3.bucket}"'
    return Described(KIND, label, definition, GAUGE, tuple(outputs), envelope, (connection.id,))


def describe_s3_table(
    source: Source, statement: ast.CreateTableFromSource, context: DescribeContext
) -> DescribedOutput:
    """The output that a table adds to its source."""
    definition: dict[str, Any] = json.loads(source.definition)
    bucket = str(definition["bucket"])
    expect_reference(source, statement, bucket)
    connection = context.catalog.get(definition["connection"], Connection)
    store = BucketStore(bucket, frozen(context.reached(connection)))
    spec, output = describe_object_output(
        bucket, statement.messages, context, _first_object(store, definition)
    )
    return DescribedOutput(spec, output, ())


def _first(store: BucketStore, matching: str | None, seconds: float) -> str | None:
    """The name of an object of the source that is not empty."""
    listing = listing_of(store, matching)
    while True:
        listing.advance(seconds)
        name = min((key for key, stat in listing.found.items() if stat.size), default=None)
        if name is not None or listing.complete or not seconds:
            return name


def _first_object(store: BucketStore, chosen: dict[str, Any]) -> FirstObject:
    def find() -> str | None:
        return asking(lambda: _first(store, chosen["matching"], _LOOK_SECONDS), avoidable=False)

    return FirstObject(store, chosen["compression"], find)
