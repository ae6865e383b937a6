"""Functions of text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

from tidemill.errors import InvalidValue, LimitExceeded
from tidemill.sql.names import quote_ident
from tidemill.sql.regex.nodes import CLASSES

# The largest value: PostgreSQL's limit (1 GB, with its message).
MAX_LENGTH = 1 << 28

_alnum = CLASSES["alnum"]


def initcap(text: str) -> str:
    """The first letter of each run of letters and digits in upper case, the others in lower."""
    out: list[str] = []
    within = False
    for ch in text:
        changed = ch.lower() if within else ch.upper()
        out.append(changed if len(changed) == 1 else ch)
        within = _alnum(ch)
    return "".join(out)


def overlay(text: str, new: str, start: int, length: int | None = None) -> str:
    count = len(new) if length is None else length
    if start < 1:
        raise InvalidValue("negative substring length not allowed", sqlstate="22011")
    if not -(1 << 31) <= start + count < 1 << 31:
        raise InvalidValue("integer out of range", sqlstate="22003")
    end = max(start - 1 + count, 0)
    return text[: start - 1] + new + text[end:]


def quote_literal(text: str) -> str:
    quoted = "'" + text.replace("'", "''").replace("\\", "\\\\") + "'"
    return f"E{quoted}" if "\\" in text else quoted


def quote_nullable(text: str | None) -> str:
    return "NULL" if text is None else quote_literal(text)


def quote_identifier(text: str) -> str:
    return quote_ident(text)


def to_base(value: int, base: int, bits: int) -> str:
    """The two's complement of an integer."""
    number = value & ((1 << bits) - 1)
    return format(number, {2: "b", 8: "o", 16: "x"}[base])


_Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
_FORMS: dict[str, _Form] = {"nfc": "NFC", "nfd": "NFD", "nfkc": "NFKC", "nfkd": "NFKD"}


def _form(name: str) -> _Form:
    if name.lower() not in _FORMS:
        raise InvalidValue(f"invalid normalization form: {name}", sqlstate="22023")
    return _FORMS[name.lower()]


def normalize(text: str, form: str = "NFC") -> str:
    return unicodedata.normalize(_form(form), text)


_UNICODE = re.compile(
    r"\\(?:([0-9A-Fa-f]{4})|\+([0-9A-Fa-f]{6})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(\\)|(.)|($))"
)


def unistr(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        if found[5]:
            return "\\"
        digits = next((g for g in found.groups()[:4] if g), None)
        if digits is None:
            raise InvalidValue("invalid Unicode escape", sqlstate="42601")
        code = int(digits, 16)
        if not 0 < code <= 0x10FFFF:
            raise InvalidValue(f"invalid Unicode code point: {code:04X}", sqlstate="22023")
        return chr(code)

    joined = _UNICODE.sub(one, text).encode("utf-16", "surrogatepass")
    try:
        return joined.decode("utf-16")
    except UnicodeDecodeError:
        raise InvalidValue("invalid Unicode surrogate pair", sqlstate="42601") from None


# --- format()

_SPEC = re.compile(r"%(?:(\d+)\$)?(-*)(?:(\d+)|\*(?:(\d+)\$)?)?(.)?", re.DOTALL)
_STAR = re.compile(r"%(?:\d+\$)?-*\*")


def format_text(template: str, values: Sequence[str | None]) -> str:
    """format(). The values are already texts; NULL is None."""
    out: list[str] = []
    at, used = 0, 0

    def value(number: int) -> str | None:
        if number == 0:
            raise InvalidValue(
                "format specifies argument 0, but arguments are numbered from 1", sqlstate="22023"
            )
        if number > len(values):
            raise InvalidValue("too few arguments for format()", sqlstate="22023")
        return values[number - 1]

    while (start := template.find("%", at)) >= 0:
        out.append(template[at:start])
        if template.startswith("%%", start):
            out.append("%")
            at = start + 2
            continue
        found = _SPEC.match(template, start)
        if found is None or not found[5]:
            raise InvalidValue(
                "unterminated format() type specifier",
                hint='For a single "%" use "%%".',
                sqlstate="22023",
            )
        width = int(found[3]) if found[3] else 0
        left = bool(found[2])
        if _STAR.match(template, start):
            used = int(found[4]) if found[4] else used + 1
            given = value(used)
            width = int(given) if given is not None else 0
            left, width = left or width < 0, abs(width)
        kind = found[5]
        if kind not in "sIL":
            raise InvalidValue(
                f'unrecognized format() type specifier "{kind}"',
                hint='For a single "%" use "%%".',
                sqlstate="22023",
            )
        used = int(found[1]) if found[1] else used + 1
        text = _shown(kind, value(used))
        if width > MAX_LENGTH:
            raise LimitExceeded("requested length too large", sqlstate="54000")
        out.append(text.ljust(width) if left else text.rjust(width))
        at = found.end()
    out.append(template[at:])
    return "".join(out)


def _shown(kind: str, value: str | None) -> str:
    if kind == "s":
        return value or ""
    if kind == "L":
        return quote_nullable(value)
    if value is None:
        raise InvalidValue("null values cannot be formatted as an SQL identifier", sqlstate="22004")
    return quote_identifier(value)


def character(code: int) -> str:
    """chr()."""
    if code < 0:
        raise InvalidValue("character number must be positive", sqlstate="22023")
    if code == 0:
        raise LimitExceeded("null character not permitted", sqlstate="54000")
    if code > 0x10FFFF:
        raise LimitExceeded(f"requested character too large for encoding: {code}", sqlstate="54000")
    if 0xD800 <= code <= 0xDFFF:
        raise LimitExceeded(f"requested character not valid for encoding: {code}", sqlstate="54000")
    return chr(code)


_NAME = re.compile(r"[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*")
_FOLDED = {ord(c): c.lower() for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


def parse_ident(text: str, strict: bool = True) -> list[str]:
    """The parts of a qualified name."""
    parts: list[str] = []
    at = _blanks(text, 0)
    while True:
        part, at = _identifier(text, at)
        parts.append(part)
        at = _blanks(text, at)
        if text[at : at + 1] != ".":
            break
        at = _blanks(text, at + 1)
    if at < len(text) and strict:
        raise InvalidValue(f'string is not a valid identifier: "{text}"', sqlstate="22023")
    return parts


def _blanks(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in " \t\n\r\f\v":
        at += 1
    return at


def _identifier(text: str, at: int) -> tuple[str, int]:
    if text[at : at + 1] == '"':
        end = at + 1
        while True:
            end = text.find('"', end)
            if end < 0:
                raise InvalidValue(
                    f'string is not a valid identifier: "{text}"',
                    detail="String has unclosed double quotes.",
                    sqlstate="22023",
                )
            if text[end + 1 : end + 2] != '"':
                break
            end += 2
        name = text[at + 1 : end].replace('""', '"')
        if name:
            return name, end + 1
    found = _NAME.match(text, at)
    if found is None:
        raise InvalidValue(f'string is not a valid identifier: "{text}"', sqlstate="22023")
    # Only ASCII is folded, as with any name.
    return found[0].translate(_FOLDED), found.end()
