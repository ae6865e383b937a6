"""What a source can be made FROM: the syntax of each kind of upstream.

A kind is one file here, with the dataclass of its clause, its parser and its text (`to_sql`), and a line in
`UPSTREAMS`. CONTRIBUTING.md has the recipe for the whole of a source.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.errors import SyntaxError_, TidemillError, Unsupported
from tidemill.sql.ast import Upstream
from tidemill.sql.parser.cursor import Cursor
from tidemill.sql.parser.upstreams.files import parse_files
from tidemill.sql.parser.upstreams.kafka import parse_kafka
from tidemill.sql.parser.upstreams.load_generator import parse_load_generator
from tidemill.sql.tokens import Kind

# The words after FROM, and who reads what follows them.
UPSTREAMS: dict[tuple[str, ...], Callable[[Cursor], Upstream]] = {
    ("load", "generator"): parse_load_generator,
    ("kafka",): parse_kafka,
    ("files",): parse_files,
}
# Kinds that later work brings.
_NOT_YET = (
    ("postgres",),
    ("mysql",),
    ("sql", "server"),
    ("kinesis",),
    ("pubnub",),
    ("s3",),
    ("file",),
    ("webhook",),
    ("cdc",),
)


def upstream(cursor: Cursor) -> Upstream:
    """After FROM."""
    for words, parser in UPSTREAMS.items():
        if cursor.accept(*words):
            return parser(cursor)
    raise _refused(cursor)


def _refused(cursor: Cursor) -> TidemillError:
    names = [" ".join(words).upper() for words in UPSTREAMS]
    known = f"{', '.join(names[:-1])} or {names[-1]}"
    hint = f"A source can be made FROM {known}."
    for words in _NOT_YET:
        if cursor.peek_words(*words):
            return Unsupported(
                f"CREATE SOURCE ... FROM {' '.join(words).upper()} is not supported yet",
                hint=hint,
                position=cursor.offset + 1,
            )
    if cursor.token.kind is not Kind.WORD:
        return cursor.error(hint)
    return SyntaxError_(
        f"unknown kind of source: {cursor.token.value.upper()}", hint=hint, position=cursor.offset + 1
    )
