"""The extent of a type name in tokens: PostgreSQL's spellings and Tidemill's own.

`TokenCursor.type_text` uses it for column definitions (the text then goes to `tidemill.types.parse_type`),
and `sqlglot_tokens` for casts and typed literals inside query bodies. It finds the extent only; it does not
check whether the type exists.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.sql.names import RESERVED, words
from tidemill.sql.tokens import Token, TokenKind

# Words that name a type when a string follows (`date '2020-01-01'`), or in a cast. `interval` is among them.
TYPE_WORDS = words(
    """
    bool boolean smallint int2 integer int int4 bigint int8 uint2 uint4 uint8 dec decimal numeric real
    float float4 float8 double json jsonb char character varchar bpchar text bytea time timetz timestamp
    timestamptz date interval uuid name oid bit mz_timestamp regclass regtype regproc regnamespace
    regrole list map
    """
)
INTERVAL_FIELDS = frozenset({"year", "month", "day", "hour", "minute", "second"})

_SECOND_WORD = {
    "double": ("precision",),
    "character": ("varying",),
    "char": ("varying",),
    "bit": ("varying",),
    "national": ("character", "char"),
}


def _is(tokens: Sequence[Token], at: int, value: str) -> bool:
    return tokens[at].key == value


def type_end(tokens: Sequence[Token], at: int) -> int | None:
    """The index after the type name that starts at `at`, or None if none starts there. `tokens` ends with
    END."""
    first = tokens[at]
    if first.kind is TokenKind.QUOTED:
        return _suffixes(tokens, _modifier(tokens, _dotted(tokens, at + 1)))
    if first.kind is not TokenKind.WORD or first.value in RESERVED:
        return None
    word = first.value
    at += 1
    if word == "map" and _is(tokens, at, "["):
        return _map_end(tokens, at + 1)
    if word in _SECOND_WORD and tokens[at].key in _SECOND_WORD[word]:
        at += 1
        if word == "national" and _is(tokens, at, "varying"):
            at += 1
    elif word in ("time", "timestamp"):
        at = _modifier(tokens, at)
        if (_is(tokens, at, "with") or _is(tokens, at, "without")) and _is(tokens, at + 1, "time"):
            at += 3 if _is(tokens, at + 2, "zone") else 0
        return _suffixes(tokens, at)
    else:
        at = _dotted(tokens, at)
    return _suffixes(tokens, _modifier(tokens, at))


def _dotted(tokens: Sequence[Token], at: int) -> int:
    while _is(tokens, at, ".") and tokens[at + 1].kind in (TokenKind.WORD, TokenKind.QUOTED):
        at += 2
    return at


def _modifier(tokens: Sequence[Token], at: int) -> int:
    """After `(n)` or `(p, s)`; `at` itself when there is none."""
    if not _is(tokens, at, "("):
        return at
    end = at + 1
    while True:
        end += tokens[end].key in ("-", "+")
        if tokens[end].kind is not TokenKind.NUMBER:
            return at
        end += 1
        if _is(tokens, end, ")"):
            return end + 1
        if not _is(tokens, end, ","):
            return at
        end += 1


def _suffixes(tokens: Sequence[Token], at: int) -> int:
    """After any number of `[]`, `[n]`, `ARRAY`, `ARRAY[n]` and `LIST`."""
    while True:
        start = at
        if _is(tokens, at, "array"):
            at += 1
        if _is(tokens, at, "["):
            close = at + 1 + (tokens[at + 1].kind is TokenKind.NUMBER)
            if not _is(tokens, close, "]"):
                return start
            at = close + 1
        elif at == start and tokens[at].key == "list":
            at += 1
        if at == start:
            return at


def _map_end(tokens: Sequence[Token], at: int) -> int | None:
    key = type_end(tokens, at)
    if key is None or not _is(tokens, key, "=>"):
        return None
    value = type_end(tokens, key + 1)
    if value is None or not _is(tokens, value, "]"):
        return None
    return _suffixes(tokens, value + 1)
