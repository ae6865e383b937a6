"""The INTO clause of a sink: the syntax of each kind of target.

A kind is one file here, with the dataclass of its clause, its parser and its text (`to_sql`), and a line in
`SINK_TARGETS`. CONTRIBUTING.md has the complete recipe for a sink.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.sql.ast import SinkTarget
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import refuse_kind
from tidemill.sql.parser.sink_targets.files import IntoFiles, parse_into_files
from tidemill.sql.parser.sink_targets.kafka import IntoKafka, parse_into_kafka

# The words after INTO, the parser of the rest, and the syntax for hints.
SINK_TARGETS: dict[tuple[str, ...], tuple[Callable[[TokenCursor, int], SinkTarget], str]] = {
    ("kafka",): (parse_into_kafka, IntoKafka.WRITTEN),
    ("files",): (parse_into_files, IntoFiles.WRITTEN),
}
# Planned kinds.
_NOT_YET = (("s3",), ("iceberg",), ("postgres",), ("kinesis",))


def sink_target(cursor: TokenCursor) -> SinkTarget:
    """After INTO."""
    offset = cursor.offset
    for words, (parser, _) in SINK_TARGETS.items():
        if cursor.accept(*words):
            return parser(cursor, offset)
    hint = f"A sink can be made {' or '.join(f'INTO {written}' for _, written in SINK_TARGETS.values())}."
    raise refuse_kind(cursor, "kind of sink", "CREATE SINK ... INTO", hint, _NOT_YET)
