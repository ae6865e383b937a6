"""Plan nodes for nested values: records, unions, arrays and maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.decode.avro.items import MAX_EMPTY_ITEMS, in_order, read_items
from tidemill.decode.avro.plan import Delimited, Leaf, Nothing, ReadNode
from tidemill.decode.binaries import Text
from tidemill.decode.cursor import MessageCursor, zigzag
from tidemill.decode.maps import repeated_keys
from tidemill.decode.merge import merge
from tidemill.decode.reader import MessageReader, Unreadable
from tidemill.types.nested import map_array


class RecordNode(ReadNode):
    """Fields in the writer's order. A step is (node, position among the reader's fields, name); without a
    position the reader does not have the field. `absent` are the reader's fields that the writer does not
    have."""

    def __init__(
        self,
        type_: pa.DataType,
        steps: Sequence[tuple[ReadNode, int | None, str]],
        absent: Sequence[tuple[ReadNode, int]],
    ) -> None:
        self.type = type_
        self._steps = steps
        self._absent = absent
        self.least = sum(node.least for node, _, _ in steps)
        sizes = [node.size for node, _, _ in steps]
        self.size = None if None in sizes else sum(size or 0 for size in sizes)

    def fields(self, cursor: MessageCursor) -> list[pa.Array]:
        """The reader's fields, in order."""
        columns: dict[int, pa.Array] = {}
        for node, place, _ in self._steps:
            if place is None:
                node.skip(cursor)
            else:
                columns[place] = node.read(cursor)
        for node, place in self._absent:
            columns[place] = node.read(cursor)
        return [columns[i] for i in range(len(columns))]

    def read(self, cursor: MessageCursor) -> pa.Array:
        return pa.Array.from_buffers(self.type, len(cursor), [None], children=self.fields(cursor))

    def skip(self, cursor: MessageCursor) -> None:
        for node, _, _ in self._steps:
            node.skip(cursor)

    def values(self, reader: MessageReader) -> list[Any]:
        """Like `fields`, for one message."""
        found: dict[int, Any] = {}
        for node, place, name in self._steps:
            try:
                value = node.one(reader)
            except Unreadable as error:
                raise error.within(name) from None
            if place is not None:
                found[place] = value
        for node, place in self._absent:
            found[place] = node.one(reader)
        return [found[i] for i in range(len(found))]

    def one(self, reader: MessageReader) -> dict[str, Any]:
        values = self.values(reader)
        return {self.type.field(i).name: value for i, value in enumerate(values)}


class UnionNode(ReadNode):
    """The number of a branch, then its value. All branches return the same type."""

    def __init__(self, type_: pa.DataType, branches: Sequence[ReadNode]) -> None:
        self.type = type_
        self._branches = branches
        self.least = 1 + min(node.least for node in branches)
        # For a nullable value: the branch that is not null.
        self._value: int | None = None
        if len(branches) == 2 and any(isinstance(node, Nothing) for node in branches):
            value = 1 if isinstance(branches[0], Nothing) else 0
            self._value = value if isinstance(branches[value], Leaf) else None

    def read(self, cursor: MessageCursor) -> pa.Array:
        which = zigzag(cursor.small_varints())
        if self._value is not None:
            return self._read_nullable(cursor, which, self._value)
        parts: list[tuple[np.ndarray, pa.Array]] = []
        known = 0
        for number, node in enumerate(self._branches):
            rows = np.flatnonzero(which == number)
            known += len(rows)
            if len(rows) == len(cursor):
                return node.read(cursor)
            if len(rows) and not isinstance(node, Nothing):
                part = cursor.take(rows)
                parts.append((rows, node.read(part)))
                cursor.put(rows, part)
        if known < len(cursor):
            cursor.suspect((which < 0) | (which >= len(self._branches)))
        return merge(len(cursor), parts, self.type)

    def _read_nullable(self, cursor: MessageCursor, which: np.ndarray, value: int) -> pa.Array:
        live = which == value
        node = self._branches[value]
        assert isinstance(node, Leaf)
        if live.all():
            return node.read_live(cursor, None)
        wrong = which != np.where(live, value, 1 - value)
        if wrong.any():
            cursor.doubt |= wrong
        return node.read_live(cursor, live)

    def skip(self, cursor: MessageCursor) -> None:
        which = zigzag(cursor.small_varints())
        cursor.suspect((which < 0) | (which >= len(self._branches)))
        for number, node in enumerate(self._branches):
            rows = np.flatnonzero(which == number)
            if len(rows):
                part = cursor.take(rows)
                node.skip(part)
                cursor.put(rows, part)

    def one(self, reader: MessageReader) -> Any:
        number = reader.zigzag()
        if not 0 <= number < len(self._branches):
            raise Unreadable(f"a union has no branch {number}")
        return self._branches[number].one(reader)


