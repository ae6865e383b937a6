"""Text to tokens, by PostgreSQL's lexical rules.

`parse` calls `scan` once for the whole text. The statement parsers read the tokens through a `TokenCursor`,
and `parser.sqlglot_tokens` converts those of a query body to sqlglot's tokens. This module does its own
scanning and uses only sqlglot's tables of token types. sqlglot's tokenizer reads `1_000` as `1 AS _000`,
`0x1F` as a bit string and `U&"x"` as `U & "x"`. It treats NUL and no-break spaces as blanks. It swallows
everything after EXPLAIN, SHOW, FETCH, DECLARE or RESET as one string.

Every character of the text belongs to exactly one token, blank or comment; otherwise `scan` raises a
`TidemillError` with a position. It takes time linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from tidemill.errors import InvalidValue, LimitExceeded, SyntaxError_, TidemillError
from tidemill.sql.names import check_length, fold
from tidemill.sql.parser.escapes import decode_backslash, decode_unicode


class TokenKind(Enum):
    """The kind of a token."""

    WORD = "word"  # key word or unquoted identifier; the value is folded
    QUOTED = "quoted"  # "identifier" or U&"identifier"; the value is what it names
    STRING = "string"  # any string literal; the value is what it denotes
    BITS = "bits"  # B'01' or X'1f'; the value keeps the prefix in lower case: b01, x1f
    NUMBER = "number"  # without underscores; hexadecimal, octal and binary forms in decimal
    PARAM = "param"  # $1; the value is the digits
    SYMBOL = "symbol"  # operators and punctuation
    END = "end"  # after the last token of the text; the value is empty


class Token(NamedTuple):
    """One token; `start` and `end` are character offsets in the whole text (end exclusive)."""

    kind: TokenKind
    value: str
    start: int
    end: int

    @property
    def key(self) -> str:
        """The word or symbol, to compare with grammar words. Empty for literals and quoted names, which may
        hold any text.
        """
        return self.value if self.kind is TokenKind.WORD or self.kind is TokenKind.SYMBOL else ""


def closes_distinct_on(tokens: Sequence[Token], at: int) -> bool:
    """Whether the token at `at` ends DISTINCT ON (...): a select list follows it, where an operator would
    follow any other parenthesis. Linear; called only before an error.
    """
    depth = 0
    for i in range(at, 1, -1):
        key = tokens[i].key
        depth += (key == ")") - (key == "(")
        if depth <= 0:
            return key == "(" and tokens[i - 1].key == "on" and tokens[i - 2].key == "distinct"
    return False


_IDENT_START = r"A-Za-z_\x80-\U0010ffff"
_IDENT = rf"{_IDENT_START}0-9$"
_INTEGER = r"[0-9](?:_?[0-9])*+"
_LEXEME = re.compile(
    rf"""
    (?P<blank>   [ \t\r\n\f\v]++ | --[^\r\n]*+ )
  | (?P<comment> /\* )
  | (?P<string>  (?:[eEnN]|[uU]&)?' )
  | (?P<bits>    [bBxX]' )
  | (?P<quoted>  (?:[uU]&)?" )
  | (?P<word>    [{_IDENT_START}][{_IDENT}]*+ )
  | (?P<number>  0[xX](?:_?[0-9a-fA-F])++ | 0[oO](?:_?[0-7])++ | 0[bB](?:_?[01])++
               | (?: {_INTEGER} (?:\.(?!\.)(?:{_INTEGER})?)? | \.{_INTEGER} ) (?:[eE][+-]?{_INTEGER})? )
  | (?P<param>   \$[0-9]++ )
  | (?P<dollar>  \$(?:[{_IDENT_START}][{_IDENT_START}0-9]*+)?\$ )
  | (?P<punct>   ::|:=|\.\.|[()\[\],;.:] )
  | (?P<op>      [~!@\#^&|`?+\-*/%<>=]++ )
    """,
    re.VERBOSE,
)
_PLAIN_STRING = re.compile(r"'[^']*+(?:''[^']*+)*+'")
_ESCAPE_STRING = re.compile(r"'(?:[^'\\]++|\\.|'')*+'", re.DOTALL)
_QUOTED = re.compile(r'"[^"]*+(?:""[^"]*+)*+"')
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_BETWEEN_STRINGS = re.compile(r"(?:[ \t\r\n\f\v]|--[^\r\n]*)*+")
_UESCAPE = re.compile(r"(?:[ \t\r\n\f\v]|--[^\r\n]*)*+uescape(?:[ \t\r\n\f\v])*+'([^'])'", re.IGNORECASE)
_JUNK = re.compile(rf"[{_IDENT}]++")
_FORBIDDEN = re.compile("[\x00\ud800-\udfff]")


# Each becomes a token, one or two tree nodes and their bound form: some 700 bytes and 12 microseconds in
# all. 2 MB of `1,1,1` would take 1.5 GB and half a minute. Rows of an INSERT have some ten.
MAX_TOKENS = 400_000
# The length of text that an error quotes: an unterminated string can extend to the end of a 2 MB text.
_MAX_QUOTED_IN_ERROR = 200


def syntax_error(text: str, start: int, end: int, what: str = "syntax error") -> SyntaxError_:
    """PostgreSQL's text for a token that does not fit; `start` past the text is the end of input."""
    if start >= len(text):
        return SyntaxError_(f"{what} at end of input", position=len(text) + 1)
    near = text[start:end]
    if len(near) > _MAX_QUOTED_IN_ERROR:
        near = near[:_MAX_QUOTED_IN_ERROR] + "..."
    return SyntaxError_(f'{what} at or near "{near}"', position=start + 1)


def scan(text: str) -> list[Token]:
    """All tokens of `text`, the last of them `END`."""
    bad = _FORBIDDEN.search(text)
    if bad is not None:
        code = ord(bad.group())
        shown = "0x00" if not code else f"surrogate U+{code:04X}"
        raise InvalidValue(
            f'invalid byte sequence for encoding "UTF8": {shown}', sqlstate="22021", position=bad.start() + 1
        )
    tokens: list[Token] = []
    add = tokens.append
    match = _LEXEME.match
    at, size = 0, len(text)
    while at < size:
        if len(tokens) == MAX_TOKENS:
            raise LimitExceeded(
                f"query string is too complex (limit {MAX_TOKENS} words, literals and symbols)",
                hint="Send it in several statements, pass lists as array parameters, load rows with COPY.",
                position=at + 1,
            )
        found = match(text, at)
        if found is None:
            raise syntax_error(text, at, at + 1)
        group = found.lastgroup
        end = found.end()
        if group == "word":
            add(Token(TokenKind.WORD, check_length(fold(text[at:end]), at), at, end))
        elif group == "punct":
            add(Token(TokenKind.SYMBOL, text[at:end], at, end))
        elif group == "number":
            add(Token(TokenKind.NUMBER, _number(text, at, end), at, end))
        elif group == "string":
            value, end = _string(text, at, end)
            add(Token(TokenKind.STRING, value, at, end))
        elif group == "op":
            end = _operator_end(text, at, end)
            add(Token(TokenKind.SYMBOL, text[at:end], at, end))
        elif group == "quoted":
            value, end = _quoted(text, at, end)
            add(Token(TokenKind.QUOTED, check_length(value, at), at, end))
        elif group == "comment":
            end = _comment_end(text, at)
        elif group == "param":
            _refuse_junk(text, at, end, "trailing junk after parameter")
            add(Token(TokenKind.PARAM, text[at + 1 : end], at, end))
        elif group == "dollar":
            value, end = _dollar(text, at, end)
            add(Token(TokenKind.STRING, value, at, end))
        elif group == "bits":
            value, end = _bits(text, at)
            add(Token(TokenKind.BITS, value, at, end))
        at = end
    add(Token(TokenKind.END, "", size, size))
    return tokens


def _refuse_junk(text: str, at: int, end: int, what: str) -> None:
    junk = _JUNK.match(text, end)
    if junk is not None:
        raise syntax_error(text, at, junk.end(), what)


def _number(text: str, at: int, end: int) -> str:
    _refuse_junk(text, at, end, "trailing junk after numeric literal")
    digits = text[at:end].replace("_", "")
    if digits[0] == "0" and len(digits) > 1 and digits[1] in "xXoObB":
        # Bounded by the text's limit; hexadecimal to decimal is quadratic, but no integer type holds this
        # many digits.
        if len(digits) > 66:
            raise InvalidValue(
                f'value "{digits[:20]}..." is out of range for type numeric',
                sqlstate="22003",
                position=at + 1,
            )
        return str(int(digits, 0))
    return digits


def _string(text: str, at: int, quote: int) -> tuple[str, int]:
    """The value and the end of a string literal whose quote ends at `quote`, including its continuations on
    later lines.
    """
    prefix = text[at : quote - 1].lower()
    segment = _ESCAPE_STRING if prefix == "e" else _PLAIN_STRING
    parts: list[str] = []
    start = quote - 1
    while True:
        found = segment.match(text, start)
        if found is None:
            raise syntax_error(text, at, len(text), "unterminated quoted string")
        end = found.end()
        parts.append(text[start + 1 : end - 1])
        gap = _BETWEEN_STRINGS.match(text, end)
        if gap is None or text[gap.end() : gap.end() + 1] != "'" or not _has_newline(gap.group()):
            break
        start = gap.end()
    body = "".join(parts)
    try:
        if prefix == "e":
            return decode_backslash(body), end
        if prefix == "u&":
            return _unicode(text, body.replace("''", "'"), end)
    except TidemillError as error:
        error.position = at + 1
        raise
    return body.replace("''", "'") if "'" in body else body, end


def _has_newline(blank: str) -> bool:
    return "\n" in blank or "\r" in blank


def _unicode(text: str, body: str, end: int) -> tuple[str, int]:
    found = _UESCAPE.match(text, end)
    if found is None:
        return decode_unicode(body, "\\"), end
    return decode_unicode(body, found.group(1)), found.end()


def _quoted(text: str, at: int, quote: int) -> tuple[str, int]:
    found = _QUOTED.match(text, quote - 1)
    if found is None:
        raise syntax_error(text, at, len(text), "unterminated quoted identifier")
    end = found.end()
    value = text[quote : end - 1].replace('""', '"')
    if quote - 1 > at:
        try:
            value, end = _unicode(text, value, end)
        except TidemillError as error:
            error.position = at + 1
            raise
    if not value:
        raise syntax_error(text, at, end, "zero-length delimited identifier")
    return value, end


def _bits(text: str, at: int) -> tuple[str, int]:
    found = _PLAIN_STRING.match(text, at + 1)
    if found is None:
        what = (
            "unterminated bit string literal"
            if text[at] in "bB"
            else "unterminated hexadecimal string literal"
        )
        raise syntax_error(text, at, len(text), what)
    body = found.group()[1:-1]
    allowed, name = ("01", "binary") if text[at] in "bB" else ("0123456789abcdefABCDEF", "hexadecimal")
    for c in body:
        if c not in allowed:
            raise InvalidValue(f'"{c}" is not a valid {name} digit', position=at + 1)
    return text[at].lower() + body, found.end()


def _dollar(text: str, at: int, end: int) -> tuple[str, int]:
    tag = text[at:end]
    close = text.find(tag, end)
    if close < 0:
        raise syntax_error(text, at, len(text), "unterminated dollar-quoted string")
    return text[end:close], close + len(tag)


def _comment_end(text: str, at: int) -> int:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge.group() == "/*" else -1
        if not depth:
            return edge.end()
    raise syntax_error(text, at, len(text), "unterminated /* comment")


def _operator_end(text: str, at: int, end: int) -> int:
    """PostgreSQL's rules: a comment ends an operator, and a trailing + or - belongs to it only if it holds
    one of ~!@#%^&|`?."""
    name = text[at:end]
    for comment in ("--", "/*"):
        cut = name.find(comment)
        if cut > 0:
            name = name[:cut]
    if len(name) > 1 and name[-1] in "+-" and not any(c in "~!@#%^&|`?" for c in name):
        name = name.rstrip("+-") or name[0]
    return at + len(name)
