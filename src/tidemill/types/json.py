"""Canonical jsonb: equal values have equal texts.

Called by `wire` for input, by `sql` for jsonb that Spark computed, and by `identity`. The canonical text is
PostgreSQL's output for jsonb: `{"a": 1, "bb": [1, 2]}`, with keys ordered by length, then bytes; the last of
several equal keys is kept. It is stored as displayed, so output costs nothing. One listed difference:
trailing zeros of a fraction are dropped (1.0 is displayed as 1), because equal numbers need equal texts.
Numbers keep their value, however long.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

import pyarrow as pa

from tidemill.errors import InvalidValue, LimitExceeded

# With more digits than this before the point, or more zeros after it, a number is written with an exponent:
# `1e100000` would otherwise have 100 kB. All float8 values (up to 1e308) are plain, as in PostgreSQL.
MAX_PLAIN_DIGITS = 400
# PostgreSQL's limit of a numeric's digits before the point.
MAX_EXPONENT = 131_072

_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?", re.ASCII)
_ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


# An escaped zero character in printed JSON; an escaped backslash before u0000 does not count.
_ZERO = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class _Spelt:
    """A number that must be printed with exactly these digits."""

    __slots__ = ("spelling",)

    def __init__(self, spelling: str) -> None:
        self.spelling = canonical_number(spelling)


def canonical_json(text: str) -> str:
    """The canonical text of the JSON in `text`. Raises the errors of PostgreSQL's jsonb input."""
    try:
        try:
            result = _reprint(text, None)
        except json.JSONDecodeError as error:
            raise _syntax(text, error) from None
        except ValueError:  # an integer longer than Python converts (its limit is 4300 digits)
            result = _reprint(text, _Spelt)
    except RecursionError:
        raise LimitExceeded("stack depth limit exceeded", sqlstate="54001") from None
    if "\\u0000" in result and _ZERO.search(result):
        raise InvalidValue(
            "unsupported Unicode escape sequence",
            detail="\\u0000 cannot be converted to text.",
            sqlstate="22P05",
        )
    if "\\u" in text and _ESCAPED_SURROGATE.search(text):
        try:
            result.encode()
        except UnicodeEncodeError:
            raise InvalidValue(
                "invalid input syntax for type json",
                detail="Unicode low surrogate must follow a high surrogate.",
            ) from None
    return result


def _reprint(text: str, parse_int: Callable[[str], Any] | None) -> str:
    """Parse and print, in C unless a number has more digits than Python's types would print."""
    if parse_int is None:
        try:
            return _ENCODE(_PLAIN.decode(text))
        except _NotPlainError:
            pass
    exact = json.JSONDecoder(
        object_pairs_hook=_ordered, parse_float=_Spelt, parse_int=parse_int, parse_constant=_refuse
    )
    return _print(exact.decode(text))


class _NotPlainError(Exception):
    """A number that Python's types would print differently."""


def _plain_number(spelling: str) -> float | int:
    canonical = canonical_number(spelling)
    if "e" not in canonical:
        if "." not in canonical:
            return int(canonical)
        value = float(canonical)
        if repr(value) == canonical:
            return value
    raise _NotPlainError


def canonical_json_array(array: pa.Array) -> pa.Array:
    """`canonical_json` for a column. Returns the same array if it is already canonical."""
    texts = array.to_pylist()
    canonical = [None if text is None else canonical_json(text) for text in texts]
    return array if canonical == texts else pa.array(canonical, pa.string())


