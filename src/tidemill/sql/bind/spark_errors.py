"""What Spark raises while a query runs, as PostgreSQL's errors.

Called by the query layer with whatever came out of pyspark. Errors that our own trees raise carry their
SQLSTATE and text; Spark's ANSI errors are translated by class; anything else becomes XX000 with Spark's
first line, never a Java stack.
"""

from __future__ import annotations

import re

from tidemill.errors import Internal, InvalidValue, TidemillError, Unsupported
from tidemill.sql.bind.errors import CardinalityViolation
from tidemill.sql.functions.tree import RAISED

_CLASS = re.compile(r"\[([A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]\s*(.*)")
_RAISED = re.compile(re.escape(RAISED) + r"([0-9A-Z]{5}):(.*?)(?: SQLSTATE: P0001)?\s*$", re.S)
_CAST = re.compile(r"The value (.*?) of the type \"([\w(), ]+)\" cannot be cast to \"([\w(), ]+)\"", re.S)

# Spark's names of types, as PostgreSQL's messages call them.
_NAMES = {
    "TINYINT": "smallint",
    "SMALLINT": "smallint",
    "INT": "integer",
    "BIGINT": "bigint",
    "DOUBLE": "double precision",
    "FLOAT": "real",
    "STRING": "text",
    "DATE": "date",
    "TIMESTAMP": "timestamp with time zone",
    "TIMESTAMP_NTZ": "timestamp without time zone",
    "BOOLEAN": "boolean",
}
_PLAIN: dict[str, tuple[str, str]] = {
    "DIVIDE_BY_ZERO": ("22012", "division by zero"),
    "REMAINDER_BY_ZERO": ("22012", "division by zero"),
    # 16- and 32-bit results are computed wider and cast back, so only bigint is left
    # (`functions.arithmetic`).
    "ARITHMETIC_OVERFLOW": ("22003", "bigint out of range"),
    "BINARY_ARITHMETIC_OVERFLOW": ("22003", "smallint out of range"),
    "NUMERIC_VALUE_OUT_OF_RANGE": ("22003", "value overflows numeric format"),
    "NUMERIC_OUT_OF_SUPPORTED_RANGE": ("22003", "value overflows numeric format"),
    "DATETIME_OVERFLOW": ("22008", "timestamp out of range"),
    "DATETIME_FIELD_OUT_OF_BOUNDS": ("22008", "date/time field value out of range"),
    "INTERVAL_ARITHMETIC_OVERFLOW": ("22008", "interval out of range"),
    "INVALID_FORMAT": ("22025", "LIKE pattern must not end with escape character"),
    "COLLECTION_SIZE_LIMIT_EXCEEDED": ("54000", "too many elements"),
}


def map_spark_error(error: BaseException) -> TidemillError:
    """The TidemillError to report for `error` (itself, if it is one)."""
    if isinstance(error, TidemillError):
        return error
    return map_spark_text(str(error))


def map_spark_text(text: str) -> TidemillError:
    """As `map_spark_error`, for the message alone."""
    first = _without_stack(text)
    raised = _RAISED.search(first)
    if raised is not None:
        return TidemillError(raised[2], sqlstate=raised[1])
    found = _CLASS.search(first)
    if found is None:
        return Internal(_first_line(first) or "Spark failed without a message")
    name, message = found[1], found[2]
    root = name.split(".")[0]
    if root in _PLAIN:
        state, primary = _PLAIN[root]
        return InvalidValue(primary, sqlstate=state)
    if root == "SCALAR_SUBQUERY_TOO_MANY_ROWS":
        return CardinalityViolation("more than one row returned by a subquery used as an expression")
    if root in ("CAST_OVERFLOW", "CAST_INVALID_INPUT"):
        return _cast_error(root, found[2] + first[found.end() :])
    if root in ("UNSUPPORTED_SUBQUERY_EXPRESSION_CATEGORY", "INVALID_SUBQUERY_EXPRESSION"):
        return Unsupported("this use of a subquery is not supported", detail=_first_line(message))
    return Internal(f"Spark: {_first_line(message)}", detail=name)


def _cast_error(root: str, message: str) -> TidemillError:
    match = _CAST.search(message)
    if match is None:
        return InvalidValue("invalid input", detail=_first_line(message))
    value, _, target = match.groups()
    name = _NAMES.get(target, "numeric" if target.startswith("DECIMAL") else target.lower())
    if root == "CAST_OVERFLOW":
        return InvalidValue(f"{name} out of range", sqlstate="22003")
    text = value[1:-1] if value.startswith("'") else value
    if re.fullmatch(r"[+-]?[0-9]+", text) and name in ("smallint", "integer", "bigint"):
        return InvalidValue(f'value "{text}" is out of range for type {name}', sqlstate="22003")
    if name == "numeric":
        return InvalidValue("value overflows numeric format", sqlstate="22003")
    if name == "date" or name.startswith("timestamp"):
        return InvalidValue(f'date/time field value out of range: "{text}"', sqlstate="22008")
    return InvalidValue(f'invalid input syntax for type {name}: "{text}"')


def _without_stack(text: str) -> str:
    """Up to the Java stack or Spark's excerpt of the query."""
    for mark in ("\n\tat ", "\n== SQL", "\n== DataFrame", "\nJVM stacktrace", "\nDriver stacktrace"):
        index = text.find(mark)
        if index >= 0:
            text = text[:index]
    return text


def _first_line(text: str) -> str:
    line = text.strip().split("\n")[0]
    return re.sub(r"\s*SQLSTATE: \w{5}.*$", "", line)
