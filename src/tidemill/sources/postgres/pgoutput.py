"""The messages of pgoutput, the logical decoding plugin of PostgreSQL: bytes to values, without I/O.

Called by `receiver` for the few messages that order the stream (begin, commit, relation), and by
`stream_rows` in the tasks. Messages of rows are not parsed here: `tuples` reads many of them at once, by
columns.

The messages are those of protocol versions 1 to 4 without streaming of open transactions and without
two-phase commit, which are not asked for: a server that sends them anyway is an error (`ProtocolFault`).

A commit has two positions. The commit LSN is where its record begins, and is what `Begin` announces. The end
LSN is where the next record begins. A source counts in end LSNs: a slot that is confirmed up to an end LSN
begins with the next transaction.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tidemill.sources.contract import UpstreamError
from tidemill.sources.postgres.lsn import lsn_text

BEGIN, COMMIT, RELATION, TYPE, ORIGIN = b"BCRYO"
INSERT, UPDATE, DELETE, TRUNCATE, MESSAGE = b"IUDTM"
# Parts of the messages of rows.
NEW, OLD, KEY = b"NOK"
# Not from PostgreSQL: what the receiver found out about a table beside the stream. The number of the output,
# then the text of an error.
FAULT = b"X"[0]

FULL_IDENTITY = "f"

_REFUSED = {
    **dict.fromkeys(b"SEcA", "streaming of open transactions"),
    **dict.fromkeys(b"bPKrp", "two-phase commit"),
}

_BEGIN = struct.Struct("!QqI")
_COMMIT = struct.Struct("!BQQq")
_RELATION_COLUMN = struct.Struct("!Ii")
_U32 = struct.Struct("!I")
_U16 = struct.Struct("!H")
# PostgreSQL's epoch, 2000-01-01, in microseconds of Unix's.
_EPOCH_MICROS = 946_684_800_000_000


class ProtocolFault(UpstreamError):
    """The stream is not what the protocol says."""

    sqlstate = "08P01"


@dataclass(frozen=True, slots=True)
class Begin:
    commit_lsn: int
    # When it was committed; microseconds since 1970.
    committed: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    commit_lsn: int
    end_lsn: int
    committed: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type: int
    typmod: int
    # Part of the replica identity.
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """What the messages of rows of one table have, from here on."""

    relid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


def parse_begin(body: bytes) -> Begin:
    """The whole message, with its letter; so below."""
    commit_lsn, committed, xid = _unpacked(_BEGIN, body, 1)
    return Begin(commit_lsn, committed + _EPOCH_MICROS, xid)


def parse_commit(body: bytes) -> Commit:
    _, commit_lsn, end_lsn, committed = _unpacked(_COMMIT, body, 1)
    if end_lsn <= commit_lsn:
        raise ProtocolFault(
            "PostgreSQL sent a commit that ends before it begins",
            detail=f"It begins at {lsn_text(commit_lsn)} and ends at {lsn_text(end_lsn)}.",
        )
    return Commit(commit_lsn, end_lsn, committed + _EPOCH_MICROS)


def parse_relation(body: bytes) -> Relation:
    (relid,) = _unpacked(_U32, body, 1)
    schema, at = _text(body, 5)
    name, at = _text(body, at)
    identity = body[at : at + 1].decode("ascii", "replace")
    (count,) = _unpacked(_U16, body, at + 1)
    at += 3
    columns: list[RelationColumn] = []
    for _ in range(count):
        key = bool(body[at] & 1) if at < len(body) else False
        column, at = _text(body, at + 1)
        type_, typmod = _unpacked(_RELATION_COLUMN, body, at)
        at += _RELATION_COLUMN.size
        columns.append(RelationColumn(column, type_, typmod, key))
    if at != len(body):
        raise _malformed(body)
    # An empty schema means pg_catalog.
    return Relation(relid, schema or "pg_catalog", name, identity, tuple(columns))


def parse_truncate(body: bytes) -> tuple[int, ...]:
    """The relations' OIDs."""
    (count,) = _unpacked(_U32, body, 1)
    if len(body) != 6 + 4 * count:
        raise _malformed(body)
    return struct.unpack_from(f"!{count}I", body, 6)


def write_fault(output: int, text: str) -> bytes:
    return bytes([FAULT]) + _U32.pack(output) + text.encode()


def parse_fault(body: bytes) -> tuple[int, str]:
    (output,) = _unpacked(_U32, body, 1)
    return output, body[5:].decode()


def refuse(kind: int) -> ProtocolFault:
    """The error for a message that this protocol does not have."""
    what = _REFUSED.get(kind)
    if what is None:
        return ProtocolFault("PostgreSQL sent a message that is not known", detail=f"It begins with {kind}.")
    return ProtocolFault(
        f"PostgreSQL sent {what}, which was not asked for", detail=f'The message is a "{chr(kind)}".'
    )


def _unpacked(form: struct.Struct, body: bytes, at: int) -> tuple[int, ...]:
    try:
        return form.unpack_from(body, at)
    except struct.error:
        raise _malformed(body) from None


def _text(body: bytes, at: int) -> tuple[str, int]:
    end = body.find(b"\0", at)
    if end < 0:
        raise _malformed(body)
    return body[at:end].decode("utf-8", "replace"), end + 1


def _malformed(body: bytes) -> ProtocolFault:
    return ProtocolFault(
        "PostgreSQL sent a message that cannot be read",
        detail=f'It is a "{chr(body[0])}" of {len(body)} bytes.' if body else "It is empty.",
    )
