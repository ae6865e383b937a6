"""UTF-8 check: finds the rows that are not text by PostgreSQL's rules (UTF-8 without the zero byte).

Called by every decoder whose messages contain text.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.types.columns import spans
from tidemill.types.kernels import pc

ENCODING_ERROR = 'invalid byte sequence for encoding "UTF8": '


def texts(raw: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """A binary column as text, and which values are not text (null in the column); None if all are text."""
    wrong: np.ndarray | None = None
    try:
        text = raw.cast(pa.string())
    except pa.ArrowInvalid:
        # One by one, but only in a batch with such a value.
        found = [value is not None and not _is_utf8(value) for value in raw.to_pylist()]
        wrong = np.array(found, dtype=np.bool_)
        text = pc.if_else(pa.array(wrong), None, raw).cast(pa.string())
    offsets, data = spans(text)
    used = data[offsets[0] : offsets[-1]]
    if len(used) and int(used.min()) == 0:
        zero = pc.fill_null(pc.match_substring(text.cast(pa.binary()), b"\0"), False)
        text = pc.if_else(zero, None, text)
        zeros = zero.to_numpy(zero_copy_only=False)
        wrong = zeros if wrong is None else wrong | zeros
    return text, wrong


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def why_no_text(value: bytes) -> str | None:
    """PostgreSQL's error for the value; None if it is text."""
    try:
        value.decode()
    except UnicodeDecodeError as error:
        first = value[error.start]
        # PostgreSQL shows as many bytes as the first one announces.
        claimed = 2 if 0xC0 <= first < 0xE0 else 3 if 0xE0 <= first < 0xF0 else 4
        claimed = 1 if first < 0xC0 or first >= 0xF8 else claimed
        shown = value[error.start : error.start + claimed]
        return ENCODING_ERROR + " ".join(f"0x{byte:02x}" for byte in shown)
    return f"{ENCODING_ERROR}0x00" if b"\0" in value else None