def canonical_number(spelling: str) -> str:
    """One form of each number: plain digits, an exponent only if it is very long, no trailing zeros in the
    fraction."""
    match = _NUMBER.fullmatch(spelling)
    if match is None:
        raise InvalidValue("invalid input syntax for type json", detail=f'Token "{spelling}" is invalid.')
    sign, whole, fraction, exponent = match[1], match[2], match[3] or "", match[4]
    if exponent is None:
        fraction = fraction.rstrip("0")
        if whole == "0" and not fraction:
            return "0"
        return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"
    if len(exponent) > 8 or abs(int(exponent)) > MAX_EXPONENT:
        if not (whole + fraction).strip("0"):
            return "0"
        raise InvalidValue("value overflows numeric format", sqlstate="22003")
    digits = (whole + fraction).lstrip("0")
    # The value is 0.digits * 10^point.
    point = len(whole) + int(exponent) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if not digits:
        return "0"
    if point > MAX_PLAIN_DIGITS or point < -MAX_PLAIN_DIGITS:
        mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
        return f"{sign}{mantissa}e{point - 1:+d}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if len(digits) <= point:
        return f"{sign}{digits}{'0' * (point - len(digits))}"
    return f"{sign}{digits[:point]}.{digits[point:]}"


def _ordered(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) < 2:
        return dict(pairs)
    unique = dict(pairs)  # the last of several equal keys
    keys = sorted(unique)  # by code points, which is the order of their bytes
    keys.sort(key=len if all(map(str.isascii, keys)) else _byte_length)
    return {key: unique[key] for key in keys}


def _byte_length(key: str) -> int:
    return len(key.encode("utf-8", "surrogatepass"))


def _refuse(word: str) -> NoReturn:
    raise InvalidValue("invalid input syntax for type json", detail=f'Token "{word.lstrip("-")}" is invalid.')


# Created once, because creating one costs as much as reading a short document.
_PLAIN = json.JSONDecoder(object_pairs_hook=_ordered, parse_float=_plain_number, parse_constant=_refuse)
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": "), check_circular=False).encode


def _print(value: Any) -> str:
    """Like json.dumps, for values that contain `_Spelt` numbers."""
    if isinstance(value, _Spelt):
        return value.spelling
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_print(k)}: {_print(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_print(v) for v in value) + "]"
    return _ENCODE(value)


def _syntax(text: str, error: json.JSONDecodeError) -> InvalidValue:
    """The text at which the parser stopped, in PostgreSQL's wording as far as it can be determined."""
    return InvalidValue("invalid input syntax for type json", detail=_explain(text, error))


def _explain(text: str, error: json.JSONDecodeError) -> str:
    if error.msg.startswith("Invalid control character"):
        return f"Character with value 0x{ord(text[error.pos]):02x} must be escaped."
    at = error.pos
    if error.msg.startswith("Extra data"):
        while at and (text[at - 1].isalnum() or text[at - 1] in "_.+-"):
            at -= 1  # the parser stops within `01` or `1x`; the whole of it is the token
    rest = text[at:].lstrip(" \t\n\r")
    if not rest:
        return "The input string ended unexpectedly."
    token = _TOKEN.match(rest)
    shown = token[0] if token else rest[0]
    sound = shown in _SIGNS or _SOUND.fullmatch(shown) is not None
    if not sound:
        return f'Token "{shown}" is invalid.'
    return f'Expected {_expected(error.msg, text[:at])}, but found "{shown}".'


def _expected(message: str, before: str) -> str:
    if message.startswith("Extra data"):
        return "end of input"
    if message.startswith("Expecting ':'"):
        return '":"'
    if message.startswith("Expecting ','"):
        return '"," or "}"' if _innermost(before) == "{" else '"," or "]"'
    if "property name" in message:
        return "string" if before.rstrip().endswith(",") else 'string or "}"'
    return "JSON value"


def _innermost(before: str) -> str:
    """The innermost bracket that is open at the end of the parsed text."""
    opened: list[str] = []
    for sign in re.findall(r'"(?:[^"\\]|\\.)*"|[][{}]', before, re.DOTALL):
        if sign in "[{":
            opened.append(sign)
        elif sign in "]}" and opened:
            opened.pop()
    return opened[-1] if opened else ""


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[\w-][\w.+-]*|.', re.DOTALL)
_SIGNS = frozenset("{}[],:")
# A valid token in the wrong position.
_SOUND = re.compile(rf'"(?:[^"\\]|\\.)*"|true|false|null|{_NUMBER.pattern}', re.DOTALL)
