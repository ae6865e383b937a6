"""Record headers as columns.

Called by `messages`. Headers are stored as a list of (key, value) per record (`layout.HEADERS`).
`header_column` extracts one of them. If a name repeats, the last header counts, as a producer that adds one
expects.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import with_original
from tidemill.decode.utf8 import texts, why_no_text
from tidemill.types.kernels import pc
from tidemill.types.nested import list_parts


def header_column(headers: pa.Array, name: str, *, raw: bool) -> tuple[pa.Array, pa.Array | None]:
    """The value of the header in each record, null if missing: bytes (`raw`) or text. Also the errors of
    values that are not text; None without errors."""
    offsets, entries = list_parts(headers)
    owner = np.repeat(np.arange(len(headers)), np.diff(offsets))
    named = pc.fill_null(pc.equal(entries.field(0), name), False).to_numpy(zero_copy_only=False)
    chosen = np.full(len(headers), -1, np.int64)
    # The last assignment wins: the last header of each record.
    chosen[owner[named]] = np.flatnonzero(named)
    values = entries.field(1).take(pa.array(chosen, mask=chosen < 0))
    return (values, None) if raw else _text(values, name)


def _text(values: pa.Array, name: str) -> tuple[pa.Array, pa.Array | None]:
    column, wrong = texts(values)
    if wrong is None:
        return column, None
    errors: list[str | None] = [None] * len(values)
    for row in np.flatnonzero(wrong).tolist():
        value = values[row].as_py()
        errors[row] = with_original(f"header '{name}' is no text: {why_no_text(value)}", value)
    return column, pa.array(errors, pa.string())
