"""Columnar walk over a batch of Protobuf messages.

The walk takes the next field of every message that has one, and passes the messages of each tag to the slot
of that field. Messages are mostly alike, so each step sees few tags. Unusual messages are doubted (`cursor`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.decode.cursor import MessageCursor
from tidemill.decode.protobuf.fields import FieldPlan, field_plan
from tidemill.decode.protobuf.slots import (
    DELIMITED,
    FIXED32,
    FIXED64,
    VARINT,
    FieldSlot,
    read_spans,
    read_words,
    varint_bytes,
)
from tidemill.types.arrow import arrow_type
from tidemill.types.model import Column, record

# After this many steps of the walk, if this few messages remain, they are left to Protobuf's parser: a step
# costs about 50 us, even for few messages.
FREE_STEPS = 32
NARROW_STEP = 64
# Tags below this are counted; larger ones (field numbers from 256 on) are sorted.
_SMALL_TAGS = 2048


class MessagePlan:
    """A message type; `columns` are its fields in SQL."""

    def __init__(self, message: Any, columns: Sequence[Column]) -> None:
        self.type = arrow_type(record(*columns))
        self._fields: list[FieldPlan] = [
            field_plan(field, column, MessagePlan)
            for field, column in zip(message.fields, columns, strict=True)
        ]
        self._by_number = {field.number: i for i, field in enumerate(message.fields)}
        numbers = {field.name: i for i, field in enumerate(message.fields)}
        # Groups of fields of which at most one may exist, and required fields.
        self._choices = [[numbers[f.name] for f in oneof.fields] for oneof in message.oneofs]
        self._required = [i for i, field in enumerate(message.fields) if field.is_required]
        # Protobuf's parser drops an entry of a map that has unknown fields.
        self._strict = bool(message.GetOptions().map_entry)

    def read(self, cursor: MessageCursor) -> list[pa.Array]:
        """The fields of the messages at the cursor, which advances to their ends."""
        slots = [field.slot(cursor) for field in self._fields]
        active = np.flatnonzero(cursor.pos < cursor.end)
        steps = 0
        while len(active):
            steps += 1
            if steps > FREE_STEPS and len(active) < NARROW_STEP:
                cursor.doubt[active] = True
                break
            part = cursor if len(active) == len(cursor) else cursor.take(active)
            self._step(part, active, slots)
            if part is not cursor:
                cursor.put(active, part)
            active = active[(cursor.pos[active] < cursor.end[active]) & ~cursor.doubt[active]]
        self._check(cursor, slots)
        return [slot.column(cursor) for slot in slots]

    def _step(self, part: MessageCursor, rows: np.ndarray, slots: Sequence[FieldSlot]) -> None:
        before = part.pos
        tags = part.small_varints()
        odd = (part.pos - before != varint_bytes(tags)) | (tags < 8) | (tags >= 2**32)
        if odd.any():
            part.doubt |= odd
            tags = np.where(odd, np.uint64(0), tags)
        for tag in _distinct(tags):
            chosen = np.flatnonzero(tags == tag)
            if len(chosen) == len(part):
                self._take(part, rows, tag, slots)
            else:
                some = part.take(chosen)
                self._take(some, rows[chosen], tag, slots)
                part.put(chosen, some)

    def _take(self, part: MessageCursor, rows: np.ndarray, tag: int, slots: Sequence[FieldSlot]) -> None:
        number, wire = tag >> 3, tag & 7
        place = self._by_number.get(number)
        if place is not None and wire in slots[place].wires:
            slots[place].take(part, rows, wire)
        elif place is not None or number == 0 or self._strict:
            part.doubt[:] = True
        elif wire == DELIMITED:
            read_spans(part)
        elif wire in (VARINT, FIXED64, FIXED32):
            read_words(part, wire)
        else:  # groups
            part.doubt[:] = True

    def _check(self, cursor: MessageCursor, slots: Sequence[FieldSlot]) -> None:
        for choice in self._choices:
            if len(choice) > 1:
                cursor.doubt |= np.sum([slots[i].seen for i in choice], axis=0) > 1
        for i in self._required:
            cursor.doubt |= ~slots[i].seen


def _distinct(tags: np.ndarray) -> list[int]:
    first = int(tags[0])
    if bool((tags == first).all()):
        return [first]
    if int(tags.max()) < _SMALL_TAGS:
        return np.flatnonzero(np.bincount(tags.astype(np.int64))).tolist()
    return np.unique(tags).tolist()
