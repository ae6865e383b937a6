"""Messages of rows as updates of the tables, by columns.

Called by `reader` in the tasks, for one chunk of messages after the other. An insert is a row with diff 1, a
delete one with diff -1, an update is both: tables have REPLICA IDENTITY FULL, so the old row is in the stream
as a whole. Rows of a table are in the order of their messages, the old row before the new one.

What makes the contents of a table unknown from here on is a row with an error, in that table alone: TRUNCATE,
columns that are gone or have another type, another replica identity, and what `receiver` found out beside the
stream. Columns that were added are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.sources.contract import MAKE_ANEW, SourceBatch
from tidemill.sources.postgres.definition import ReplicatedTable
from tidemill.sources.postgres.pgoutput import (
    DELETE,
    FAULT,
    FULL_IDENTITY,
    INSERT,
    KEY,
    NEW,
    OLD,
    RELATION,
    TRUNCATE,
    UPDATE,
    ProtocolFault,
    Relation,
    parse_fault,
    parse_relation,
    parse_truncate,
)
from tidemill.sources.postgres.segment import Chunk
from tidemill.sources.postgres.tuples import TupleColumn, scan_tuples, text_column
from tidemill.sources.postgres.values import decode_rows
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, storage_schema

_IDENTITIES = {"d": "DEFAULT", "n": "NOTHING", "i": "USING INDEX", "f": "FULL"}


def error_row(table: ReplicatedTable, text: str) -> pa.RecordBatch:
    """One row that makes every read of the table fail with the text."""
    fields = [field.with_nullable(True) for field in storage_schema(table.desc)]
    schema = pa.schema([*fields, pa.field(DIFF_COLUMN, pa.int64()), pa.field(ERROR_COLUMN, pa.string())])
    columns = [pa.nulls(1, field.type) for field in fields]
    return pa.RecordBatch.from_arrays(
        [*columns, pa.array([1], pa.int64()), pa.array([text])], schema=pa.schema([*schema])
    )


def table_error(what: str, detail: str) -> str:
    """The text of a table's error: all that is to be done is in it."""
    return f"{what}\n{detail} {MAKE_ANEW}"


def truncated(table: ReplicatedTable) -> str:
    return table_error(
        f"table {table.shown} was truncated upstream",
        "TRUNCATE does not say which rows it removes.",
    )


def mismatch(table: ReplicatedTable, relation: Relation) -> str | None:
    """Why the table is no longer as it was described, as the text of its error."""
    # (The changes of a partitioned table are those of its partitions.)
    if relation.identity != FULL_IDENTITY and not table.partitioned:
        found = _IDENTITIES.get(relation.identity, relation.identity)
        return table_error(
            f"table {table.shown} no longer has REPLICA IDENTITY FULL",
            f"It has {found}: the stream lacks the old rows of updates and deletes.",
        )
    columns = {column.name: (n, column) for n, column in enumerate(relation.columns)}
    last = -1
    for described in table.columns:
        place, column = columns.get(described.name, (-1, None))
        if column is None:
            return table_error(
                f'column "{described.name}" of table {table.shown} was removed upstream',
                "It was dropped, renamed, or left out of the publication.",
            )
        if (column.type, column.typmod) != (described.oid, described.typmod):
            return table_error(
                f'column "{described.name}" of table {table.shown} has another type upstream',
                f"It had the type with OID {described.oid} (modifier {described.typmod}); it has OID "
                f"{column.type} (modifier {column.typmod}).",
            )
        # Columns are in the order of their numbers. Those that are dropped move others to the left, and new
        # ones are behind all: so a name that moved to the right, or past another one, is of another column.
        if not last < place < described.attnum:
            return made_anew(table, described.name)
        last = place
    return None


