"""Conversion of single values through the column coders: literals, defaults, parameters and messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidemill.errors import InvalidValue
from tidemill.types.arrow import arrow_type
from tidemill.types.model import SqlType
from tidemill.types.wire.columns import InvalidField
from tidemill.types.wire.text import decode_text, encode_text


def parse_literal(text: str | bytes | None, t: SqlType, *, timezone: str = "UTC") -> pa.Scalar:
    """The value of PostgreSQL's input function for `text`, in storage form."""
    raw = text.encode() if isinstance(text, str) else text
    try:
        return decode_text(pa.array([raw], pa.binary()), t, timezone=timezone)[0]
    except InvalidField as error:
        # A single value needs no row number.
        plain = InvalidValue(error.primary, detail=error.detail, hint=error.hint, sqlstate=error.sqlstate)
        raise plain from None


def format_value(value: Any, t: SqlType, *, timezone: str = "UTC") -> str | None:
    """A storage value (a pyarrow scalar, or a value that pyarrow converts to one) as PostgreSQL prints it;
    None for NULL."""
    if isinstance(value, pa.Scalar):
        # Not through Python's types, which lack some values (BC, infinity).
        array = pa.repeat(value, 1).cast(arrow_type(t))
    else:
        array = pa.array([value], arrow_type(t))
    text = encode_text(array, t, timezone=timezone)[0].as_py()
    return None if text is None else text.decode()
