"""Sorting of rows within each time, and the starts of groups of equal rows.

Called by `shape`. Rows are sorted lane by lane (`sort_keys`); each lane sorts only the rows that are still
tied. So a unique first column costs one sort of numbers, whatever columns follow.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tidemill.subscribe.sort_keys import Lane

_BITS = 64


def sort_rows(times: np.ndarray, lanes: Iterable[Lane]) -> tuple[np.ndarray, np.ndarray]:
    """(order, first): the numbers of the rows in order of time (which must be ascending already) and then of
    the lanes; and for each place in that order whether its row differs from the one before it."""
    order = np.arange(len(times))
    # One more than the number of rows: after the last one another group would start.
    first = np.ones(len(times) + 1, dtype=np.bool_)
    first[1:-1] = times[1:] != times[:-1]
    for lane in lanes:
        tied = np.flatnonzero(~(first[:-1] & first[1:]))
        if not tied.size:
            break
        whole = tied.size == len(order)
        rows = order if whole else order[tied]
        codes = lane(rows)
        if codes is None:
            continue
        starts = first[:-1] if whole else first[tied]
        moved = _sorting(np.cumsum(starts) - 1, codes)
        if moved is not None:
            order[tied] = rows[moved]
            codes = codes[moved]
        changed = np.flatnonzero(codes[1:] != codes[:-1]) + 1
        first[tied[changed]] = True
    return order, first[:-1]


def _sorting(groups: np.ndarray, codes: np.ndarray) -> np.ndarray | None:
    """The sort order by group (which is ascending: 0, 1, ...), then code; None if they are sorted already."""
    packed = codes - codes.min()
    used = int(np.bitwise_or.reduce(packed))
    spare = max((used & -used).bit_length() - 1, 0)  # low bits that are zero in all: ends of short texts
    packed >>= np.uint64(spare)
    group_bits = int(groups[-1]).bit_length()
    code_bits = (used >> spare).bit_length()
    if group_bits + code_bits > _BITS:
        return np.lexsort((packed, groups))
    if group_bits:
        packed |= groups.astype(np.uint64) << np.uint64(code_bits)
    if bool((packed[1:] >= packed[:-1]).all()):
        return None
    row_bits = (len(codes) - 1).bit_length()
    if group_bits + code_bits + row_bits > _BITS:
        return np.argsort(packed)
    # With the row's number in the low bits, sorting the numbers themselves is enough, and twice as fast.
    packed = (packed << np.uint64(row_bits)) | np.arange(len(codes), dtype=np.uint64)
    packed.sort()
    return (packed & np.uint64((1 << row_bits) - 1)).astype(np.int64)