def made_anew(table: ReplicatedTable, column: str) -> str:
    return table_error(
        f'column "{column}" of table {table.shown} was made anew upstream',
        "It was dropped or renamed, and another one has its name.",
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    """How rows of a table are read: the number of columns in the stream, and the place of each described
    one; or the error."""

    width: int
    places: tuple[int, ...]
    error: str | None

    @staticmethod
    def of(table: ReplicatedTable, relation: Relation) -> _Shape:
        error = mismatch(table, relation)
        if error is not None:
            return _Shape(len(relation.columns), (), error)
        places = {column.name: n for n, column in enumerate(relation.columns)}
        return _Shape(len(relation.columns), tuple(places[c.name] for c in table.columns), None)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a kind: the index of the message of each, and where its columns are."""

    messages: np.ndarray
    columns: list[TupleColumn]
    diff: int


class ChangeDecoder:
    """Chunks in order to batches. `relations` are the descriptions in the spool; `tables` the wanted ones, by
    output: one table upstream may be several here. With `sign` -1 the changes are taken back."""

    def __init__(
        self,
        tables: Mapping[int, ReplicatedTable],
        relations: Sequence[tuple[int, bytes]],
        sign: int = 1,
    ) -> None:
        self._tables = dict(tables)
        self._by_relid: dict[int, list[int]] = {}
        for index, table in tables.items():
            self._by_relid.setdefault(table.relid, []).append(index)
        self._sign = sign
        # By output: the numbers from which each description holds, and the shapes.
        self._known: dict[int, tuple[list[int], list[_Shape]]] = {index: ([], []) for index in tables}
        for number, message in relations:
            relation = parse_relation(message)
            for index in self._by_relid.get(relation.relid, ()):
                numbers, shapes = self._known[index]
                numbers.append(number)
                shapes.append(_Shape.of(self._tables[index], relation))

    def batches(self, chunk: Chunk) -> Iterator[SourceBatch]:
        if not len(chunk.at):
            return
        kinds = chunk.payload.letters(chunk.at)
        is_row = (kinds == INSERT) | (kinds == UPDATE) | (kinds == DELETE)
        rows = np.flatnonzero(is_row)
        others = np.flatnonzero(~is_row & (kinds != RELATION))
        errors = self._errors(chunk, kinds, others)
        relids = chunk.payload.numbers(chunk.at[rows] + 1)
        for index, table in self._tables.items():
            # An OID above 2^31 is a negative number here.
            mine = rows[relids == np.array([table.relid]).astype(np.uint32).view(np.int32)[0]]
            for text in errors.get(index, ()):
                yield SourceBatch(index, error_row(table, text), 1, 0)
            if len(mine):
                yield from self._table_batches(chunk, index, kinds, mine)

    def _errors(self, chunk: Chunk, kinds: np.ndarray, others: np.ndarray) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for n in others.tolist():
            kind, message = int(kinds[n]), chunk.message(n)
            if kind == TRUNCATE:
                for relid in parse_truncate(message):
                    for index in self._by_relid.get(relid, ()):
                        found.setdefault(index, []).append(truncated(self._tables[index]))
            elif kind == FAULT:
                index, text = parse_fault(message)
                if index in self._tables:
                    found.setdefault(index, []).append(text)
            else:
                raise ProtocolFault("the spool has a message of no kind", detail=f"It begins with {kind}.")
        return found

    def _table_batches(
        self, chunk: Chunk, index: int, kinds: np.ndarray, mine: np.ndarray
    ) -> Iterator[SourceBatch]:
        """The rows of one table, divided where its description changes."""
        table = self._tables[index]
        numbers, shapes = self._known[index]
        # The description of each message: the last one before it.
        which = np.searchsorted(np.array(numbers, np.int64), chunk.numbers[mine], "right") - 1
        for position in np.unique(which).tolist():
            if position < 0:
                raise ProtocolFault(
                    "PostgreSQL sent rows of a table that it did not describe", detail=f"It is {table.shown}."
                )
            shape, chosen = shapes[position], mine[which == position]
            size = int((chunk.ends[chosen] - chunk.at[chosen]).sum())
            error = shape.error or self._without_old(chunk, table, kinds, chosen)
            if error is not None:
                yield SourceBatch(index, error_row(table, error), len(chosen), size)
                continue
            batch = self._decoded(chunk, table, shape, kinds, chosen)
            yield SourceBatch(index, batch, len(chosen), size)

    @staticmethod
    def _without_old(
        chunk: Chunk, table: ReplicatedTable, kinds: np.ndarray, chosen: np.ndarray
    ) -> str | None:
        """The error of a table some of whose updates and deletes do not have the old row."""
        removing = chosen[kinds[chosen] != INSERT]
        letters = chunk.payload.letters(chunk.at[removing] + 5)
        # Of a partitioned table old rows are called keys, unless it has REPLICA IDENTITY FULL itself.
        whole = (letters == OLD) | ((letters == KEY) & table.partitioned)
        if bool(whole.all()):
            return None
        return table_error(
            f"table {table.shown} no longer has REPLICA IDENTITY FULL",
            "The stream lacks the old rows of updates and deletes.",
        )

    def _decoded(
        self, chunk: Chunk, table: ReplicatedTable, shape: _Shape, kinds: np.ndarray, mine: np.ndarray
    ) -> pa.RecordBatch:
        parts = self._rows(chunk, shape, kinds, mine)
        messages = np.concatenate([part.messages for part in parts])
        diffs = np.concatenate([np.full(len(part.messages), part.diff, np.int64) for part in parts])
        # Stable: of one message the old row comes first, as in `parts`.
        order = np.argsort(messages, kind="stable")
        texts: list[pa.Array] = []
        for place in shape.places:
            column = TupleColumn.joined([part.columns[place] for part in parts])
            texts.append(text_column(chunk.payload, column.take(order)))
        return decode_rows(table, texts, diffs[order] * self._sign)

    def _rows(self, chunk: Chunk, shape: _Shape, kinds: np.ndarray, mine: np.ndarray) -> list[_Rows]:
        """Old rows, then new rows."""
        payload = chunk.payload
        kind = kinds[mine]
        inserts, updates, deletes = (mine[kind == letter] for letter in (INSERT, UPDATE, DELETE))
        parts: list[_Rows] = []
        if len(deletes):
            columns, _ = self._scan(chunk, shape, deletes, chunk.at[deletes] + 5, OLD, KEY)
            parts.append(_Rows(deletes, _whole(columns), -1))
        if len(updates):
            old, ends = self._scan(chunk, shape, updates, chunk.at[updates] + 5, OLD, KEY)
            new, _ = self._scan(chunk, shape, updates, ends, NEW)
            parts.append(_Rows(updates, _whole(old), -1))
            new = [column.with_unchanged_of(before) for column, before in zip(new, old, strict=True)]
            parts.append(_Rows(updates, _whole(new), 1))
        if len(inserts):
            columns, _ = self._scan(chunk, shape, inserts, chunk.at[inserts] + 5, NEW)
            parts.append(_Rows(inserts, _whole(columns), 1))
        if not len(payload.bytes) or not parts:
            raise ProtocolFault("PostgreSQL sent a message without a row")
        return parts

    def _scan(
        self, chunk: Chunk, shape: _Shape, messages: np.ndarray, at: np.ndarray, *letters: int
    ) -> tuple[list[TupleColumn], np.ndarray]:
        ends = chunk.ends[messages]
        if bool((at >= ends).any()) or not bool(np.isin(chunk.payload.letters(at), letters).all()):
            raise ProtocolFault(
                "PostgreSQL sent a change without its whole rows",
                detail=f'A row of the kind "{chr(letters[0])}" is missing.',
            )
        return scan_tuples(chunk.payload, at + 1, shape.width, ends)


def _whole(columns: list[TupleColumn]) -> list[TupleColumn]:
    if any(column.has_unchanged for column in columns):
        raise ProtocolFault(
            "PostgreSQL sent a value as unchanged, and no old one",
            detail="With REPLICA IDENTITY FULL the old row has all values.",
        )
    return columns
