"""FROM S3: the objects of a bucket, through a connection."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemill.sql.ast.base import Name, offset_field
from tidemill.sql.ast.sources import Upstream
from tidemill.sql.names import quote_literal
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.upstreams.files import chosen_sql, compression, matching

_WRITE = "Write FROM S3 CONNECTION name (DISCOVER OBJECTS MATCHING '**/*.csv' USING BUCKET SCAN 'bucket')."


@dataclass(frozen=True, slots=True)
class S3(Upstream):
    """FROM S3 CONNECTION c (DISCOVER OBJECTS [MATCHING 'glob'] USING BUCKET SCAN 'b'
    [, SQS NOTIFICATIONS 'q']) [COMPRESSION c]."""

    connection: Name
    bucket: str
    matching: str | None = None
    compression: str | None = None  # upper case
    queue: str | None = None
    offset: int = offset_field()

    def to_sql(self) -> str:
        found = f"DISCOVER OBJECTS{chosen_sql(self.matching, None)}"
        queue = "" if self.queue is None else f", SQS NOTIFICATIONS {quote_literal(self.queue)}"
        scan = f"({found} USING BUCKET SCAN {quote_literal(self.bucket)}{queue})"
        return f"S3 CONNECTION {self.connection} {scan}{chosen_sql(None, self.compression)}"

    def through(self, connection: Name) -> S3:
        return replace(self, connection=connection)


def parse_s3(cursor: TokenCursor) -> S3:
    """After S3."""
    offset = cursor.offset
    cursor.expect("connection", hint=_WRITE)
    connection = cursor.name()
    cursor.expect_symbol("(", _WRITE)
    cursor.expect("discover", "objects", hint=_WRITE)
    glob = matching(cursor)
    cursor.expect("using", hint=_WRITE)
    bucket = queue = None
    while True:
        if cursor.peek_words("sqs", "notifications") and queue is None:
            cursor.expect("sqs", "notifications")
            queue = cursor.string(_WRITE)
        else:
            if bucket is not None and cursor.peek_words("bucket", "scan"):
                raise cursor.unsupported("more than one BUCKET SCAN", hint="Create a source for each bucket.")
            cursor.expect("bucket", "scan", hint=_WRITE)
            bucket = cursor.string(_WRITE)
        if not cursor.accept_symbol(","):
            break
    if bucket is None:
        raise cursor.unsupported(
            "SQS NOTIFICATIONS without BUCKET SCAN",
            hint="Notifications can be lost: write USING BUCKET SCAN 'bucket', SQS NOTIFICATIONS 'queue'.",
        )
    cursor.expect_symbol(")", _WRITE)
    return S3(connection, bucket, glob, compression(cursor), queue, offset)
