"""Columnar JSON: converts messages of one shape to canonical form at once.

Messages of a topic look alike: the same keys in the same order, with the same whitespace. A shape is learned
from one message: the bytes between its values (literals), and the positions of the values in canonical jsonb.
numpy compares the other messages with it. Every literal must match byte by byte. Every value must be a string
whose escapes stay unchanged, or a number or word in canonical form. The canonical text is then a
rearrangement of spans. All other messages do not match and are left to `types.json`, which defines jsonb.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.decode.cursor import PAD, Bytes
from tidemill.decode.tokens import plain_tokens
from tidemill.types.columns import spans

# Values in one shape. More would make the table of spans large, and flat documents of this size do not occur.
MAX_VALUES = 512

# The escapes that jsonb writes as everybody does; others (`\u00e9`, `\/`) it writes otherwise.
_IS_KEPT = np.zeros(256, dtype=np.bool_)
_IS_KEPT[np.frombuffer(b'"\\nrtbf', dtype=np.uint8)] = True
_TOKEN = re.compile(
    r'[ ]*(?:([{}\[\],:])|("(?:[^"\\\x00-\x1f]|\\["\\nrtbf])*")|(-?[0-9][0-9.eE+-]*|true|false|null))',
    re.ASCII,
)
# Position of a value in the output.
Piece = str | int


@dataclass(frozen=True, slots=True)
class JsonShape:
    """`literals` are the constant texts before, between and after the values, one more than values. `output`
    is the canonical text: constants, and the numbers of values."""

    literals: tuple[bytes, ...]
    output: tuple[Piece, ...]

    @staticmethod
    def of(text: str) -> JsonShape | None:
        """The shape of a message; None if there is none to learn from it."""
        found = JsonShape.with_values(text)
        return None if found is None else found[0]

    @staticmethod
    def with_values(text: str) -> tuple[JsonShape, list[tuple[int, int]]] | None:
        """The shape of a message, and where its values start and stop in it."""
        scanner = _Scanner(text)
        shape = scanner.shape()
        return None if shape is None else (shape, scanner.values)


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.values: list[tuple[int, int]] = []

    def shape(self) -> JsonShape | None:
        pieces = self._value()
        if pieces is None or self.text[self.at :].strip(" ") or not 0 < len(self.values) <= MAX_VALUES:
            return None
        edges = [0, *(edge for span in self.values for edge in span), len(self.text)]
        literals = [self.text[a:b].encode() for a, b in zip(edges[::2], edges[1::2], strict=True)]
        return JsonShape(tuple(literals), _joined(pieces))

    def _next(self) -> re.Match[str] | None:
        found = _TOKEN.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found

    def _value(self) -> list[Piece] | None:
        token = self._next()
        if token is None:
            return None
        if token[2] is not None or token[3] is not None:
            self.values.append(token.span(2 if token[2] is not None else 3))
            return [len(self.values) - 1]
        if token[1] == "{":
            return self._object()
        return self._array() if token[1] == "[" else None

    def _object(self) -> list[Piece] | None:
        members: dict[str, list[Piece]] = {}
        separator = "{"
        while True:
            key = self._next()
            if key is not None and key[1] == "}" and separator == "{":
                return ["{}"]
            colon = self._next()
            if key is None or key[2] is None or colon is None or colon[1] != ":":
                return None
            if key[2] in members or "\\" in key[2]:
                return None
            value = self._value()
            comma = self._next()
            if value is None or comma is None:
                return None
            members[key[2]] = value
            separator = comma[1]
            if separator == "}":
                break
            if separator != ",":
                return None
        pieces: list[Piece] = ["{"]
        # A key's quotes count on both sides alike.
        for key_text in sorted(members, key=lambda k: (len(k.encode()), k.encode())):
            pieces += [f"{key_text}: ", *members[key_text], ", "]
        pieces[-1] = "}"
        return pieces

    def _array(self) -> list[Piece] | None:
        """Only of a fixed length; other lengths are other shapes."""
        pieces: list[Piece] = ["["]
        before = self.at
        closing = self._next()
        if closing is not None and closing[1] == "]":
            return ["[]"]
        self.at = before
        while True:
            value = self._value()
            comma = self._next()
            if value is None or comma is None or comma[1] not in (",", "]"):
                return None
            pieces += [*value, ", "]
            if comma[1] == "]":
                pieces[-1] = "]"
                return pieces


def _joined(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Neighbouring constants as one."""
    result: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and result and isinstance(result[-1], str):
            result[-1] += piece
        else:
            result.append(piece)
    return tuple(result)


