"""What the stream does not say: tables that are gone or no longer published, and the state of the slot.

Called by `receiver` on an ordinary session, when a table is described for the first time or in another way,
and every few seconds. A column that was dropped and created again with the same name looks the same in the
stream; its number in the catalog tells them apart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg import sql

from tidemill.sources.postgres.connect import connect, upstream_error
from tidemill.sources.postgres.definition import ReplicatedTable
from tidemill.sources.postgres.failures import no_publication
from tidemill.sources.postgres.lsn import parse_lsn
from tidemill.sources.postgres.pgoutput import FULL_IDENTITY, Relation, RelationColumn
from tidemill.sources.postgres.row_changes import made_anew, mismatch, table_error
from tidemill.sources.postgres.table_marks import MarksSpec, TableMarks, compare, read_marks

_TABLES = """
SELECT c.oid::int8, a.attname::text, a.attnum::int4, a.atttypid::int8, a.atttypmod::int4
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.oid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""
_PUBLICATION = "SELECT count(*) FROM pg_publication WHERE pubname = %s"
_PUBLISHED = "SELECT relid::oid::int8 FROM pg_get_publication_tables(%s)"
_SLOT = """
SELECT confirmed_flush_lsn::text, wal_status::text, active_pid, to_jsonb(s) ->> 'invalidation_reason'
FROM pg_replication_slots s WHERE slot_name = %s
"""
_TERMINATE = "SELECT pg_terminate_backend(%s)"
_POSITION = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END"
    "::text"
)


_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class SlotState:
    """As pg_replication_slots has it. `wal_status` is lost if changes are."""

    confirmed: int
    wal_status: str
    active_pid: int | None
    invalidation: str | None


class TableWatch:
    """Of one thread. Opens its session when it needs one. Every method raises UpstreamError."""

    def __init__(
        self, options: Mapping[str, Any], publication: str, slot: str, tables: Sequence[ReplicatedTable]
    ) -> None:
        self._options = options
        self._publication = publication
        self._slot = slot
        self._tables = tuple(tables)
        self._session: psycopg.Connection[Any] | None = None
        # The marks of each output, as they were last without a fault.
        self._known: dict[int, TableMarks] = {
            n: table.marks for n, table in enumerate(self._tables) if table.marks is not None
        }
        # Those that differ from the descriptions, by key, to be stored with the definition.
        self.learned: dict[str, MarksSpec] = {}

    def slot(self) -> SlotState | None:
        rows = self._rows(_SLOT, [self._slot])
        if not rows:
            return None
        confirmed, status, pid, reason = rows[0]
        return SlotState(0 if confirmed is None else parse_lsn(confirmed), status or "", pid, reason)

    def position(self) -> int:
        """The end of the server's log."""
        return parse_lsn(str(self._rows(_POSITION, [])[0][0]))

    def faults(self) -> dict[int, str]:
        """By output, the errors of tables that cannot be followed any more, as texts."""
        if not self._rows(_PUBLICATION, [self._publication])[0][0]:
            raise no_publication(self._publication)
        published = {int(row[0]) for row in self._rows(_PUBLISHED, [self._publication])}
        described: dict[int, list[tuple[Any, ...]]] = {}
        for row in self._rows(_TABLES, [[table.relid for table in self._tables]]):
            described.setdefault(int(row[0]), []).append(row)
        marks = self._marks()
        found: dict[int, str] = {}
        for index, table in enumerate(self._tables):
            text = self._fault(table, described.get(table.relid), published=table.relid in published)
            text = text or self._difference(index, table, marks.get(table.relid))
            if text is not None:
                found[index] = text
        return found

    def _marks(self) -> dict[int, TableMarks]:
        relids = [self._tables[n].relid for n in self._known]
        return self._asked(lambda session: read_marks(session, self._publication, relids))

    def _difference(self, index: int, table: ReplicatedTable, found: TableMarks | None) -> str | None:
        """What the marks of the table tell. If it is harmless, they are learned."""
        known = self._known.get(index)
        if known is None or found is None:
            return None
        difference = compare(table.shown, self._publication, known, found, [c.name for c in table.columns])
        if difference is not None:
            return table_error(difference.what, difference.detail)
        found = replace(found.of_types(known.forms), key=known.key, members=known.members)
        if found.spec() != known.spec():
            self._known[index] = found
            self.learned = {**self.learned, found.key: found.spec()}
        return None

    def terminate(self, pid: int) -> None:
        """End a session of ours that the server still has."""
        self._rows(_TERMINATE, [pid])

    def _fault(
        self, table: ReplicatedTable, columns: list[tuple[Any, ...]] | None, *, published: bool
    ) -> str | None:
        if columns is None:
            return table_error(f"table {table.shown} was dropped upstream", "It may exist again, as another.")
        numbers = {str(row[1]): int(row[2]) for row in columns}
        relation = Relation(
            table.relid,
            table.schema,
            table.table,
            # (The stream has the identity of each change. What it is without one does not matter.)
            FULL_IDENTITY,
            tuple(RelationColumn(str(row[1]), int(row[3]), int(row[4]), False) for row in columns),
        )
        text = mismatch(table, relation)
        if text is not None:
            return text
        for column in table.columns:
            if numbers[column.name] != column.attnum:
                return made_anew(table, column.name)
        if not published:
            return table_error(
                f"table {table.shown} is no longer in publication {self._publication}",
                "Changes since then are not known.",
            )
        return None

    def _rows(self, query: LiteralString, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        return self._asked(lambda session: session.execute(sql.SQL(query), values or None).fetchall())

    def _asked(self, ask: Callable[[psycopg.Connection[Any]], _Answer]) -> _Answer:
        """On a kept session; on a new one if that was lost."""
        while True:
            fresh = self._session is None or self._session.closed
            if self._session is None or fresh:
                self._session = connect(self._options)
            try:
                return ask(self._session)
            except psycopg.Error as e:
                if fresh or not self._session.closed:
                    raise upstream_error(e, self._options) from None

    def close(self) -> None:
        if self._session is not None:
            with contextlib.suppress(psycopg.Error):
                self._session.close()
            self._session = None
