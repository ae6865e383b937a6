"""What a sink can be made INTO: the syntax of each kind of target.

A kind is one file here, with the dataclass of its clause, its parser and its text (`to_sql`), and a line in
`SINK_TARGETS`. CONTRIBUTING.md has the recipe for the whole of a sink.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.errors import SyntaxError_, TidemillError, Unsupported
from tidemill.sql.ast import SinkTarget
from tidemill.sql.parser.cursor import Cursor
from tidemill.sql.parser.named_options import spelled
from tidemill.sql.parser.sink_targets.files import IntoFiles, parse_into_files
from tidemill.sql.parser.sink_targets.kafka import IntoKafka, parse_into_kafka
from tidemill.sql.tokens import Kind

# The words after INTO, who reads what follows them, and how it is written, for hints.
SINK_TARGETS: dict[tuple[str, ...], tuple[Callable[[Cursor, int], SinkTarget], str]] = {
    ("kafka",): (parse_into_kafka, IntoKafka.WRITTEN),
    ("files",): (parse_into_files, IntoFiles.WRITTEN),
}
# Kinds that later work brings.
_NOT_YET = (("s3",), ("iceberg",), ("postgres",), ("kinesis",))


def sink_target(cursor: Cursor) -> SinkTarget:
    """After INTO."""
    offset = cursor.offset
    for words, (parser, _) in SINK_TARGETS.items():
        if cursor.accept(*words):
            return parser(cursor, offset)
    raise _refused(cursor)


def _refused(cursor: Cursor) -> TidemillError:
    position = cursor.offset + 1
    hint = f"A sink can be made {' or '.join(f'INTO {written}' for _, written in SINK_TARGETS.values())}."
    for words in _NOT_YET:
        if cursor.peek_words(*words):
            return Unsupported(
                f"CREATE SINK ... INTO {spelled(words)} is not supported yet", hint=hint, position=position
            )
    if cursor.token.kind is not Kind.WORD:
        return cursor.error()
    return SyntaxError_(f"unknown kind of sink: {cursor.token.value.upper()}", hint=hint, position=position)
