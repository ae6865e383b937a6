"""query() and execute(): plain statements, shared by both clients.

The rows of a query arrive as binary COPY, directly as columns. Statements that COPY does not support
(SHOW, EXPLAIN, INSERT ... RETURNING) return a small result in text.
"""

from __future__ import annotations

import re

import pyarrow as pa
from psycopg import pq
from psycopg.pq import abc

from tidemill.client.copy_rows import rows_of, text_rows
from tidemill.client.errors import NoRows
from tidemill.client.forms import ClientField, described, held_schema
from tidemill.client.frames import Frame
from tidemill.client.link import Link, Waits

_COPYABLE = re.compile(r"(?:\s|--[^\n]*\n|\()*(?:select|values|with|table)\b", re.IGNORECASE)


def query(link: Link, sql: str) -> Waits[Frame]:
    """Return the rows of one statement."""
    text = sql.strip().rstrip(";").rstrip()
    if not _COPYABLE.match(text):
        return (yield from _small(link, text))
    fields = yield from link.describe(text)
    rows = rows_of(fields)
    yield from link.copy(f"COPY ({text}\n) TO STDOUT WITH ({rows.options})")
    tables: list[pa.Table] = []
    while block := (yield from link.block()):
        tables.append(rows.decode(block))
    return Frame(pa.concat_tables(tables) if tables else held_schema(fields).empty_table(), fields)


def execute(link: Link, sql: str) -> Waits[str]:
    """Run any statements; return the tag of the last, such as `INSERT 0 3`."""
    results = yield from link.run(sql)
    return (results[-1].command_status or b"").decode() if results else ""


def _small(link: Link, sql: str) -> Waits[Frame]:
    results = yield from link.run(sql)
    last = results[-1] if results else None
    if last is None or last.status != pq.ExecStatus.TUPLES_OK:
        tag = "" if last is None else (last.command_status or b"").decode()
        if not tag:
            raise NoRows("there is no statement to run")
        raise NoRows(
            f"the statement was carried out ({tag}), and returns no rows",
            hint="Do not run it again. execute() is for statements without rows.",
        )
    fields = described(last)
    return Frame(text_rows(texts(last, fields), fields), fields)


def texts(result: abc.PGresult, fields: tuple[ClientField, ...]) -> list[list[bytes | None]]:
    """The columns of a small result."""
    rows = range(result.ntuples)
    return [[result.get_value(row, column) for row in rows] for column in range(len(fields))]
