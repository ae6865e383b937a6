"""Columnar reading of Debezium's changes in JSON: messages of one shape at once (`decode.shapes`).

Called by `json_images`, which reads all other messages one by one. A shape has the members of `before`,
`after` and `source`, and where the values of a message stand in them; so the rows and the fields of the
source are rearrangements of spans, and nothing is parsed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tidemill.decode.debezium.json_message import scan
from tidemill.decode.json import CHUNK, FEW, MAX_NEW_SHAPES, MAX_SHAPES
from tidemill.decode.shapes import Documents, JsonShape, Piece
from tidemill.types.columns import spans
from tidemill.types.kernels import pc

_NAMES = ('{"before":', ',"after":', ',"source":')
_QUOTE, _NULL = ord('"'), ord("n")
# A shape is kept if it is that of so large a part of the messages that were compared with it.
_WORTH = 4
# Where most messages have no shape that is worth it (arrays of any length), shapes are not tried in the next
# 1, 2, 4, ... chunks, and so many at most.
_MAX_PAUSE = 32


@dataclass(frozen=True, slots=True)
class _Row:
    """`before` or `after` in a shape: its text, and the values of its members by name; None for null, which
    is the value `at`."""

    at: int
    output: tuple[Piece, ...]
    members: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class ChangeShape:
    whole: JsonShape
    before: _Row
    after: _Row
    source: Mapping[str, int]
    op: int

    @staticmethod
    def of(text: str) -> ChangeShape | None:
        """The shape of a message whose members stand as Debezium writes them; None if it has none."""
        try:
            found = JsonShape.with_values(text)
            if found is None:
                return None
            at, parts = 0, list[tuple[int, int, Any]]()
            for name in _NAMES:
                if not text.startswith(name, at):
                    return None
                start = at + len(name)
                value, at = scan(text, start)
                parts.append((start, at, value))
            rest, _ = scan("{" + text[at + 1 :], 0)
        except (ValueError, RecursionError, StopIteration):
            return None
        whole, values = found
        starts = [start for start, _ in values]

        def base(place: int) -> int:
            return sum(start < place for start in starts)

        rows = [_row(text[start:stop], value, base(start)) for start, stop, value in parts[:2]]
        source = _scalars(parts[2][2], base(parts[2][0]))
        op = _place_of("op", rest, base(at))
        before, after = rows
        if before is None or after is None or source is None or op is None:
            return None
        if not rest.keys().isdisjoint(("before", "after", "source")):
            return None
        return ChangeShape(whole, before, after, source, op)


def _row(text: str, value: Any, base: int) -> _Row | None:
    if value is None:
        return _Row(base, (base,), None)
    shape = JsonShape.of(text)
    if not isinstance(value, dict) or shape is None:
        return None
    output = tuple(piece if isinstance(piece, str) else piece + base for piece in shape.output)
    members: dict[str, int] = {}
    for name, member in cast("dict[str, Any]", value).items():
        if not isinstance(member, dict | list):
            members[name] = base
        base += _count(member)
    return _Row(0, output, members)


def _scalars(value: Any, base: int) -> Mapping[str, int] | None:
    if not isinstance(value, dict) or any(isinstance(v, dict | list) for v in value.values()):
        return None
    return {name: base + n for n, name in enumerate(cast("dict[str, Any]", value))}


def _place_of(wanted: str, members: Mapping[str, Any], base: int) -> int | None:
    for name, value in members.items():
        if name == wanted:
            return None if isinstance(value, dict | list) else base
        base += _count(value)
    return None


def _count(value: Any) -> int:
    """Of values that are neither objects nor arrays."""
    if isinstance(value, dict):
        return sum(map(_count, cast("dict[str, Any]", value).values()))
    return sum(map(_count, cast("list[Any]", value))) if isinstance(value, list) else 1


@dataclass(frozen=True, slots=True)
class ChangeGroup:
    """Messages of one shape: their rows in the batch. `before` and `after` are None where they are null."""

    rows: np.ndarray
    op: np.ndarray
    before: pa.Array | None
    after: pa.Array | None
    foreign: np.ndarray
    field: Callable[[str], pa.Array | None]


class ChangeColumns:
    """Reads messages by their shapes; keeps those that it has learned."""

    def __init__(self) -> None:
        # The most common first.
        self._shapes: list[ChangeShape] = []
        self._key: _KeyShape | None = None
        # For how many chunks nothing is tried, and how many it was the last time.
        self._pause = self._paused = 0

    def read(self, texts: pa.Array, keys: pa.Array, rows: np.ndarray) -> list[ChangeGroup]:
        """Those of `rows` (ascending) that have known shapes. `texts` and `keys` (binary) are messages and
        their keys."""
        groups: list[ChangeGroup] = []
        for first in range(0, len(texts), CHUNK):
            mine = rows[np.searchsorted(rows, first) : np.searchsorted(rows, first + CHUNK)]
            if self._pause:
                self._pause -= 1
            elif len(mine) >= FEW:
                groups += self._chunk(
                    texts.slice(first, CHUNK), keys.slice(first, CHUNK), mine - first, first
                )
        return groups

    def _chunk(self, texts: pa.Array, keys: pa.Array, rows: np.ndarray, first: int) -> list[ChangeGroup]:
        documents = Documents(texts)
        named = self._key_values(keys, rows)
        if named is None:
            return []
        left = named.rows
        groups: list[ChangeGroup] = []
        kept: list[tuple[int, ChangeShape]] = []

        def match(shape: ChangeShape) -> np.ndarray:
            group = _matched(documents, named, shape, left, first)
            if group is not None:
                groups.append(group)
            count = 0 if group is None else len(group.rows)
            if count * _WORTH >= len(left):
                kept.append((count, shape))
            return left if group is None else np.setdiff1d(left, group.rows - first, assume_unique=True)

        for shape in self._shapes:
            left = match(shape)
        for attempt in range(MAX_NEW_SHAPES):
            plain = left[~documents.odd[left]]
            if len(plain) < FEW:
                break
            shape = ChangeShape.of(texts[int(_sample(plain, attempt))].as_py())
            if shape is not None and shape not in self._shapes:
                left = match(shape)
        kept.sort(key=lambda each: -each[0])
        self._shapes = [shape for _, shape in kept][:MAX_SHAPES]
        good = 2 * len(left) <= len(rows)
        self._paused = 0 if good else min(max(2 * self._paused, 1), _MAX_PAUSE)
        self._pause = self._paused
        return groups

    def _key_values(self, keys: pa.Array, rows: np.ndarray) -> _KeyValues | None:
        """Those of keys of the shape that is known, if most have it, else of another; None without one."""
        documents = Documents(keys.view(pa.string()))  # matching compares bytes
        for attempt in range(1 + MAX_NEW_SHAPES):
            known = self._key
            if attempt:
                known = _KeyShape.of(keys[int(_sample(rows, attempt - 1))].as_py())
            if known is None:
                continue
            found, edges = documents.edges(known.shape, rows)
            if 2 * len(found) >= len(rows):
                self._key = known
                places = np.zeros(len(keys), np.int64)
                places[found] = np.arange(len(found))
                return _KeyValues(known.names, found, documents, edges, places)
        return None


def _matched(
    documents: Documents, keys: _KeyValues, shape: ChangeShape, rows: np.ndarray, first: int
) -> ChangeGroup | None:
    """Those of the rows that have the shape; None if none has. `first` is the chunk's place in the batch."""
    if not len(rows):
        return None
    found, edges = documents.edges(shape.whole, rows)
    octets = documents.bytes.octets
    for row in (shape.before, shape.after):
        if row.members is None:
            null = octets[edges[:, 2 * row.at]] == _NULL
            if not null.all():
                found, edges = found[null], edges[null]
    if not len(found):
        return None
    foreign = np.zeros(len(found), np.bool_)
    for row in (shape.before, shape.after):
        if row.members is not None:
            foreign |= keys.differ(documents, edges, row.members, found)
    start, stop = edges[:, 2 * shape.op], edges[:, 2 * shape.op + 1]
    single = (octets[start] == _QUOTE) & (stop - start == 3)
    before, after = (
        None if row.members is None else documents.arranged(edges, row.output)
        for row in (shape.before, shape.after)
    )

    def field(name: str) -> pa.Array | None:
        at = shape.source.get(name)
        return None if at is None else _unquoted(documents, edges[:, 2 * at : 2 * at + 2])

    op = np.where(single, octets[start + 1], np.uint8(0))
    return ChangeGroup(found + first, op, before, after, foreign, field)


