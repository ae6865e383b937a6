"""pgoutput as a model writes it: messages of rows, from Python values."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tidemill.sources.postgres.definition import ReplicatedColumn, ReplicatedTable
from tidemill.sources.postgres.segment import HEADER
from tidemill.types.model import INT4, TEXT

# A value: a text, NULL, or "unchanged" of a TOASTed one.
UNCHANGED = object()
Value = str | None | object
Row = Sequence[Value]


def table(relid: int, width: int, name: str = "t") -> ReplicatedTable:
    """A table of an integer and texts."""
    columns = [ReplicatedColumn("id", INT4, True, 23, -1, 1)]
    columns += [ReplicatedColumn(f"c{n}", TEXT, True, 25, -1, n + 1) for n in range(1, width)]
    return ReplicatedTable(f"public.{name}", "public", name, relid, tuple(columns))


def relation(of: ReplicatedTable, *, identity: str = "f", left_out: str = "", extra: str = "") -> bytes:
    columns = [(c.name, c.oid, c.typmod) for c in of.columns if c.name != left_out]
    if extra:
        columns.insert(1, (extra, 25, -1))
    out = [b"R", struct.pack("!I", of.relid), b"public\0", of.table.encode(), b"\0", identity.encode()]
    out.append(struct.pack("!H", len(columns)))
    for name, oid, typmod in columns:
        out += [b"\1", name.encode(), b"\0", struct.pack("!Ii", oid, typmod)]
    return b"".join(out)


def tuple_of(row: Row) -> bytes:
    out = [struct.pack("!H", len(row))]
    for value in row:
        if value is None:
            out.append(b"n")
        elif isinstance(value, str):
            data = value.encode()
            out.append(b"t" + struct.pack("!I", len(data)) + data)
        else:
            out.append(b"u")
    return b"".join(out)


def insert(relid: int, row: Row) -> bytes:
    return b"I" + struct.pack("!I", relid) + b"N" + tuple_of(row)


def delete(relid: int, row: Row, letter: bytes = b"O") -> bytes:
    return b"D" + struct.pack("!I", relid) + letter + tuple_of(row)


def update(relid: int, old: Row, new: Row) -> bytes:
    return b"U" + struct.pack("!I", relid) + b"O" + tuple_of(old) + b"N" + tuple_of(new)


def truncate(*relids: int) -> bytes:
    return b"T" + struct.pack(f"!IB{len(relids)}I", len(relids), 0, *relids)


def begin(commit_lsn: int) -> bytes:
    return b"B" + struct.pack("!QqI", commit_lsn, 0, 7)


def commit(commit_lsn: int, end_lsn: int) -> bytes:
    return b"C" + struct.pack("!BQQq", 0, commit_lsn, end_lsn, 0)


def sent(message: bytes) -> bytes:
    """As the replication protocol sends it."""
    return (b"w" + struct.pack("!QQq", 0, 0, 0)).ljust(HEADER, b"\0") + message