class BranchNode(ReadNode):
    """A value of one branch of a union that becomes a record: the other fields are null."""

    def __init__(self, type_: pa.DataType, place: int, node: ReadNode) -> None:
        self.type = type_
        self._place = place
        self._node = node
        self.least = node.least
        self.size = node.size

    def read(self, cursor: MessageCursor) -> pa.Array:
        value = self._node.read(cursor)
        fields = [
            value if i == self._place else pa.nulls(len(cursor), self.type.field(i).type)
            for i in range(self.type.num_fields)
        ]
        return pa.Array.from_buffers(self.type, len(cursor), [None], children=fields)

    def skip(self, cursor: MessageCursor) -> None:
        self._node.skip(cursor)

    def one(self, reader: MessageReader) -> dict[str, Any]:
        return {self.type.field(self._place).name: self._node.one(reader)}


class ArrayNode(ReadNode):
    least = 1

    def __init__(self, type_: pa.DataType, item: ReadNode) -> None:
        self.type = type_
        self._item = item

    def read(self, cursor: MessageCursor) -> pa.Array:
        counts, parts = read_items(cursor, self._item)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        items = in_order(parts, self._item.type)
        return pa.Array.from_buffers(self.type, len(cursor), [None, pa.py_buffer(offsets)], children=[items])

    def skip(self, cursor: MessageCursor) -> None:
        read_items(cursor, self._item, keep=False)

    def one(self, reader: MessageReader) -> list[Any]:
        return one_by_one(reader, self._item)


class _Entry(ReadNode):
    """A key and a value of a map."""

    def __init__(self, value: ReadNode) -> None:
        self._key = Delimited(Text())
        self._value = value
        self.type = pa.struct([pa.field("key", pa.string()), pa.field("value", value.type)])
        self.least = 1 + value.least

    def read(self, cursor: MessageCursor) -> pa.Array:
        fields = [self._key.read(cursor), self._value.read(cursor)]
        return pa.Array.from_buffers(self.type, len(cursor), [None], children=fields)

    def skip(self, cursor: MessageCursor) -> None:
        self._key.skip(cursor)
        self._value.skip(cursor)

    def one(self, reader: MessageReader) -> tuple[str, Any]:
        key = self._key.one(reader)
        try:
            return key, self._value.one(reader)
        except Unreadable as error:
            raise error.within(key) from None


class MapNode(ReadNode):
    """Of equal keys the last counts; a message with duplicates is left to the slow reader."""

    least = 1

    def __init__(self, type_: pa.DataType, value: ReadNode) -> None:
        self.type = type_
        self._entry = _Entry(value)

    def read(self, cursor: MessageCursor) -> pa.Array:
        counts, parts = read_items(cursor, self._entry)
        entries = in_order(parts, self._entry.type)
        keys, values = entries.field(0), entries.field(1)
        cursor.doubt[repeated_keys(keys, counts)] = True
        offsets = np.concatenate([[0], np.cumsum(counts)])
        if keys.null_count:  # not text, and therefore doubted
            keys = keys.fill_null("")
        return map_array(keys, values, offsets, np.ones(len(cursor), dtype=np.bool_), self.type)

    def skip(self, cursor: MessageCursor) -> None:
        read_items(cursor, self._entry, keep=False)

    def one(self, reader: MessageReader) -> list[tuple[str, Any]]:
        return list(dict(one_by_one(reader, self._entry)).items())


def one_by_one(reader: MessageReader, item: ReadNode) -> list[Any]:
    """The items of all blocks."""
    found: list[Any] = []
    while True:
        count = reader.zigzag()
        if count == 0:
            return found
        ends: int | None = None
        if count < 0:
            count = -count
            size = reader.zigzag()
            if not 0 <= size <= reader.left:
                raise Unreadable(f"a block of {size} bytes should follow, {reader.left} are left")
            ends = reader.pos + size
        if item.least and count > reader.left // item.least:
            raise Unreadable(f"{count} items should follow, {reader.left} bytes are left")
        if not item.least and count + len(found) > MAX_EMPTY_ITEMS:
            raise Unreadable(f"more than {MAX_EMPTY_ITEMS} items that may take no bytes")
        found += [item.one(reader) for _ in range(count)]
        if ends is not None and reader.pos != ends:
            raise Unreadable(f"a block has {abs(reader.pos - ends)} bytes more or less than it says")
