"""Sort keys: columns as numbers, by which `order` sorts rows.

A lane gives an unsigned 64-bit code for each of some rows. Comparing a column's lanes one after another
compares its values as PostgreSQL does: text by bytes, NaN = NaN above all numbers, -0.0 = 0.0, char(n)
without its trailing blanks, intervals by length. jsonb and nested values, which have no order here, get an
arbitrary one that is the same for the same rows.

After the lanes of the order follow lanes for values that are equal in the order but are different rows
('24:00' and '1 day'). So values with equal codes in all lanes are one value by row identity
(`types.identity`). Lanes are computed on demand, and only for rows that the earlier lanes left tied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidemill.types.columns import numbers, spans, valid_mask
from tidemill.types.hash import float_bits, hash_column
from tidemill.types.identity import comparable, leaders
from tidemill.types.kernels import pc
from tidemill.types.model import Kind, SqlType
from tidemill.types.nested import struct_parts
from tidemill.types.wide import words

# Row numbers in, one uint64 for each out; None where it would be the same for all of them.
Lane: TypeAlias = Callable[[np.ndarray], np.ndarray | None]

_SIGN = np.uint64(1 << 63)
_MICROS_PER_DAY = 86_400_000_000
_DAYS_PER_MONTH = 30

# Bytes of a text in one lane: with 40 bits, 24 are left for the group (16 million) in the 64 that `order`
# sorts by. A text is split up to this many bytes after the common prefix, one pass for each lane; texts that
# are equal until then are ranked by whole values.
_PIECE = 5
_PIECES = 8


def order_lanes(
    column: pa.Array, t: SqlType, *, descending: bool = False, nulls_first: bool = False
) -> Iterator[Lane]:
    """The lanes of an ORDER BY item; values that are equal for PostgreSQL's operators have equal codes."""
    yield from _with_nulls(column, _ordered(column, t), descending, nulls_first)


def row_lanes(column: pa.Array, t: SqlType) -> Iterator[Lane]:
    """Ascending, nulls last; equal codes mean one value."""
    yield from _with_nulls(column, _ordered(column, t), False, False)
    if t.kind is Kind.INTERVAL:
        months, days, _ = _interval_parts(column)
        yield from _with_nulls(column, iter([_signed(months), _signed(days)]), False, False)
    elif t.kind is Kind.CHAR:
        yield from _with_nulls(column, _text(column), False, False)


def number_lane(values: np.ndarray, *, descending: bool = False) -> Lane:
    """Of int64 values without nulls."""
    return _masked(_signed(values), None, descending)


def _with_nulls(
    column: pa.Array, lanes: Iterator[Lane], descending: bool, nulls_first: bool
) -> Iterator[Lane]:
    """Nulls are first or last, independent of the direction; values under them are ignored."""
    valid = valid_mask(column) if column.null_count else None
    if valid is not None:
        yield lambda rows: (valid[rows] == nulls_first).astype(np.uint64)
    for lane in lanes:
        yield _masked(lane, valid, descending)


def _masked(lane: Lane, valid: np.ndarray | None, descending: bool) -> Lane:
    def codes(rows: np.ndarray) -> np.ndarray | None:
        found = lane(rows)
        if found is not None and descending:
            found = ~found
        if found is None or valid is None:
            return found
        return np.where(valid[rows], found, np.uint64(0))

    return codes


