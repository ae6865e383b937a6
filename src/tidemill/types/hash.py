"""XXH64 over whole columns, bit for bit equal to Spark's `xxhash64`.

Called by `identity`. All arithmetic is uint64 modulo 2**64 in numpy. `spark_hash` builds the Spark
expressions that must return the same numbers; golden vectors in the tests check both. The meaning of a stored
hash never changes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.errors import Internal
from tidemill.types import wide
from tidemill.types.columns import contiguous, numbers, spans, valid_mask
from tidemill.types.kernels import pc
from tidemill.types.nested import list_parts, map_parts, struct_parts

# Spark's seed. It is also the hash of NULL, because a null leaves the seed unchanged.
SEED = 42

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_MASK = 2**64 - 1

# Rows that are hashed together. The dozen arrays between a column and its hashes then stay in the processor's
# caches (three times as fast for a million texts), and take a megabyte.
PIECE_ROWS = 16_384

# If at most this many values have whole stripes left, plain integers are faster than numpy's calls per
# stripe.
_FEW = 8


def _rotate(x: np.ndarray, bits: int) -> np.ndarray:
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


def _finish(h: np.ndarray) -> np.ndarray:
    h = (h ^ (h >> np.uint64(33))) * _P2
    h = (h ^ (h >> np.uint64(29))) * _P3
    return h ^ (h >> np.uint64(32))


def hash_ints(values: np.ndarray, seed: np.ndarray) -> np.ndarray:
    """Spark's hash of a 32-bit number (also of smaller ones, booleans, dates and floats' bits)."""
    h = seed + _P5 + np.uint64(4)
    h = h ^ (values.astype(np.int64).astype(np.uint64) & np.uint64(0xFFFFFFFF)) * _P1
    return _finish(_rotate(h, 23) * _P2 + _P3)


def hash_longs(values: np.ndarray, seed: np.ndarray) -> np.ndarray:
    """Spark's hash of a 64-bit number (also of timestamps and doubles' bits)."""
    h = seed + _P5 + np.uint64(8)
    h = h ^ _round(np.zeros((), np.uint64), values.view(np.uint64))
    return _finish(_rotate(h, 27) * _P1 + _P4)


def _round(accumulator: np.ndarray, lane: np.ndarray) -> np.ndarray:
    return _rotate(accumulator + lane * _P2, 31) * _P1


def hash_bytes(starts: np.ndarray, lengths: np.ndarray, data: np.ndarray, seed: np.uint64) -> np.ndarray:
    """XXH64 of data[start : start + length] for each row."""
    # Unaligned words: a view with a stride of one byte, copied by take.
    size = len(data)
    words = np.ndarray((max(size - 7, 0),), "<u8", np.ascontiguousarray(data), 0, (1,))
    halves = np.ndarray((max(size - 3, 0),), "<u4", np.ascontiguousarray(data), 0, (1,))
    at = starts.astype(np.int64)
    left = lengths.astype(np.int64)
    h = np.full(len(at), seed + _P5, dtype=np.uint64)
    long = np.flatnonzero(left >= 32)
    if long.size:
        h[long] = _stripes(at[long], left[long], words, seed)
        whole = left[long] // 32 * 32
        at[long] += whole
        left[long] -= whole
    h += lengths.astype(np.uint64)
    while (rows := np.flatnonzero(left >= 8)).size:
        h[rows] = _rotate(h[rows] ^ _round(np.zeros((), np.uint64), words[at[rows]]), 27) * _P1 + _P4
        at[rows] += 8
        left[rows] -= 8
    if (rows := np.flatnonzero(left >= 4)).size:
        h[rows] = _rotate(h[rows] ^ halves[at[rows]].astype(np.uint64) * _P1, 23) * _P2 + _P3
        at[rows] += 4
        left[rows] -= 4
    while (rows := np.flatnonzero(left > 0)).size:
        h[rows] = _rotate(h[rows] ^ data[at[rows]].astype(np.uint64) * _P5, 11) * _P1
        at[rows] += 1
        left[rows] -= 1
    return _finish(h)


def _stripes(at: np.ndarray, left: np.ndarray, words: np.ndarray, seed: np.uint64) -> np.ndarray:
    """The four lanes over all whole stripes of 32 bytes, merged. Every row has at least one stripe."""
    lanes = np.empty((len(at), 4), dtype=np.uint64)
    lanes[:] = seed + np.array([_P1 + _P2, _P2, 0, np.negative(_P1)], dtype=np.uint64)
    count = left // 32
    done = 0
    active = np.arange(len(at))
    steps = np.array([0, 8, 16, 24])
    while active.size > _FEW:
        lanes[active] = _round(lanes[active], words[at[active, None] + 32 * done + steps])
        done += 1
        active = active[count[active] > done]
    for row in active.tolist():
        first = int(at[row]) + 32 * done
        block = words[first : first + 32 * (int(count[row]) - done) : 8].tolist()
        lanes[row] = _lanes_of(lanes[row].tolist(), block)
    merged = sum(
        (_rotate(lanes[:, i], bits) for i, bits in enumerate((1, 7, 12, 18))), np.zeros((), np.uint64)
    )
    for i in range(4):
        merged = (merged ^ _round(np.zeros((), np.uint64), lanes[:, i])) * _P1 + _P4
    return merged


def _lanes_of(lanes: list[int], block: list[int]) -> list[int]:
    """The remaining stripes of one long value, in plain integers."""
    p1, p2 = int(_P1), int(_P2)
    for i, word in enumerate(block):
        x = (lanes[i & 3] + word * p2) & _MASK
        lanes[i & 3] = ((x << 31 | x >> 33) & _MASK) * p1 & _MASK
    return lanes


def hash_column(array: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """One uint64 per row of a storage column, SEED for null. Floats are hashed by value (-0.0 as 0.0, every
    NaN as one), maps independent of the order of their entries."""
    column = contiguous(array)
    if len(column) <= PIECE_ROWS:
        return _hash_piece(column)
    hashed = np.empty(len(column), dtype=np.uint64)
    for at in range(0, len(column), PIECE_ROWS):
        hashed[at : at + PIECE_ROWS] = _hash_piece(column.slice(at, PIECE_ROWS))
    return hashed


def _hash_piece(column: pa.Array) -> np.ndarray:
    hashed = _hash(column)
    return np.where(valid_mask(column), hashed, np.uint64(SEED)) if column.null_count else hashed


def _hash(column: pa.Array) -> np.ndarray:
    t = column.type
    seed = np.full((), SEED, dtype=np.uint64)
    with np.errstate(over="ignore"):
        if pa.types.is_boolean(t):
            return hash_ints(pc.fill_null(column, False).to_numpy(zero_copy_only=False), seed)
        if pa.types.is_int16(t) or pa.types.is_int32(t) or pa.types.is_date32(t):
            return hash_ints(numbers(column, np.int32), seed)
        if pa.types.is_int64(t) or pa.types.is_timestamp(t):
            return hash_longs(numbers(column, np.int64), seed)
        if pa.types.is_float32(t):
            return hash_ints(float_bits(numbers(column, np.float32), np.int32), seed)
        if pa.types.is_float64(t):
            return hash_longs(float_bits(numbers(column, np.float64), np.int64), seed)
        if pa.types.is_decimal(t):
            return _hash_decimals(column)
        if pa.types.is_string(t) or pa.types.is_binary(t):
            offsets, data = spans(column)
            return hash_bytes(offsets[:-1], np.diff(offsets), data, np.uint64(SEED))
        if pa.types.is_map(t):
            return _hash_map(column)
        if pa.types.is_list(t):
            return _hash_list(column)
        if pa.types.is_struct(t):
            fields = [hash_column(field) for field in struct_parts(column)]
            return fold(fields) if fields else hash_ints(np.zeros(len(column), np.int32), seed)
    raise Internal(f"no row hash for {t}")


def float_bits(values: np.ndarray, dtype: type[np.signedinteger]) -> np.ndarray:
    """The bits of floats with one zero and one NaN, as in Java's floatToIntBits and doubleToLongBits."""
    canonical = np.where(np.isnan(values), values.dtype.type(np.nan), values + values.dtype.type(0.0))
    return np.abs(canonical, where=np.isnan(canonical), out=canonical).view(dtype)


