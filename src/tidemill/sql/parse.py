"""SQL text to statements: the parser's entry point for the engine.

`parse(text)` scans the text, splits it at semicolons and passes each statement to `parser.dispatch`. It
either returns or raises a `TidemillError` with a position in `text` (42601 syntax, 42622 names, 0A000 not
supported, 22xxx values, 54xxx limits). It raises no other exception, and takes time linear in the text. It
parses all statements before it returns any, so a text with an error runs no statement.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidemill.errors import LimitExceeded, SyntaxError_
from tidemill.sql.ast import Statement
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.depth import check_nesting
from tidemill.sql.parser.dispatch import statement
from tidemill.sql.tokens import TokenKind, scan

# The limit of one Query or Parse message. Parsing 2 MB takes some seconds of one core; use COPY for bulk
# data.
MAX_TEXT_BYTES = 2 * 1024 * 1024
# Per text: each costs objects and, when run, a transaction step. psql sends the statements of a dump one by
# one.
MAX_STATEMENTS = 10_000


@dataclass(frozen=True, slots=True)
class ParsedStatement:
    """One statement of a text."""

    statement: Statement
    text: str  # its own slice, without the semicolon and the comments around it
    # its start in the parsed text; offsets inside the statement also count from the start of the text
    offset: int


def parse(text: str) -> list[ParsedStatement]:
    """The statements of `text`; empty ones are dropped."""
    check_size(text)
    try:
        return _parse(text)
    except SyntaxError_ as e:
        raise hushed(e, text) from None


# Statements that contain a password or a secret. An error in one of these must not quote the text: clients
# log error messages, and an undoubled quote turns half a password into an identifier.
_KEEPS_SECRETS = re.compile(r"\b(?:create|alter)\s+(?:secret|role|user|group)\b", re.IGNORECASE)
_QUOTE = re.compile("['\"$]")


def hushed(error: SyntaxError_, text: str) -> SyntaxError_:
    """The error, without the quoted text if that may be a secret. The position still points at it."""
    before = text[: error.position or 0]
    primary, near, _ = error.primary.partition(" at or near ")
    if not near or _QUOTE.search(before) is None or _KEEPS_SECRETS.search(before) is None:
        return error
    return SyntaxError_(
        primary,
        detail="The text at the position is not shown: it may be a password or a secret.",
        hint=error.hint,
        position=error.position,
        sqlstate=error.sqlstate,
    )


def _parse(text: str) -> list[ParsedStatement]:
    tokens = scan(text)
    found: list[ParsedStatement] = []
    start = 0
    for at, token in enumerate(tokens):
        if token.kind is not TokenKind.END and not (token.kind is TokenKind.SYMBOL and token.value == ";"):
            continue
        if at > start:
            if len(found) == MAX_STATEMENTS:
                raise LimitExceeded(
                    f"too many statements in one query string (limit {MAX_STATEMENTS})",
                    hint="Send them in several messages.",
                    position=tokens[start].start + 1,
                )
            check_nesting(tokens[start:at])
            parsed = statement(TokenCursor(text, tokens, start, at))
            begin = tokens[start].start
            found.append(ParsedStatement(parsed, text[begin : tokens[at - 1].end], begin))
        start = at + 1
    return found


def check_size(text: str) -> None:
    """Raise if `text` has more bytes than `MAX_TEXT_BYTES`."""
    # A character takes at most four bytes: only texts near the limit are encoded to be measured.
    if len(text) * 4 > MAX_TEXT_BYTES and len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise LimitExceeded(
            f"query string is too long (limit {MAX_TEXT_BYTES} bytes)",
            hint="Use COPY ... FROM STDIN to load data.",
        )
