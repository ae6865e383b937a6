"""Translation of Spark's runtime errors into PostgreSQL's errors.

Called by the query layer with any exception from pyspark. Errors that the binder's own trees raise contain
their SQLSTATE and text. Spark's ANSI errors are translated by class. Anything else becomes XX000 with the
first line of Spark's message, never a Java stack.
"""

from __future__ import annotations

import re

from tidemill.errors import Internal, InvalidValue, LimitExceeded, TidemillError, Unavailable, Unsupported
from tidemill.sql.bind.errors import CardinalityViolation
from tidemill.sql.functions.tree import RAISED

_CLASS = re.compile(r"\[([A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]\s*(.*)")
# With Spark's class for errors of raise_error: Spark's other messages quote expressions, which may contain
# such calls.
_RAISED = re.compile(
    r"\[USER_RAISED_EXCEPTION\] " + re.escape(RAISED) + r"([0-9A-Z]{5}):(.*?)(?: SQLSTATE: P0001)?\s*$", re.S
)
_CAUSES = re.compile(r"\nCaused by: |\n\s*Suppressed: ")
_CAST = re.compile(r"The value (.*?) of the type \"([\w(), ]+)\" cannot be cast to \"([\w(), ]+)\"", re.S)

# Spark's names of types, and PostgreSQL's.
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
    "NUMERIC_OUT_OF_SUPPORTED_RANGE": ("22003", "value overflows numeric format"),
    "DATETIME_OVERFLOW": ("22008", "timestamp out of range"),
    "DATETIME_FIELD_OUT_OF_BOUNDS": ("22008", "date/time field value out of range"),
    "INTERVAL_ARITHMETIC_OVERFLOW": ("22008", "interval out of range"),
    "INVALID_FORMAT": ("22025", "LIKE pattern must not end with escape character"),
    "COLLECTION_SIZE_LIMIT_EXCEEDED": ("54000", "too many elements"),
}


# Out of memory: of the heap, off the heap (a batch of large values), and in Spark's own accounting.
_NO_MEMORY = (
    "java.lang.OutOfMemoryError",
    "org.apache.arrow.memory.OutOfMemoryException",
    "org.apache.arrow.vector.util.OversizedAllocationException",
    "io.netty.util.internal.OutOfDirectMemoryError",
    "SparkOutOfMemoryError",
    "[UNABLE_TO_ACQUIRE_MEMORY]",
)


def map_spark_error(error: BaseException) -> TidemillError:
    """The TidemillError to report for `error` (`error` itself if it is one)."""
    if isinstance(error, TidemillError):
        return error
    return map_spark_text(str(error))


def map_spark_text(text: str) -> TidemillError:
    """Like `map_spark_error`, for a message. The cause may be at the beginning or after `Caused by`."""
    parts = [_without_stack(text), *(_without_stack(p) for p in _CAUSES.split(text)[1:])]
    for part in parts:
        found = _known(part)
        if found is not None:
            return found
    for part in parts:
        match = _CLASS.search(part)
        if match is not None:
            return Internal(f"Spark: {_first_line(match[2])}", detail=match[1])
    lines = [line for line in parts[0].split("\n") if line and not line.startswith("An error occurred")]
    return Internal(_first_line(lines[0].lstrip(": ")) if lines else "Spark failed without a message")


def _known(text: str) -> TidemillError | None:
    raised = _RAISED.search(text)
    if raised is not None:
        return TidemillError(raised[2], sqlstate=raised[1])
    if "java.lang.ArithmeticException: long overflow" in text or text.strip() == "long overflow":
        # Spark names overflows of its arithmetic; this one is raised by its calendar.
        return InvalidValue("timestamp out of range", sqlstate="22008")
    if any(sign in text for sign in _NO_MEMORY):
        return LimitExceeded(
            "out of memory",
            detail="Spark's Java heap was too small for the statement.",
            hint="Give it more with --spark-driver-memory, or make the values and the result smaller.",
            sqlstate="53200",
        )
    if "java.io.IOException: No space left on device" in text:
        return Unavailable(
            "the disk is full",
            detail="There was no room for what Spark puts aside while it runs a statement.",
            hint="Make room in --scratch-dir, or make the result smaller.",
            sqlstate="53100",
        )
    for found in _CLASS.finditer(text):
        root, message = found[1].split(".")[0], text[found.start(2) :]
        if root == "NUMERIC_VALUE_OUT_OF_RANGE":
            return _numeric_overflow(message)
        if root in _PLAIN:
            state, primary = _PLAIN[root]
            return InvalidValue(primary, sqlstate=state)
        if root == "FAILED_TO_PARSE_TOO_COMPLEX":
            return LimitExceeded(
                "statement too complex",
                hint="Split the statement: nest less, join fewer queries by UNION.",
                sqlstate="54001",
            )
        if root in ("RECURSION_LEVEL_LIMIT_EXCEEDED", "RECURSION_ROW_LIMIT_EXCEEDED"):
            return LimitExceeded(
                "recursive query does not end",
                detail=_first_line(message),
                hint="Give it a condition that comes to an end, or fewer rounds.",
                sqlstate="54001",
            )
        if root == "SCALAR_SUBQUERY_TOO_MANY_ROWS":
            return CardinalityViolation("more than one row returned by a subquery used as an expression")
        if root in ("CAST_OVERFLOW", "CAST_INVALID_INPUT"):
            return _cast_error(root, message)
        if root in ("UNSUPPORTED_SUBQUERY_EXPRESSION_CATEGORY", "INVALID_SUBQUERY_EXPRESSION"):
            return Unsupported(
                "this use of a subquery is not supported",
                detail=_first_line(message),
                hint="Put the subquery in FROM and use its column.",
            )
        if root == "UNSUPPORTED_FEATURE":
            return Unsupported(
                "this combination of expressions is not supported", detail=_first_line(message)
            )
    return None


def _numeric_overflow(message: str) -> TidemillError:
    shape = re.search(r"Decimal\((\d+), (\d+)\)", message)
    if shape is None or (shape[1], shape[2]) == ("38", "18"):
        return InvalidValue("value overflows numeric format", sqlstate="22003")
    precision, scale = int(shape[1]), int(shape[2])
    whole = f"10^{precision - scale}" if precision > scale else "1"
    return InvalidValue(
        "numeric field overflow",
        detail=f"A field with precision {precision}, scale {scale} must round to an absolute value "
        f"less than {whole}.",
        sqlstate="22003",
    )


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
    """The text before the Java stack or Spark's excerpt of the query."""
    for mark in ("\n\tat ", "\n== SQL", "\n== DataFrame", "\nJVM stacktrace", "\nDriver stacktrace"):
        index = text.find(mark)
        if index >= 0:
            text = text[:index]
    return text


def _first_line(text: str) -> str:
    line = text.strip().split("\n")[0]
    return re.sub(r"\s*SQLSTATE: \w{5}.*$", "", line)