def fold(longs: list[np.ndarray]) -> np.ndarray:
    """One hash of several, in order: Spark's xxhash64(l1, l2, ...)."""
    count = len(longs[0]) if longs else 0
    if count <= PIECE_ROWS:
        return _fold_piece(longs)
    folded = np.empty(count, dtype=np.uint64)
    for at in range(0, count, PIECE_ROWS):
        folded[at : at + PIECE_ROWS] = _fold_piece([column[at : at + PIECE_ROWS] for column in longs])
    return folded


def _fold_piece(longs: list[np.ndarray]) -> np.ndarray:
    h: np.ndarray = np.full((), SEED, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for column in longs:
            h = hash_longs(column, h)
    return h


def _hash_decimals(column: pa.Array) -> np.ndarray:
    """Up to 18 digits as a long; above as the shortest big-endian two's complement (Java's
    BigInteger.toByteArray)."""
    low, high = wide.words(column)
    if column.type.precision <= 18:
        return hash_longs(low, np.full((), SEED, dtype=np.uint64))
    raw = np.empty((len(low), 2), dtype=">u8")
    raw[:, 0] = high.view(np.uint64)
    raw[:, 1] = low
    # A leading byte is dropped if it contains only the sign, and the next byte has the same sign.
    data = raw.view(np.uint8).reshape(-1)
    rows = data.reshape(len(low), 16)
    sign = np.where(high < 0, 255, 0).astype(np.uint8)
    spare = (rows[:, :15] == sign[:, None]) & ((rows[:, 1:] >= 128) == (high < 0)[:, None])
    dropped = np.logical_and.accumulate(spare, axis=1).sum(axis=1)
    starts = np.arange(len(low), dtype=np.int64) * 16 + dropped
    return hash_bytes(starts, 16 - dropped, data, np.uint64(SEED))


def _hash_list(column: pa.Array) -> np.ndarray:
    """Size, then the exclusive or of all elements, each hashed with its index: no sequential chain over a
    long list."""
    offsets, children = list_parts(column)
    sizes = np.diff(offsets)
    places = np.arange(len(children)) - np.repeat(offsets[:-1], sizes)
    seeds = hash_ints(places, np.full((), SEED, dtype=np.uint64))
    return _hash_bag(sizes, offsets, hash_longs(hash_column(children), seeds))


def _hash_map(column: pa.Array) -> np.ndarray:
    """Like a list, but independent of the order of the entries."""
    offsets, keys, values = map_parts(column)
    return _hash_bag(np.diff(offsets), offsets, fold([hash_column(keys), hash_column(values)]))


def _hash_bag(sizes: np.ndarray, offsets: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    mixed = np.zeros(len(sizes), dtype=np.uint64)
    filled = np.flatnonzero(sizes)
    if filled.size:
        mixed[filled] = np.bitwise_xor.reduceat(hashes, offsets[:-1][filled])
    return hash_longs(mixed, hash_ints(sizes, np.full((), SEED, dtype=np.uint64)))