def _ordered(column: pa.Array, t: SqlType) -> Iterator[Lane]:
    kind = column.type
    if t.kind is Kind.CHAR:
        yield from _text(pc.utf8_rtrim(column, characters=" "))
    elif t.kind is Kind.INTERVAL:
        months, days, micros = _interval_parts(column)
        whole = months * _DAYS_PER_MONTH + days + micros // _MICROS_PER_DAY
        yield _signed(whole)
        yield _signed(micros % _MICROS_PER_DAY)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        yield from _text(column)
    elif pa.types.is_decimal(kind):
        low, high = words(column)
        if kind.precision > 18:
            yield _signed(high)
            yield lambda rows: low[rows]
        else:
            yield _signed(low.view(np.int64))
    elif pa.types.is_nested(kind):
        plain = comparable(column)
        yield lambda rows: hash_column(plain.take(pa.array(rows)))
        yield lambda rows: leaders([plain.take(pa.array(rows))], len(rows)).astype(np.uint64)
    elif pa.types.is_boolean(kind):
        yield _signed(pc.fill_null(column, False).to_numpy(zero_copy_only=False).astype(np.int64))
    elif pa.types.is_floating(kind):
        wide = pa.types.is_float64(kind)
        bits = float_bits(numbers(column, np.float64 if wide else np.float32), np.int64 if wide else np.int32)
        # Below zero a larger pattern is a smaller number: all bits but the sign are turned around.
        yield _signed(
            (bits ^ ((bits >> (bits.itemsize * 8 - 1)) & np.iinfo(bits.dtype).max)).astype(np.int64)
        )
    else:
        yield _signed(numbers(column, np.int64))


def _signed(values: np.ndarray) -> Lane:
    return lambda rows: values[rows].view(np.uint64) ^ _SIGN


def _interval_parts(column: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    months, days, micros = (numbers(part, np.int64) for part in struct_parts(column))
    return months, days, micros


# -- texts


def _text(column: pa.Array) -> Iterator[Lane]:
    offsets, data = spans(column)
    starts = offsets[:-1].astype(np.int64)
    lengths = np.diff(offsets).astype(np.int64)
    # A common prefix distinguishes nothing.
    skipped = _common_prefix(column)
    for _ in range(_PIECES):
        yield _piece_lane(starts, lengths, data, skipped)
        skipped += _PIECE
    yield lambda rows: _rest(column, lengths, skipped, rows)


def _common_prefix(column: pa.Array) -> int:
    """The bytes that the smallest and the largest value begin with, and so all between them."""
    ends = pc.min_max(column.cast(pa.binary()))
    low, high = ends["min"].as_py() or b"", ends["max"].as_py() or b""
    shared = min(len(low), len(high))
    differ = np.frombuffer(low, np.uint8, shared) != np.frombuffer(high, np.uint8, shared)
    return int(differ.argmax()) if bool(differ.any()) else shared


def _piece_lane(starts: np.ndarray, lengths: np.ndarray, data: np.ndarray, skipped: int) -> Lane:
    """The next bytes, the first in front; zeros behind a text's end."""
    if len(data) < 8:
        data = np.concatenate([data, np.zeros(8 - len(data), np.uint8)])
    last = len(data) - 8
    # A big-endian word at every byte: strides of one byte, copied where they are taken.
    eights = np.ndarray((last + 1,), ">u8", np.ascontiguousarray(data), 0, (1,))

    def codes(rows: np.ndarray) -> np.ndarray | None:
        length = lengths[rows]
        if int(length.max(initial=0)) <= skipped:
            return None
        at = starts[rows] + skipped
        late = np.flatnonzero(at > last)
        word = eights[np.minimum(at, last)].astype(np.uint64)
        if late.size:  # read too early: what lies before `at` is shifted out
            word[late] <<= (np.minimum(at[late] - last, 7) * 8).astype(np.uint64)
        word >>= np.uint64(64 - 8 * _PIECE)
        short = np.flatnonzero(length < skipped + _PIECE)
        if short.size:  # what lies behind the text's end does not count
            missing = np.minimum(skipped + _PIECE - length[short], _PIECE) * 8
            beyond = missing.astype(np.uint64)
            word[short] = word[short] >> beyond << beyond
        return word

    return codes


def _rest(column: pa.Array, lengths: np.ndarray, skipped: int, rows: np.ndarray) -> np.ndarray:
    """The rest of texts whose pieces are equal: by length (one may continue with zeros) if the pieces cover
    them, else by rank among each other."""
    if int(lengths[rows].max(initial=0)) <= skipped:
        return lengths[rows].astype(np.uint64)
    distinct = column.take(pa.array(rows)).dictionary_encode(null_encoding="encode")
    ranks = pc.rank(distinct.dictionary, sort_keys="ascending", tiebreaker="dense")
    found = ranks.to_numpy(zero_copy_only=False)[numbers(distinct.indices, np.int64)]
    return found.astype(np.uint64)
