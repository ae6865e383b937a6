"""The names for completion, read from the catalogs in the background.

Each refresh opens its own connection and closes it at the end. Neither typing nor a statement waits for it.
The previous names stay in use until the refresh is complete.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import psycopg

# A catalog may hold more names than completion needs; names beyond this are not offered.
MOST_RELATIONS = 20_000
MOST_COLUMNS = 200_000
MOST_OTHERS = 10_000
# A refresh that exceeds this time is given up, and the previous names stay.
REFRESH_SECONDS = 30

_RELATIONS = f"""SELECT n.nspname, c.relname, pg_catalog.pg_table_is_visible(c.oid)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'v', 'm', 'f', 'p') AND n.nspname !~ '^pg_toast' LIMIT {MOST_RELATIONS}"""
_COLUMNS = f"""SELECT n.nspname, c.relname, a.attname
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'v', 'm', 'f', 'p')
    AND n.nspname !~ '^pg_toast' LIMIT {MOST_COLUMNS}"""
_FUNCTIONS = f"SELECT DISTINCT proname FROM pg_catalog.pg_proc LIMIT {MOST_OTHERS}"
_SCHEMAS = f"SELECT nspname FROM pg_catalog.pg_namespace LIMIT {MOST_OTHERS}"
_SETTINGS = f"SELECT name FROM pg_catalog.pg_settings LIMIT {MOST_OTHERS}"
_DATABASES = f"SELECT datname FROM pg_catalog.pg_database LIMIT {MOST_OTHERS}"
_ROLES = f"SELECT rolname FROM pg_catalog.pg_roles LIMIT {MOST_OTHERS}"

Relation = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Names:
    """The result of one refresh."""

    # Names that need no schema, and all names with their schema.
    visible: frozenset[str] = frozenset()
    relations: frozenset[Relation] = frozenset()
    columns: dict[Relation, list[str]] = field(default_factory=dict)
    functions: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    databases: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()

    def columns_of(self, schema: str | None, relation: str) -> list[str]:
        if schema is not None:
            return self.columns.get((schema, relation), [])
        found = [columns for (_, name), columns in self.columns.items() if name == relation]
        return found[0] if found else []


class CatalogNames:
    """`current` can be read at any time; `refresh` starts a refresh and returns at once."""

    def __init__(self, conninfo: Callable[[], str]) -> None:
        self._conninfo = conninfo
        self.current = Names()
        self._lock = threading.Lock()
        self._running = False
        self._again = False

    def refresh(self) -> None:
        """Start a refresh. If one is running, another follows it."""
        with self._lock:
            if self._running:
                self._again = True
                return
            self._running = True
        threading.Thread(target=self._work, name="names", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                self.current = read(self._conninfo())
            except (psycopg.Error, UnicodeError):
                # A background failure is not shown: known names stay, and the next statement reports a lost
                # server.
                pass
            with self._lock:
                if not self._again:
                    self._running = False
                    return
                self._again = False


def read(conninfo: str) -> Names:
    """Read all names once."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        try:
            connection.execute(f"SET statement_timeout = '{REFRESH_SECONDS}s'".encode())
        except psycopg.Error:
            pass

        def rows(sql: str) -> list[tuple[str, ...]]:
            try:
                return connection.execute(sql.encode()).fetchall()
            except psycopg.Error:
                # A catalog that this server does not have, or that this user may not read.
                return []

        relations = rows(_RELATIONS)
        columns: dict[Relation, list[str]] = defaultdict(list)
        for schema, relation, column in rows(_COLUMNS):
            columns[schema, relation].append(column)
        return Names(
            visible=frozenset(name for _, name, visible in relations if visible),
            relations=frozenset((schema, name) for schema, name, _ in relations),
            columns=dict(columns),
            functions=_sorted(rows(_FUNCTIONS)),
            schemas=_sorted(rows(_SCHEMAS)),
            settings=_sorted(rows(_SETTINGS)),
            databases=_sorted(rows(_DATABASES)),
            roles=_sorted(rows(_ROLES)),
        )


def _sorted(rows: list[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(sorted({row[0] for row in rows}))
