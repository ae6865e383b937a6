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
    """FROM S3 CONNECTION c (DISCOVER OBJECTS [MATCHING 'glob'] USING BUCKET SCAN 'b') [COMPRESSION c]."""

    connection: Name
    bucket: str
    matching: str | None = None
    compression: str | None = None  # upper case
    offset: int = offset_field()

    def to_sql(self) -> str:
        found = f"DISCOVER OBJECTS{chosen_sql(self.matching, None)}"
        scan = f"({found} USING BUCKET SCAN {quote_literal(self.bucket)})"
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
    _refuse_queue(cursor)
    cursor.expect("bucket", "scan", hint=_WRITE)
    bucket = cursor.string(_WRITE)
    if cursor.accept_symbol(","):
        _refuse_queue(cursor)
        if cursor.peek_words("bucket", "scan"):
            raise cursor.unsupported("more than one BUCKET SCAN", hint="Create a source for each bucket.")
        raise cursor.error(_WRITE)
    cursor.expect_symbol(")", _WRITE)
    return S3(connection, bucket, glob, compression(cursor), offset)


def _refuse_queue(cursor: TokenCursor) -> None:
    if cursor.peek_words("sqs", "notifications"):
        raise cursor.unsupported(
            "SQS NOTIFICATIONS", hint="Leave them out: BUCKET SCAN finds new objects by itself."
        )
