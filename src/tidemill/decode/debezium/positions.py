"""Positions of changes in the log of their upstream, from the fields that connectors put into `source`.

Called by `sources.kafka.changes`. Positions of one history are compared as tuples; they are in the order in
which changes were committed. A connector is one entry of `CONNECTORS`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa

from tidemill.types.columns import constant, leading_numbers, numbers, spans, valid_mask
from tidemill.types.kernels import pc

# Of the logs' own numbers; the largest are far below it.
_MAX_DIGITS = 18
_BEHIND_TEXT = 8
_NO_COMMIT = b"[null,"
_FILE_NUMBER = re.compile(rf"[0-9]{{1,{_MAX_DIGITS}}}\Z", re.ASCII)
_UUID_LETTERS = 36
_SEQUENCE = re.compile(rf'\["([0-9]{{1,{_MAX_DIGITS}}})","([0-9]{{1,{_MAX_DIGITS}}})"\]', re.ASCII)


class SourceFields(Protocol):
    """`source` of a batch of changes, by columns. What is missing, or is of another type, is null."""

    def text(self, name: str) -> pa.Array: ...

    def number(self, name: str) -> pa.Array:
        """As int64."""
        ...


class Connector(ABC):
    # Fields of `source` that make the position, and the oldest release that is known to write them.
    fields: ClassVar[tuple[str, ...]]
    since: ClassVar[str]
    # What makes the upstream log whole old rows.
    whole_rows: ClassVar[str]
    # A value may be a placeholder, because it did not change.
    placeholders: ClassVar[bool] = False

    @abstractmethod
    def positions(
        self, source: SourceFields, streamed: np.ndarray, beside: np.ndarray, unknown: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """A row of three numbers for each change, and which are missing or ill-formed. `unknown` stands for a
        first number that the upstream did not say. Of rows of incremental snapshots (`beside`): where the
        log stood when they were read, if that is known. Of other changes that are not `streamed`: of the
        snapshot."""

    @abstractmethod
    def timelines(self, source: SourceFields) -> pa.Array:
        """As text: positions of different timelines cannot be compared. The texts begin with `origins`."""

    def origins(self, source: SourceFields) -> pa.Array:
        """As text: which connector wrote the changes."""
        return _described({name: source.text(name) for name in ("connector", "name")})


class PostgresPositions(Connector):
    """The end of the last transaction before that of the change, which grows in the order of commits, and the
    change's own place, which goes back where transactions ran at the same time."""

    fields = ("sequence", "lsn")
    since = "Debezium 2.0"
    whole_rows = "ALTER TABLE ... REPLICA IDENTITY FULL makes PostgreSQL log them"
    placeholders = True

    def positions(
        self, source: SourceFields, streamed: np.ndarray, beside: np.ndarray, unknown: int
    ) -> tuple[np.ndarray, np.ndarray]:
        lsn, wrong = _whole(source.number("lsn"))
        sequence = source.text("sequence")
        committed, ill = last_commits(sequence, unknown)
        zeros = np.zeros_like(lsn)
        found = np.column_stack([np.where(streamed, committed, lsn), np.where(streamed, lsn, 0), zeros])
        wrong |= ill & streamed
        for row in np.flatnonzero(beside).tolist():
            # They have no lsn of their own; `sequence` has that of the log.
            both = _SEQUENCE.fullmatch(sequence[row].as_py() or "")
            wrong[row] = both is None
            if both is not None:
                found[row] = int(both[1]), int(both[2]), 0
        return found, wrong

    def timelines(self, source: SourceFields) -> pa.Array:
        said = {
            "connector": source.text("connector"),
            "name": source.text("name"),
            "database": source.text("db"),
        }
        return _described(said)


class BinlogPositions(Connector):
    """MySQL and MariaDB: the number of the file, the place in it, and the row of the event there."""

    fields = ("file", "pos", "row", "server_id")
    since = "Debezium 1.0"
    whole_rows = "binlog_row_image=FULL makes the server log them"

    def positions(
        self, source: SourceFields, streamed: np.ndarray, beside: np.ndarray, unknown: int
    ) -> tuple[np.ndarray, np.ndarray]:
        file, odd = _file_numbers(source.text("file"))
        (pos, wrong), (row, rowless) = (_whole(source.number(name)) for name in ("pos", "row"))
        serverless = ~valid_mask(source.number("server_id"))
        found = np.column_stack([file, pos, np.where(streamed | beside, row, 0)])
        return found, wrong | odd | ((rowless | serverless) & streamed)

    def timelines(self, source: SourceFields) -> pa.Array:
        said = {name: source.text(name) for name in ("connector", "name")}
        said["server_id"] = source.number("server_id")
        return _described(said)


