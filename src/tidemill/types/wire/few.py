"""Fast decoder for a few client values in their plainest forms.

A statement with one row has only a few values. For them the column-wise decoders spend more time on calls
than on work, because each releases the interpreter lock and waits for it. This module returns None for any
value that is not certainly plain, and the column-wise decoders read it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidemill.types.model import Kind, SqlType

# Up to this many values are examined one by one.
FEW = 16

_INTEGERS = {Kind.INT2: (pa.int16(), 2), Kind.INT4: (pa.int32(), 4), Kind.INT8: (pa.int64(), 8)}
# Longer texts may be out of the type's range, or need PostgreSQL's error text.
_SAFE_DIGITS = {Kind.INT2: 4, Kind.INT4: 9, Kind.INT8: 18}


def few_from_text(texts: Sequence[str | None], t: SqlType) -> pa.Array | None:
    """The result of `decode_text`, if all values are plain integers or plain text."""
    if t.kind is Kind.TEXT:
        return pa.array(texts, pa.string())
    integer = _INTEGERS.get(t.kind)
    if integer is None:
        return None
    limit = _SAFE_DIGITS[t.kind]
    numbers: list[int | None] = []
    for text in texts:
        if text is None:
            numbers.append(None)
            continue
        digits = text[1:] if text.startswith("-") else text
        if not (digits.isascii() and digits.isdigit() and len(digits) <= limit):
            return None
        numbers.append(int(text))
    return pa.array(numbers, integer[0])


def few_from_binary(values: Sequence[bytes | None], t: SqlType) -> pa.Array | None:
    """The result of `decode_binary`, if all values are integers of the right width or text."""
    if t.kind is Kind.TEXT:
        return few_from_text(texts, t) if (texts := utf8(values)) is not None else None
    integer = _INTEGERS.get(t.kind)
    if integer is None or any(v is not None and len(v) != integer[1] for v in values):
        return None
    return pa.array(
        [None if v is None else int.from_bytes(v, "big", signed=True) for v in values], integer[0]
    )


def utf8(values: Sequence[bytes | None]) -> list[str | None] | None:
    """The values as texts; None if one is not valid text (the column-wise decoder reports its error)."""
    try:
        texts = [None if v is None else v.decode() for v in values]
    except UnicodeDecodeError:
        return None
    return None if any(s is not None and "\0" in s for s in texts) else texts


def few_to_text(array: pa.Array, t: SqlType) -> list[bytes | None] | None:
    """The result of `encode_text`, for the types of most small results; None for others."""
    if t.kind is Kind.TEXT:
        return [None if v is None else v.encode() for v in array.to_pylist()]
    if t.kind in _INTEGERS:
        return [None if v is None else b"%d" % v for v in array.to_pylist()]
    if t.kind is Kind.BOOL:
        return [None if v is None else b"t" if v else b"f" for v in array.to_pylist()]
    return None


def few_to_binary(array: pa.Array, t: SqlType) -> list[bytes | None] | None:
    """The result of `encode_binary`, for the same types."""
    if t.kind is Kind.TEXT:
        return few_to_text(array, t)
    if (integer := _INTEGERS.get(t.kind)) is not None:
        width = integer[1]
        return [None if v is None else v.to_bytes(width, "big", signed=True) for v in array.to_pylist()]
    if t.kind is Kind.BOOL:
        return [None if v is None else b"\x01" if v else b"\x00" for v in array.to_pylist()]
    return None
