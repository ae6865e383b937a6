"""The prepared statements and cursors of the current session: pg_prepared_statements and pg_cursors.

Only the texts of queries and writes are shown: other statements may contain a password or a secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidemill.engine.relations.pg.spec import Record, spec
from tidemill.engine.relations.pg.types import column_oid
from tidemill.engine.relations.sources import Spec
from tidemill.types.model import SqlType

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation

SHOWN_VERBS = frozenset({"SELECT", "INSERT", "UPDATE", "DELETE", "SUBSCRIBE"})


@dataclass(frozen=True, slots=True)
class PreparedRow:
    """A named prepared statement; `statement` is None if its text is not shown."""

    name: str
    statement: str | None
    parameter_types: tuple[SqlType, ...]
    # None: it has no rows.
    result_types: tuple[SqlType, ...] | None
    from_sql: bool


def _prepared(s: Situation) -> Iterable[Record]:
    for row in s.prepared():
        yield {
            "name": row.name,
            "statement": row.statement,
            "parameter_types": [column_oid(t) for t in row.parameter_types],
            "result_types": None if row.result_types is None else [column_oid(t) for t in row.result_types],
            "from_sql": row.from_sql,
        }


def _cursors(s: Situation) -> Iterable[Record]:
    for name, portal in s.portals():
        yield {
            "name": name,
            "statement": portal.text,
            "is_holdable": portal.hold,
            "is_binary": portal.binary,
            "is_scrollable": False,
            "creation_time": datetime.fromtimestamp(portal.created, UTC),
        }


OWN_SESSION_SPECS: list[Spec] = [
    spec(
        "pg_catalog",
        "pg_prepared_statements",
        """name text, statement text, prepare_time timestamptz, parameter_types regtype[],
        result_types regtype[], from_sql bool, generic_plans int8, custom_plans int8""",
        _prepared,
        nulls=True,
    ),
    spec(
        "pg_catalog",
        "pg_cursors",
        """name text, statement text, is_holdable bool, is_binary bool, is_scrollable bool,
        creation_time timestamptz""",
        _cursors,
        nulls=True,
    ),
]