def _sample(rows: np.ndarray, attempt: int) -> np.int64:
    """One of the rows, not the first nor the last, which may be the odd ones; another one in each attempt."""
    return rows[(attempt + 1) * len(rows) // (MAX_NEW_SHAPES + 1)]


@dataclass(frozen=True, slots=True)
class _KeyShape:
    """An object of plain values."""

    shape: JsonShape
    names: tuple[str, ...]

    @staticmethod
    def of(key: bytes) -> _KeyShape | None:
        try:
            members = json.loads(key)
            shape = JsonShape.of(key.decode())
        except (ValueError, RecursionError):
            return None
        if shape is None or not isinstance(members, dict):
            return None
        named = cast("dict[str, Any]", members)
        plain = bool(named) and not any(isinstance(value, dict | list) for value in named.values())
        return _KeyShape(shape, tuple(named)) if plain else None


@dataclass(frozen=True, slots=True)
class _KeyValues:
    """The values of the keys of a chunk, by their names."""

    names: tuple[str, ...]
    rows: np.ndarray
    documents: Documents
    edges: np.ndarray
    places: np.ndarray  # of each row of the chunk among `rows`

    def differ(
        self, documents: Documents, edges: np.ndarray, members: Mapping[str, int], rows: np.ndarray
    ) -> np.ndarray:
        """Of which of the rows a value of the key is missing, or is another one."""
        mine = self.edges[self.places[rows]]
        found = np.zeros(len(rows), np.bool_)
        for n, name in enumerate(self.names):
            if name not in members:
                return np.ones(len(rows), np.bool_)
            theirs = documents.arranged(edges, (members[name],))
            own = self.documents.arranged(mine, (n,))
            found |= pc.not_equal(theirs, own).to_numpy(zero_copy_only=False)
        return found


def _unquoted(documents: Documents, edges: np.ndarray) -> pa.Array:
    """Values as text, null where they are null."""
    first = documents.bytes.octets[edges[:, 0]]
    quoted = (first == _QUOTE).astype(edges.dtype)
    inner = np.column_stack([edges[:, 0] + quoted, edges[:, 1] - quoted])
    found = documents.arranged(inner, (0,))
    null = first == _NULL
    if null.any():
        found = pc.if_else(pa.array(null), None, found)
    return _unescaped(found)


def _unescaped(column: pa.Array) -> pa.Array:
    if b"\\" not in _octets(column):
        return column
    found = pc.replace_substring(column, '\\"', '"')
    if b"\\" not in _octets(found):
        return found
    texts = [None if text is None else json.loads(f'"{text}"') for text in column.to_pylist()]
    return pa.array(texts, pa.string())


def _octets(column: pa.Array) -> bytes:
    offsets, data = spans(column)
    return data[offsets[0] : offsets[-1]].tobytes()
