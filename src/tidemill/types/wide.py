"""128-bit decimals as numpy limbs, whole columns at a time.

The binary wire format and the row hash need the digits or the bytes of a decimal, and Arrow has no kernels
for them. Limbs are 32 bits in uint64 (least significant first), so a product with a small number or a carry
never overflows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


def words(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The two's complement of each unscaled value as (low uint64, high int64); zero where null."""
    buffer = array.buffers()[1]
    if buffer is None or len(array) == 0:
        return np.zeros(len(array), np.uint64), np.zeros(len(array), np.int64)
    raw = np.frombuffer(buffer, dtype=np.uint64, count=2 * len(array), offset=16 * array.offset).reshape(
        -1, 2
    )
    low, high = raw[:, 0].copy(), raw[:, 1].copy()
    if array.null_count:
        missing = array.is_null().to_numpy(zero_copy_only=False)
        low[missing] = 0
        high[missing] = 0
    return low, high.view(np.int64)


def magnitude(low: np.ndarray, high: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Absolute values as four limbs, and which were negative."""
    negative = high < 0
    top = high.view(np.uint64)
    flipped_low = np.where(negative, np.negative(low), low)
    borrow = (negative & (low == 0)).astype(np.uint64)
    flipped_top = np.where(negative, ~top + borrow, top)
    return [flipped_low & _LOW, flipped_low >> _SHIFT, flipped_top & _LOW, flipped_top >> _SHIFT], negative


def multiply_add(limbs: list[np.ndarray], factor: int, addend: np.ndarray | int = 0) -> list[np.ndarray]:
    """limbs * factor + addend, with one more limb if necessary. `factor` and `addend` are below 2**31."""
    carry: np.ndarray = np.broadcast_to(np.asarray(addend, dtype=np.uint64), limbs[0].shape)
    result: list[np.ndarray] = []
    for limb in limbs:
        total = limb * np.uint64(factor) + carry
        result.append(total & _LOW)
        carry = total >> _SHIFT
    if bool(carry.any()):
        result.append(carry)
    return result


def divide(limbs: list[np.ndarray], divisor: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Quotient (leading zero limbs dropped) and remainder by a small number (below 2**31)."""
    by = np.uint64(divisor)
    remainder = np.zeros_like(limbs[0])
    quotient: list[np.ndarray] = []
    for limb in reversed(limbs):
        total = (remainder << _SHIFT) | limb
        digit = total // by
        remainder = total - digit * by
        quotient.append(digit)
    quotient.reverse()
    while len(quotient) > 1 and not bool(quotient[-1].any()):
        quotient.pop()
    return quotient, remainder


def from_magnitude(limbs: list[np.ndarray], negative: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) in two's complement. The value must fit into four limbs."""
    padded = [*limbs, *([np.zeros_like(limbs[0])] * (4 - len(limbs)))]
    low = padded[0] | (padded[1] << _SHIFT)
    top = padded[2] | (padded[3] << _SHIFT)
    flipped_low = np.where(negative, np.negative(low), low)
    flipped_top = np.where(negative, ~top + (low == 0).astype(np.uint64), top)
    return flipped_low, flipped_top.view(np.int64)


def decimals(low: np.ndarray, high: np.ndarray, valid: pa.Buffer | None, target: pa.DataType) -> pa.Array:
    """A decimal128 column from its words."""
    raw = np.empty((len(low), 2), dtype=np.uint64)
    raw[:, 0] = low
    raw[:, 1] = high.view(np.uint64)
    return pa.Array.from_buffers(target, len(low), [valid, pa.py_buffer(raw)])


def at_least(limbs: list[np.ndarray], bound: int) -> np.ndarray:
    """Whether each value is at least `bound`."""
    wanted: list[int] = []
    while bound:
        wanted.append(bound & 0xFFFFFFFF)
        bound >>= 32
    size = max(len(limbs), len(wanted))
    result = np.ones(limbs[0].shape, dtype=np.bool_)
    for i in range(size):  # from the least limb up: the higher one decides unless it is equal
        mine = limbs[i] if i < len(limbs) else np.zeros_like(limbs[0])
        theirs = np.uint64(wanted[i] if i < len(wanted) else 0)
        result = (mine > theirs) | ((mine == theirs) & result)
    return result