class MySqlPositions(BinlogPositions):
    """A GTID of MySQL begins with the id of the server that the change was first made on."""

    def timelines(self, source: SourceFields) -> pa.Array:
        gtid = source.text("gtid")
        if gtid.null_count == len(gtid):
            return super().timelines(source)
        origin = pc.utf8_slice_codeunits(gtid, 0, _UUID_LETTERS)
        ends = pc.fill_null(pc.binary_join_element_wise(pa.scalar(", GTID "), origin, ""), "")
        return pc.binary_join_element_wise(super().timelines(source), ends, "")


# By `connector` in `source`.
CONNECTORS: Mapping[str, Connector] = {
    "postgresql": PostgresPositions(),
    "mysql": MySqlPositions(),
    "mariadb": BinlogPositions(),
}
# Those whose positions do not serve, and why.
UNFIT = {
    "sqlserver": "several changes of SQL Server have one position, and repetitions cannot be told from them"
}


def _whole(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The numbers, and which are missing or negative."""
    found = numbers(column, np.int64)
    return found, ~valid_mask(column) | (found < 0)


def last_commits(sequence: pa.Array, unknown: int) -> tuple[np.ndarray, np.ndarray]:
    """The first of the two numbers of `["31231576","31232056"]`, `unknown` for `[null,"31223528"]`; and which
    are neither."""
    offsets, data = spans(sequence)
    first, last = (int(offsets[0]), int(offsets[-1])) if len(sequence) else (0, 0)
    octets = np.concatenate([data[first:last], np.zeros(_MAX_DIGITS + _BEHIND_TEXT, np.uint8)])
    start, end = offsets[:-1].astype(np.int64) - first, offsets[1:].astype(np.int64) - first
    found, at = leading_numbers(octets, start + 2, end, _MAX_DIGITS)
    # Within its row: behind a short one stands the next.
    said = _reads(octets, start, b'["') & (at > start + 2) & _reads(octets, at, b'","') & (at + 3 <= end)
    known = valid_mask(sequence)
    said &= known
    if bool(said.all()):
        return found, ~said
    none = known & _reads(octets, start, _NO_COMMIT) & (start + len(_NO_COMMIT) <= end)
    return np.where(said, found, unknown), ~(said | none)


def _reads(octets: np.ndarray, at: np.ndarray, letters: bytes) -> np.ndarray:
    """Where these letters stand."""
    found = octets[at] == letters[0]
    for n, letter in enumerate(letters[1:], 1):
        found &= octets[at + n] == letter
    return found


def _file_numbers(files: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The numbers at the end of the names, and which have none."""
    encoded = files.dictionary_encode()
    found = [_FILE_NUMBER.search(name) for name in encoded.dictionary.to_pylist()]
    # One more, for names that are missing.
    known = np.array([-1 if each is None else int(each[0]) for each in found] + [-1], np.int64)
    file = known[pc.fill_null(encoded.indices, len(found)).to_numpy(zero_copy_only=False)]
    return file, file < 0


def _described(said: Mapping[str, pa.Array]) -> pa.Array:
    """The values with their names, as one text; each is made once."""
    same = [constant(column) for column in said.values()]
    if all(column is not None for column in same):
        text = _phrase(list(said), [column[0].as_py() for column in same if column is not None])
        return _repeated(text, len(next(iter(said.values()))))
    codes = np.zeros(len(next(iter(said.values()))), np.int64)
    for column in said.values():
        encoded = column.dictionary_encode()
        each = pc.fill_null(encoded.indices, len(encoded.dictionary)).to_numpy(zero_copy_only=False)
        codes = codes * (len(encoded.dictionary) + 1) + each
    _, first, which = np.unique(codes, return_index=True, return_inverse=True)
    rows = [[column[int(row)].as_py() for column in said.values()] for row in first]
    return pa.array([_phrase(list(said), row) for row in rows], pa.string()).take(pa.array(which))


def _repeated(text: str, count: int) -> pa.Array:
    octets = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * len(octets)
    return pa.Array.from_buffers(
        pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(octets * count)]
    )


def _phrase(names: Sequence[str], values: Sequence[str | int | None]) -> str:
    shown = (f'"{value}"' if isinstance(value, str) else str(value) for value in values)
    return ", ".join(f"{name} {value}" for name, value in zip(names, shown, strict=True))
