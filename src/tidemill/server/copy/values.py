"""Conversion of COPY fields into typed columns, and its error messages.

The decoders call it with one byte column per table column. Promise: the error is that of the first bad
row, and of the first bad column in it, with PostgreSQL's context `COPY table, line n, column c: "value"`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.errors import InvalidValue, TidemillError
from tidemill.types import wire
from tidemill.types.arrow import arrow_type
from tidemill.types.kernels import pc
from tidemill.types.model import TEXT, Column
from tidemill.types.wire import InvalidField

# How much of a bad value or line is shown, as in PostgreSQL.
_SHOWN = 100


class BadCopyData(InvalidValue):
    """The data is not in the format (22P04)."""

    sqlstate = "22P04"


class CopyValues:
    """Decodes the columns of one COPY."""

    def __init__(
        self,
        columns: Sequence[Column],
        relation: str,
        timezone: str,
        defaults: Sequence[pa.Scalar | None] = (),
    ) -> None:
        self.columns = tuple(columns)
        # By column, the value for a default marker; None: the column has no default.
        self._defaults = tuple(defaults)
        self._relation = relation
        self._timezone = timezone

    def batch(
        self,
        fields: Sequence[pa.Array],
        line_of: Callable[[int], int],
        *,
        binary: bool = False,
        marked: npt.NDArray[np.bool_] | None = None,
    ) -> pa.RecordBatch:
        """Decode the fields to a batch. `line_of` returns the line of a row for errors. `fields` has a null
        for a null value, and for the column's default: `marked` says which are defaults, row after row."""
        arrays: list[pa.Array] = []
        # The first bad row, the number of the column, and the error.
        worst: tuple[int, int, InvalidField] | None = None
        if marked is not None:
            self._check_marked(marked, line_of)
        for i, (column, field) in enumerate(zip(self.columns, fields, strict=True)):
            try:
                if binary:
                    arrays.append(wire.decode_binary(field, column.type))
                else:
                    arrays.append(wire.decode_text(field, column.type, timezone=self._timezone))
            except InvalidField as e:
                if worst is None or (e.row, i) < worst[:2]:
                    worst = (e.row, i, e)
        if worst is not None:
            row, i, error = worst
            value: bytes | None = None if binary else fields[i][row].as_py()
            raise with_context(error, self.context(line_of(row), self.columns[i].name, value))
        if marked is not None:
            arrays = [self._with_defaults(a, i, marked) for i, a in enumerate(arrays)]
        schema = pa.schema([pa.field(c.name, arrow_type(c.type)) for c in self.columns])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _check_marked(self, marked: npt.NDArray[np.bool_], line_of: Callable[[int], int]) -> None:
        rows = marked.reshape(-1, len(self.columns))
        without = np.array([default is None for default in self._defaults])
        bad = rows & without
        if bool(bad.any()):
            row, column = divmod(int(np.argmax(bad)), len(self.columns))
            name = self.columns[column].name
            error = BadCopyData(
                "unexpected default marker in COPY data", detail=f'Column "{name}" has no default value.'
            )
            raise with_context(error, self.context(line_of(row)))

    def _with_defaults(self, array: pa.Array, column: int, marked: npt.NDArray[np.bool_]) -> pa.Array:
        here = marked[column :: len(self.columns)]
        default = self._defaults[column]
        if default is None or not bool(here.any()):
            return array
        return pc.if_else(pa.array(here), default.cast(array.type), array)

    def first(self, count: int) -> CopyValues:
        """The same for the first columns only."""
        return CopyValues(self.columns[:count], self._relation, self._timezone, self._defaults[:count])

    def texts(self) -> CopyValues:
        """The same columns as text, for a header line."""
        columns = [Column(c.name, TEXT) for c in self.columns]
        return CopyValues(columns, self._relation, self._timezone, [None] * len(columns))

    def context(self, line: int, column: str | None = None, value: bytes | None = None) -> str:
        """The place in the data: `COPY t, line 3, column b: "abc"`; without a column the value is the whole
        line."""
        text = f"COPY {self._relation}, line {line}" if self._relation else f"COPY, line {line}"
        if column is not None:
            text += f", column {column}"
        if value is not None:
            shown = value[: 4 * _SHOWN].decode(errors="replace")
            text += f': "{shown[:_SHOWN]}{"..." if len(shown) > _SHOWN else ""}"'
        return text


def with_context(error: TidemillError, context: str) -> InvalidValue:
    """The same error with the place added."""
    return InvalidValue(
        error.primary, detail=error.detail, hint=error.hint, sqlstate=error.sqlstate, context=context
    )
