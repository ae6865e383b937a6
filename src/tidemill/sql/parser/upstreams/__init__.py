"""The FROM clause of a source: the syntax of each kind of upstream.

A kind is one file here, with the dataclass of its clause, its parser and its text (`to_sql`), and a line in
`UPSTREAMS`. CONTRIBUTING.md has the complete recipe for a source.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.sql.ast import Upstream
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import refuse_kind, spelled
from tidemill.sql.parser.upstreams.files import parse_files
from tidemill.sql.parser.upstreams.kafka import parse_kafka
from tidemill.sql.parser.upstreams.kinesis import parse_kinesis
from tidemill.sql.parser.upstreams.load_generator import parse_load_generator
from tidemill.sql.parser.upstreams.postgres import parse_postgres
from tidemill.sql.parser.upstreams.pubnub import parse_pubnub
from tidemill.sql.parser.upstreams.s3 import parse_s3

# The words after FROM, and the parser of the rest.
UPSTREAMS: dict[tuple[str, ...], Callable[[TokenCursor], Upstream]] = {
    ("load", "generator"): parse_load_generator,
    ("kafka",): parse_kafka,
    ("files",): parse_files,
    ("postgres",): parse_postgres,
    ("s3",): parse_s3,
    ("kinesis",): parse_kinesis,
    ("pubnub",): parse_pubnub,
}
# Planned kinds.
_NOT_YET = (
    ("mysql",),
    ("sql", "server"),
    ("file",),
    ("webhook",),
    ("cdc",),
)


def upstream(cursor: TokenCursor) -> Upstream:
    """After FROM."""
    for words, parser in UPSTREAMS.items():
        if cursor.accept(*words):
            return parser(cursor)
    names = [spelled(words) for words in UPSTREAMS]
    hint = f"A source can be made FROM {', '.join(names[:-1])} or {names[-1]}."
    raise refuse_kind(cursor, "kind of source", "CREATE SOURCE ... FROM", hint, _NOT_YET)
