"""Result of a decoder with several ways of reading: columns and errors of a batch, gathered in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import MAX_MESSAGE_BYTES, Decoded
from tidemill.decode.merge import merge


class Gathered:
    """Rows are added as columns (`add`), replaced one by one (`replace`), or set to errors (`fail`), which
    take precedence. All other rows are null."""

    def __init__(self, count: int, types: Sequence[pa.DataType]) -> None:
        self._count = count
        self._types = types
        self._parts: list[tuple[np.ndarray, Sequence[pa.Array]]] = []
        self._replaced: dict[int, Sequence[Any]] = {}
        self._errors: dict[int, str] = {}

    def add(self, rows: np.ndarray, columns: Sequence[pa.Array]) -> None:
        """`rows` in ascending order."""
        self._parts.append((rows, columns))

    def replace(self, row: int, values: Sequence[Any]) -> None:
        self._replaced[row] = values

    def fail(self, row: int, error: str) -> None:
        self._errors[row] = error

    def admit(self, rows: np.ndarray, sizes: np.ndarray, prefix: str) -> np.ndarray:
        """The rows of `rows` whose messages are not too long (`sizes` has all rows); the others fail."""
        if not len(sizes) or int(sizes.max()) <= MAX_MESSAGE_BYTES:
            return rows
        long = sizes[rows] > MAX_MESSAGE_BYTES
        for row in rows[long].tolist():
            self.fail(row, f"{prefix}message of {sizes[row]} bytes is longer than {MAX_MESSAGE_BYTES}")
        return rows[~long]

    def decoded(self) -> Decoded:
        whole = len(self._parts) == 1 and len(self._parts[0][0]) == self._count
        if whole and not self._replaced and not self._errors:
            return Decoded(self._parts[0][1], None)
        if self._replaced:
            self._parts.append((np.array(list(self._replaced)), self._replacements()))
        if self._errors:
            wrong = np.array(list(self._errors))
            self._parts.append((wrong, [pa.nulls(len(wrong), t) for t in self._types]))
        columns = [
            merge(self._count, [(rows, part[i]) for rows, part in self._parts], t)
            for i, t in enumerate(self._types)
        ]
        return Decoded(columns, self._error_column())

    def _replacements(self) -> list[pa.Array]:
        values = list(self._replaced.values())
        return [pa.array([row[i] for row in values], t) for i, t in enumerate(self._types)]

    def _error_column(self) -> pa.Array | None:
        if not self._errors:
            return None
        texts: list[str | None] = [None] * self._count
        for row, text in self._errors.items():
            texts[row] = text
        return pa.array(texts, pa.string())
