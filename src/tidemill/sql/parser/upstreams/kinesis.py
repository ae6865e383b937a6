"""FROM KINESIS: a stream of Kinesis, through a connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tidemill.errors import SyntaxError_
from tidemill.sql.ast.base import Name, offset_field
from tidemill.sql.ast.sources import Upstream
from tidemill.sql.names import quote_literal
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.named_options import accept_option, refuse_twice, spelled

_WRITE = "Write FROM KINESIS CONNECTION name (STREAM '...')."
_WRITE_START = "Write START TRIM_HORIZON, START LATEST or START TIMESTAMP n."

TRIM_HORIZON, LATEST = "TRIM_HORIZON", "LATEST"


@dataclass(frozen=True, slots=True)
class Kinesis(Upstream):
    """FROM KINESIS CONNECTION c (STREAM 's' [, START TRIM_HORIZON | LATEST | TIMESTAMP n])."""

    connection: Name
    stream: str
    # A word, or milliseconds, before now where they are negative.
    start: str | int = TRIM_HORIZON
    offset: int = offset_field()

    def to_sql(self) -> str:
        start = self.start if isinstance(self.start, str) else f"TIMESTAMP {self.start}"
        said = "" if self.start == TRIM_HORIZON else f", START {start}"
        return f"KINESIS CONNECTION {self.connection} (STREAM {quote_literal(self.stream)}{said})"

    def through(self, connection: Name) -> Kinesis:
        return replace(self, connection=connection)


def parse_kinesis(cursor: TokenCursor) -> Kinesis:
    """After KINESIS."""
    offset = cursor.offset
    cursor.expect("connection", hint=_WRITE)
    connection = cursor.name()
    cursor.expect_symbol("(", _WRITE)
    names: list[str] = []
    stream: str | None = None
    start: str | int = TRIM_HORIZON
    while True:
        at = cursor.offset
        words, value = accept_option(cursor, _READERS, "a Kinesis source")
        refuse_twice(spelled(words), names, at)
        if words == ("stream",):
            stream = str(value)
        else:
            start = value
        if cursor.accept_symbol(")"):
            break
        cursor.expect_symbol(",", "Between options stands a comma, and behind the last a parenthesis.")
    if stream is None:
        raise SyntaxError_("a Kinesis source needs the option STREAM", hint=_WRITE, position=offset + 1)
    return Kinesis(connection, stream, start, offset)


def _start(cursor: TokenCursor) -> str | int:
    for word in (TRIM_HORIZON, LATEST):
        if cursor.accept(word.lower()):
            return word
    cursor.expect("timestamp", hint=_WRITE_START)
    sign = -1 if cursor.accept_symbol("-") else 1
    return sign * cursor.integer(
        "Write START TIMESTAMP n: milliseconds since 1970, or a negative number of them before now."
    )


_READERS: dict[tuple[str, ...], Callable[[TokenCursor], str | int]] = {
    ("stream",): lambda cursor: cursor.string("Write STREAM '...'."),
    ("start",): _start,
}
