"""The escapes of E'...' and U&'...' literals, decoded as in PostgreSQL.

Called by the scanner with the text between the quotes. Raises `InvalidValue` with PostgreSQL's message. The
result never holds NUL or a lone surrogate.
"""

from __future__ import annotations

import re

from tidemill.errors import InvalidValue, SyntaxError_

_SIMPLE = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_BACKSLASH = re.compile(
    r"''|\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_HEX = re.compile(r"[0-9a-fA-F]+")
MAX_CODE_POINT = 0x10FFFF


def _bad_escape(hint: str) -> InvalidValue:
    return InvalidValue("invalid Unicode escape", hint=hint, sqlstate="22025")


def decode_backslash(body: str) -> str:
    """The value of E'`body`'."""
    if "\\" not in body:
        return body.replace("''", "'")
    out = bytearray()  # UTF-8: \x and octal escapes write bytes, which must form characters in the end
    high = 0  # a high surrogate without its low surrogate so far
    at = 0
    for found in _BACKSLASH.finditer(body):
        if found.start() > at:
            _refuse_half(high)
            out += body[at : found.start()].encode()
        at = found.end()
        octal, hexa, four, eight, other = found.groups()
        if four or eight:
            if other := _surrogates(high, int(four or eight, 16)):
                out += other.encode()
                high = 0
            else:
                high = int(four or eight, 16)
            continue
        _refuse_half(high)
        if octal:
            out.append(int(octal, 8) & 0xFF)
        elif hexa:
            out.append(int(hexa, 16))
        elif other is None:
            out += b"'"
        elif other in "uU":
            raise _bad_escape("Unicode escapes must be \\uXXXX or \\UXXXXXXXX.")
        else:
            out += _SIMPLE.get(other, other).encode()
    _refuse_half(high)
    out += body[at:].encode()
    try:
        value = out.decode()
    except UnicodeDecodeError as error:
        shown = " ".join(f"0x{b:02x}" for b in out[error.start : error.end])
        raise InvalidValue(f'invalid byte sequence for encoding "UTF8": {shown}', sqlstate="22021") from None
    if "\x00" in value:
        raise InvalidValue('invalid byte sequence for encoding "UTF8": 0x00', sqlstate="22021")
    return value


def decode_unicode(body: str, escape: str) -> str:
    """The value of U&'`body`' UESCAPE '`escape`'."""
    if escape in "+'\"" or escape.isspace() or _HEX.match(escape):
        raise SyntaxError_("invalid Unicode escape character")
    out: list[str] = []
    high = 0
    at = 0
    while at < len(body):
        if body[at] != escape:
            _refuse_half(high)
            end = body.find(escape, at)
            end = len(body) if end < 0 else end
            out.append(body[at:end])
            at = end
            continue
        if body[at + 1 : at + 2] == escape:
            _refuse_half(high)
            out.append(escape)
            at += 2
            continue
        size, start = (6, at + 2) if body[at + 1 : at + 2] == "+" else (4, at + 1)
        digits = body[start : start + size]
        if len(digits) != size or not _HEX.fullmatch(digits):
            raise _bad_escape("Unicode escapes must be \\XXXX or \\+XXXXXX.")
        at = start + size
        code = int(digits, 16)
        if char := _surrogates(high, code):
            out.append(char)
            high = 0
        else:
            high = code
    _refuse_half(high)
    return "".join(out)


def _surrogates(high: int, code: int) -> str:
    """The character of `code`, or of the pair (high, code); empty when `code` is a high surrogate."""
    if not 0 < code <= MAX_CODE_POINT:
        raise InvalidValue("invalid Unicode escape value", sqlstate="22025")
    if high:
        if not 0xDC00 <= code <= 0xDFFF:
            _refuse_half(high)
        return chr(0x10000 + ((high - 0xD800) << 10) + (code - 0xDC00))
    if 0xDC00 <= code <= 0xDFFF:
        raise InvalidValue("invalid Unicode surrogate pair", sqlstate="22025")
    return "" if 0xD800 <= code <= 0xDBFF else chr(code)


def _refuse_half(high: int) -> None:
    if high:
        raise InvalidValue("invalid Unicode surrogate pair", sqlstate="22025")
