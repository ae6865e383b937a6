"""Items of arrays and maps: the first item of each message, then the second of each, and so on.

Items of equal size in bytes are read at once, wherever they are. The same applies to the numbers of long
arrays.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.decode.avro.plan import ReadNode
from tidemill.decode.cursor import MessageCursor, zigzag

# Items that may take no bytes (nulls, empty records) are not limited by the message's length. Real messages
# have few.
MAX_EMPTY_ITEMS = 1000
# A wave is the next item of each message that has one. It costs about 30 us for each value in an item, even
# for few messages. After this many waves, if this few messages remain, they are read one by one.
FREE_WAVES = 16
NARROW_WAVE = 64
# Numbers of one message that are read together: limits the intermediate columns to about 100 MB.
RUN_ITEMS = 1_000_000
_MAX_VARINT_BYTES = 10

_Parts = list[tuple[np.ndarray, pa.Array]]


def read_items(cursor: MessageCursor, item: ReadNode, *, keep: bool = True) -> tuple[np.ndarray, _Parts]:
    """The number of items of each message, and the items in parts: (rows of the cursor, their next items)."""
    counts = np.zeros(len(cursor), dtype=np.int64)
    parts: _Parts = []
    active = np.arange(len(cursor))
    blocks = waves = 0
    while len(active):
        blocks += 1
        if blocks > FREE_WAVES and len(active) < NARROW_WAVE:
            cursor.doubt[active] = True
            break
        part = cursor.take(active)
        count, ends = _block(part, item, counts[active])
        cursor.put(active, part)
        going = count > 0
        active, count, ends = active[going], count[going], ends[going]
        if item.size is not None:
            _equal_items(cursor, item, active, count, parts, keep=keep)
            counts[active] += count
        else:
            waves = _waves(cursor, item, active, count, counts, parts, waves, keep=keep)
        cursor.doubt[active[(ends >= 0) & (cursor.pos[active] != ends)]] = True
        active = active[~cursor.doubt[active]]
    return counts, parts


def _block(part: MessageCursor, item: ReadNode, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of items of the next block, 0 after the last; and its stated end, or -1."""
    count = zigzag(part.small_varints())
    ends = np.full(len(part), -1, dtype=np.int64)
    sized = np.flatnonzero(count < 0)
    if len(sized):
        some = part.take(sized)
        size = zigzag(some.varints())
        wrong = (size < 0) | (size > some.end - some.pos)
        some.doubt |= wrong
        ends[sized] = some.pos + np.where(wrong, 0, size)
        part.put(sized, some)
        count = np.abs(count)
    room = (part.end - part.pos) // item.least if item.least else MAX_EMPTY_ITEMS - seen
    part.doubt |= (count < 0) | (count > room)
    return np.where(part.doubt, 0, count), ends


def _equal_items(
    cursor: MessageCursor, item: ReadNode, active: np.ndarray, count: np.ndarray, parts: _Parts, *, keep: bool
) -> None:
    size = item.size or 0
    start = cursor.pos[active]
    cursor.pos[active] = start + count * size
    if not keep or not len(active):
        return
    rows = np.repeat(active, count)
    before = np.cumsum(count) - count
    pos = np.repeat(start - before * size, count) + np.arange(len(rows)) * size
    items = MessageCursor(cursor.bytes, pos, np.repeat(cursor.end[active], count))
    parts.append((rows, item.read(items)))
    cursor.doubt[rows[items.doubt]] = True


def _waves(
    cursor: MessageCursor,
    item: ReadNode,
    active: np.ndarray,
    count: np.ndarray,
    counts: np.ndarray,
    parts: _Parts,
    waves: int,
    *,
    keep: bool,
) -> int:
    left = count
    while len(active):
        waves += 1
        if waves > FREE_WAVES and len(active) < NARROW_WAVE:
            if item.is_varint:
                for row, number in zip(active.tolist(), left.tolist(), strict=True):
                    counts[row] += _run(cursor, item, row, number, parts if keep else [])
            else:
                cursor.doubt[active] = True
            break
        part = cursor.take(active)
        if keep:
            parts.append((active, item.read(part)))
        else:
            item.skip(part)
        cursor.put(active, part)
        counts[active] += 1
        left = left - 1
        on = (left > 0) & ~part.doubt
        active, left = active[on], left[on]
    return waves


def _run(cursor: MessageCursor, item: ReadNode, row: int, count: int, parts: _Parts) -> int:
    """The next `count` numbers of one message, which end at bytes below 128. Returns how many exist."""
    pos, end = int(cursor.pos[row]), int(cursor.end[row])
    done = 0
    while done < count:
        room = min(count - done, RUN_ITEMS)
        window = cursor.bytes.octets[pos : min(end, pos + room * _MAX_VARINT_BYTES)]
        stops = np.flatnonzero(window < 0x80)[:room]
        if not len(stops):
            break
        starts = pos + np.concatenate([[0], stops[:-1] + 1])
        numbers = MessageCursor(cursor.bytes, starts, np.full(len(starts), end))
        values = item.read(numbers)
        if numbers.doubt.any():
            break
        parts.append((np.full(len(starts), row), values))
        pos += int(stops[-1]) + 1
        done += len(stops)
    cursor.pos[row] = pos
    cursor.doubt[row] |= done < count
    return done


def in_order(parts: _Parts, type_: pa.DataType) -> pa.Array:
    """All items of the first row, then all of the second, ..."""
    if not parts:
        return pa.array([], type_)
    if len(parts) == 1:
        return parts[0][1]
    items = pa.concat_arrays([array for _, array in parts])
    rows = np.concatenate([rows for rows, _ in parts])
    return items.take(pa.array(np.argsort(rows, kind="stable")))