class Documents:
    """A column of texts (valid, without nulls), analysed once for all shapes."""

    def __init__(self, texts: pa.Array) -> None:
        offsets, data = spans(texts)
        first = int(offsets[0])
        self.bytes = Bytes(data[first : int(offsets[-1])])
        edges = offsets.astype(np.int64) + (PAD - first)
        self.start, self.end = edges[:-1], edges[1:]
        self._places: dict[int, np.ndarray] = {}
        octets = self.bytes.octets
        quotes = octets == ord('"')
        # Documents with control characters (blanks other than spaces too), or with escapes that are not kept
        # as they are, match no shape.
        self.odd = np.zeros(len(texts), dtype=np.bool_)
        control = np.flatnonzero(octets[PAD:-PAD] < 0x20) + PAD
        self.odd[np.searchsorted(edges, control, side="right") - 1] = True
        slashes = np.flatnonzero(octets == ord("\\"))
        if len(slashes):
            escaped = _escaped(slashes)
            owner = np.searchsorted(edges, escaped - 1, side="right") - 1
            kept = _IS_KEPT[octets[escaped]] & (escaped < self.end[owner])
            self.odd[owner[~kept]] = True
            quotes[escaped[kept]] = False
        places = np.flatnonzero(quotes)
        # Two more than exist, because the position after the last one is never examined.
        self.quotes = np.concatenate([places, [len(octets)] * 2])
        # Per document, the number of its first quote.
        self.first_quote = np.searchsorted(places, self.start)

    def places(self, octet: int) -> np.ndarray:
        """The positions of the byte, and a position after all of them."""
        if octet not in self._places:
            octets = self.bytes.octets
            self._places[octet] = np.append(np.flatnonzero(octets == octet), len(octets))
        return self._places[octet]

    def match(self, shape: JsonShape, rows: np.ndarray) -> tuple[np.ndarray, pa.Array]:
        """Which of `rows` have the shape, and their canonical texts."""
        found, edges = self.edges(shape, rows)
        return found, self.arranged(edges, shape.output)

    def arranged(self, edges: np.ndarray, output: Sequence[Piece]) -> pa.Array:
        """The texts of an output, from where the values start and stop."""
        return _rearranged(self.bytes.octets, edges, output)

    def edges(self, shape: JsonShape, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of `rows` have the shape, and where their values start and stop: two columns for each."""
        count = len(shape.literals) - 1
        walk = _Walk(self, rows)
        edges = np.empty((len(rows), 2 * count), dtype=np.int32)
        for i, literal in enumerate(shape.literals):
            if not walk.literal(literal):
                return rows[:0], edges[:0]
            if i < count:
                edges[:, 2 * i], edges[:, 2 * i + 1] = walk.value(shape.literals[i + 1], last=i + 1 == count)
        good = walk.good & (walk.pos == walk.end)
        return rows[good], edges[good]


def _escaped(slashes: np.ndarray) -> np.ndarray:
    """The positions that backslashes escape: those after the first, third, ... of adjacent backslashes."""
    first = np.ones(len(slashes), dtype=np.bool_)
    first[1:] = slashes[1:] != slashes[:-1] + 1
    order = np.arange(len(slashes))
    run = np.maximum.accumulate(np.where(first, order, 0))
    return slashes[(order - run) % 2 == 0] + 1


class _Walk:
    """A position in each document, advanced over literals and values; `good` marks the matches."""

    def __init__(self, documents: Documents, rows: np.ndarray) -> None:
        self._documents = documents
        self._bytes = documents.bytes
        self._octets = documents.bytes.octets
        self._words = documents.bytes.words
        self._quotes = documents.quotes
        self.pos = documents.start[rows]
        self.end = documents.end[rows]
        self.good = ~documents.odd[rows]
        # The number of the next quote at or behind the place.
        self._quote = documents.first_quote[rows]

    def literal(self, literal: bytes) -> bool:
        """Go over it; False when it is nowhere."""
        size = len(literal)
        self.good &= self.pos + size <= self.end
        if not self.good.any():
            return False
        # Documents that are too short use the beginning of the bytes instead, which are long enough.
        at = np.where(self.good, self.pos, PAD)
        for offset in range(0, size, 8):
            part = literal[offset : offset + 8]
            words = self._words[at + offset]
            if len(part) < 8:
                words = words & np.uint64((1 << 8 * len(part)) - 1)
            self.good &= words == np.uint64(int.from_bytes(part, "little"))
        self.pos = at + size
        self._quote = self._quote + literal.count(b'"')
        return bool(self.good.any())

    def value(self, following: bytes, *, last: bool) -> tuple[np.ndarray, np.ndarray]:
        """Advance over a value that `following` ends; returns the start and end of the kept text."""
        start = np.where(self.good, self.pos, PAD)
        quoted = self._octets[start] == ord('"')
        stop = np.where(quoted, self._closing(), self._bare_stop(start, following, last=last))
        self.good &= (stop > start) & (stop <= self.end)
        self._quote = self._quote + 2 * quoted
        self.pos = stop
        bare = np.flatnonzero(self.good & ~quoted)
        if len(bare):
            self.good[bare], trimmed = plain_tokens(self._bytes, start[bare], stop[bare])
            stop = stop.copy()
            stop[bare] = trimmed
        return start, stop

    def _bare_stop(self, start: np.ndarray, following: bytes, *, last: bool) -> np.ndarray:
        """The end of a non-string value before `following`: the end of the document, the next quote, or the
        next such byte (which a non-string value never contains)."""
        if last:
            return self.end - len(following)
        if b'"' in following:
            next_quote = self._quotes[np.minimum(self._quote, len(self._quotes) - 1)]
            return next_quote - following.index(b'"')
        places = self._documents.places(following[0])
        return places[np.searchsorted(places, start)]

    def _closing(self) -> np.ndarray:
        return self._quotes[np.minimum(self._quote + 1, len(self._quotes) - 1)] + 1


def _rearranged(octets: np.ndarray, edges: np.ndarray, output: Sequence[Piece]) -> pa.Array:
    """The output of each document; `edges` are the start and end of its values. All spans, including those
    between values, are values of one binary array over the bytes, and the constants are after the bytes.
    Taken in the order of the output, they are adjacent, and form the text."""
    count, width = edges.shape
    if count == 0:
        return pa.array([], pa.string())
    constants = [piece.encode() for piece in output if isinstance(piece, str)]
    data = np.concatenate([octets, np.frombuffer(b"".join(constants), dtype=np.uint8)])
    tail = len(octets) + np.concatenate([[0], np.cumsum([len(c) for c in constants])])
    offsets = np.concatenate([edges.ravel(), tail.astype(np.int32)])
    source = pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    chosen = np.empty((count, len(output)), dtype=np.int32)
    base = np.arange(count, dtype=np.int32) * width
    constant = count * width
    for i, piece in enumerate(output):
        if isinstance(piece, str):
            chosen[:, i] = constant
            constant += 1
        else:
            chosen[:, i] = base + 2 * piece
    pieces = source.take(pa.array(chosen.ravel()))
    _, ends, text = pieces.buffers()
    lines = np.frombuffer(ends, dtype=np.int32, count=len(pieces) + 1)[:: len(output)]
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(np.ascontiguousarray(lines)), text])
