"""JSON decoder: messages to jsonb, in the canonical text of the storage (`types.json`).

Called by `formats`, and by `avro.debezium` for JSON texts. Messages of the same shape are decoded by columns
(`shapes`), which is nearly always the case; the others one by one.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import Decoded
from tidemill.decode.gather import Gathered
from tidemill.decode.merge import merge
from tidemill.decode.shapes import Documents, JsonShape
from tidemill.decode.utf8 import texts, why_no_text
from tidemill.errors import TidemillError
from tidemill.types.arrow import arrow_type
from tidemill.types.columns import spans, valid_mask
from tidemill.types.json import canonical_json
from tidemill.types.model import JSONB, Column

PREFIX = "json deserialization error: "
# Maximum nesting of objects and arrays. The depth of Python's parser depends on the caller's stack; the
# result for a message must not.
MAX_DEPTH = 200
# The number of shapes that are kept, the last used first, and the number of new ones that are learned from a
# batch, each of which costs a pass over all of its messages.
MAX_SHAPES = 16
MAX_NEW_SHAPES = 4
# Fewer messages than this are not worth a shape.
FEW = 8
# Messages that are decoded together. With more, the intermediate columns exceed the processor's caches
# (measured: 1.1M messages/s with 8,192, 0.45M with 65,536).
CHUNK = 8192

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[][{}]', re.DOTALL)


def canonical_value(text: str) -> str | TidemillError:
    """The canonical text, or the error."""
    try:
        if text.count("{") + text.count("[") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
            return TidemillError(f"objects and arrays are nested more than {MAX_DEPTH} deep")
        return canonical_json(text)
    except TidemillError as error:
        return error


def _depth(text: str) -> int:
    depth = deepest = 0
    for sign in _BRACKETS.findall(text):
        if sign in ("{", "["):
            depth += 1
            deepest = max(deepest, depth)
        elif sign in ("}", "]"):
            depth -= 1
    return deepest


class JsonColumns:
    """Makes columns canonical. Keeps the shapes that it has learned."""

    def __init__(self) -> None:
        self._shapes: list[JsonShape] = []

    def canonical(self, column: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """The canonical texts (null for an invalid one), and the error of each row."""
        if len(column) <= CHUNK:
            return self._chunk(column)
        parts: list[pa.Array] = []
        errors: dict[int, str] = {}
        for first in range(0, len(column), CHUNK):
            part, wrong = self._chunk(column.slice(first, CHUNK))
            parts.append(part)
            errors |= {first + row: why for row, why in wrong.items()}
        return pa.concat_arrays(parts), errors

    def _chunk(self, column: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        rows = np.flatnonzero(valid_mask(column))
        if len(rows) < FEW:
            return self._one_by_one(column, rows, [])
        documents = Documents(column)
        parts: list[tuple[np.ndarray, pa.Array]] = []
        for shape in tuple(self._shapes):
            rows = self._match(documents, shape, rows, parts)
            if not len(rows):
                break
        rows = self._learn(column, documents, rows, parts)
        return self._one_by_one(column, rows, parts)

    def _match(
        self,
        documents: Documents,
        shape: JsonShape,
        rows: np.ndarray,
        parts: list[tuple[np.ndarray, pa.Array]],
    ) -> np.ndarray:
        """The remaining rows."""
        found, values = documents.match(shape, rows)
        if not len(found):
            return rows
        parts.append((found, values))
        self._shapes = [shape, *(s for s in self._shapes if s is not shape)][:MAX_SHAPES]
        return np.setdiff1d(rows, found, assume_unique=True)

    def _learn(
        self,
        column: pa.Array,
        documents: Documents,
        rows: np.ndarray,
        parts: list[tuple[np.ndarray, pa.Array]],
    ) -> np.ndarray:
        for _ in range(MAX_NEW_SHAPES):
            plain = rows[~documents.odd[rows]]
            if len(plain) < FEW:
                break
            # From the middle, because the first and the last may be untypical.
            shape = JsonShape.of(column[int(plain[len(plain) // 2])].as_py())
            if shape is None or shape in self._shapes:
                break
            before = len(rows)
            rows = self._match(documents, shape, rows, parts)
            if len(rows) == before:
                break
        return rows

    def _one_by_one(
        self, column: pa.Array, rows: np.ndarray, parts: list[tuple[np.ndarray, pa.Array]]
    ) -> tuple[pa.Array, dict[int, str]]:
        errors: dict[int, str] = {}
        if len(rows):
            values: list[str | None] = []
            for row, text in zip(rows.tolist(), column.take(pa.array(rows)).to_pylist(), strict=True):
                found = canonical_value(text)
                if isinstance(found, TidemillError):
                    errors[row] = found.primary + (f": {found.detail}" if found.detail else "")
                    values.append(None)
                else:
                    values.append(found)
            parts.append((rows, pa.array(values, pa.string())))
        return merge(len(column), parts, pa.string()), errors


class JsonDecoder:
    columns = (Column("data", JSONB),)

    def __init__(self) -> None:
        self._canonical = JsonColumns()

    def decode(self, messages: pa.Array) -> Decoded:
        gathered = Gathered(len(messages), [arrow_type(JSONB)])
        sizes = np.diff(spans(messages)[0])
        everything = np.arange(len(messages))
        admitted = gathered.admit(np.flatnonzero(valid_mask(messages)), sizes, PREFIX)
        if len(admitted) < len(messages) - messages.null_count:
            messages = merge(len(messages), [(admitted, messages.take(pa.array(admitted)))], pa.binary())
        text, wrong = texts(messages)
        values, errors = self._canonical.canonical(text)
        gathered.add(everything, [values])
        for row, why in errors.items():
            gathered.fail(row, PREFIX + why)
        if wrong is not None:
            for row in np.flatnonzero(wrong).tolist():
                gathered.fail(row, PREFIX + str(why_no_text(messages[row].as_py())))
        return gathered.decoded()
