"""A set of hashes that every task of a scan can ask, without a join.

`read` uses it to split a scan's rows into those that cannot be retracted, which pass, and the few that may
be, which are counted. It may say yes too often (about one row in 250 goes the longer way for nothing),
never no too often.

It is Spark's own Bloom filter, written here in its first serialised form and asked with the expression that
Spark plans for joins; so the test is compiled into the scan, and no job has to run before it, as it would for
a broadcast join with the hashes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tidemill.query.hashing import Hashes

# Two probes in 32 bits per hash: a bit is set with probability 1/16, so a strange row is let through with
# 1/256, and most are refused by the first probe. The smallest filter keeps that for a handful of retractions.
_PROBES = 2
_BITS_PER_HASH = 32
_MIN_BITS = 1 << 13

_U32 = np.uint32


def build(hashes: Hashes) -> bytes:
    """The filter that says yes to all the hashes."""
    words = max(_MIN_BITS, _BITS_PER_HASH * len(hashes)) // 64 + 1
    bits = words * 64
    first = _murmur(hashes, np.zeros(len(hashes), _U32))
    second = _murmur(hashes, first)
    bitmap = np.zeros(bits, np.bool_)
    for probe in range(1, _PROBES + 1):
        combined = (first + _U32(probe) * second).view(np.int32)
        bitmap[np.where(combined < 0, ~combined, combined) % bits] = True
    # Bit i of the filter is bit i % 64 of word i // 64; words are written with the highest byte first.
    data = np.packbits(bitmap, bitorder="little").view("<u8").astype(">u8")
    return struct.pack(">iii", 1, _PROBES, words) + data.tobytes()


def might_contain(jvm: Any, bloom: bytes, expression: str) -> Any:
    """A Column: whether the filter says yes to a Spark SQL expression of type BIGINT."""
    from pyspark.sql import functions
    from pyspark.sql.classic.column import Column

    spark = jvm.org.apache.spark.sql
    utils = getattr(getattr(spark.classic, "ExpressionUtils$"), "MODULE$")
    literal = getattr(getattr(spark.catalyst.expressions, "Literal$"), "MODULE$").apply(bytearray(bloom))
    value: Any = functions.expr(expression)
    test = spark.catalyst.expressions.BloomFilterMightContain(literal, utils.expression(value._jc))
    return Column(utils.column(test))


def _murmur(
    values: Hashes, seed: np.ndarray[Any, np.dtype[np.uint32]]
) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Murmur3 (32 bits) of 64-bit numbers, as Spark's sketches have it."""
    unsigned = values.view(np.uint64)
    h = seed
    for half in (unsigned.astype(_U32), (unsigned >> np.uint64(32)).astype(_U32)):
        k = half * _U32(0xCC9E2D51)
        k = (k << _U32(15)) | (k >> _U32(17))
        h = h ^ (k * _U32(0x1B873593))
        h = ((h << _U32(13)) | (h >> _U32(19))) * _U32(5) + _U32(0xE6546B64)
    h = h ^ _U32(8)
    h = (h ^ (h >> _U32(16))) * _U32(0x85EBCA6B)
    h = (h ^ (h >> _U32(13))) * _U32(0xC2B2AE35)
    return h ^ (h >> _U32(16))
