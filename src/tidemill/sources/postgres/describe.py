"""What a publication has, asked once, when a source or one of its tables is created.

`look` reads the catalogs of the server, and refuses what cannot work at all (wal_level, missing rights, a
publication that leaves changes out). `replicated` makes the description of one table that was chosen, and
refuses a table that cannot be followed: its replica identity, a type, a row-level policy.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from tidemill.errors import InvalidValue, Notice, TidemillError, UndefinedObject, Unsupported
from tidemill.sources.contract import UpstreamError
from tidemill.sources.postgres.connect import connect, place, upstream_error
from tidemill.sources.postgres.definition import ReplicatedColumn, ReplicatedTable, shown
from tidemill.sources.postgres.lsn import parse_lsn
from tidemill.sources.postgres.table_marks import TableMarks, read_marks
from tidemill.sources.postgres.types import NotMapped, UpstreamType, column_type, named_elsewhere
from tidemill.types.model import TEXT

# Partitions, generated columns, and proto_version 1 with what is read of it.
OLDEST = 120_000
# Column lists and row filters of publications.
_LISTS_SINCE = 150_000
# Publications can publish generated columns.
_GENERATED_SINCE = 180_000
_NEAR = 3


class NotReplicable(UpstreamError):
    """The server, the publication or a table is not prepared. The hint has the statement to run there."""

    sqlstate = "55000"
    permanent = True


@dataclass(frozen=True, slots=True)
class PublishedColumn:
    name: str
    attnum: int
    oid: int
    typmod: int
    nullable: bool
    generated: bool


@dataclass(frozen=True)
class PublishedTable:
    """Of the table and, if it is partitioned, its partitions: `lacking` are those whose replica identity is
    not FULL, `unlogged` those whose changes are not in the server's log, `unreadable` those that the user may
    not read (the snapshot reads each partition), `policies` those with row-level security."""

    schema: str
    table: str
    relid: int
    columns: tuple[PublishedColumn, ...]
    # Columns that the publication leaves out; and those of them because of which PostgreSQL refuses UPDATE
    # and DELETE of the table when its replica identity is FULL.
    left_out: tuple[str, ...] = ()
    refused: tuple[PublishedColumn, ...] = ()
    filter: str | None = None
    lacking: tuple[str, ...] = ()
    unlogged: tuple[str, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    policies: tuple[str, ...] = ()
    marks: TableMarks | None = None

    @property
    def shown(self) -> str:
        return shown(self.schema, self.table)


@dataclass(frozen=True)
class Published:
    """`system` identifies the database cluster. All of it was so at `position` of its log."""

    system: str
    version: int
    publication: str
    tables: tuple[PublishedTable, ...]
    position: int
    types: Mapping[int, UpstreamType] = field(default_factory=dict[int, UpstreamType])


def look(options: Mapping[str, Any], publication: str) -> Published:
    """What the publication has now. Raises UpstreamError, UndefinedObject."""
    # The identity is asked for in a session for replication: so it is clear that such are allowed.
    system = _identify(options)
    with connect(options) as sql:
        try:
            _check_server(sql)
            _check_publication(sql, publication)
            tables = published_tables(sql, publication)
            if not tables:
                raise NotReplicable(
                    f'publication "{publication}" has no tables',
                    hint=f"ALTER PUBLICATION {shown(publication)} ADD TABLE ...; at the server",
                )
            oids = {c.oid for table in tables for c in table.columns}
            types = _types(sql, oids)
            version, position = sql.info.server_version, _position(sql)
            return Published(system, version, publication, tuple(tables), position, types)
        except psycopg.Error as e:
            raise upstream_error(e, options) from None


# With commits that are not on disk yet.
_POSITION = """
SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END::text,
  current_setting('wal_block_size')::int
"""
# The header of a page of the log has this many bytes at most.
_PAGE_HEADER = 40


def _position(sql: psycopg.Connection[Any]) -> int:
    """The end of the log. While a page has no record, the server says the end of its header, and has sent
    everything at its beginning."""
    text, page = _row(sql, _POSITION)
    end = parse_lsn(text)
    return end - end % page if end % page <= _PAGE_HEADER else end


def reach(options: Mapping[str, Any]) -> None:
    """Raises UpstreamError if the server is not there, or refuses us."""
    connect(options).close()


def _identify(options: Mapping[str, Any]) -> str:
    with connect(options, replication=True) as sql:
        result = sql.pgconn.exec_(b"IDENTIFY_SYSTEM")
        value = result.get_value(0, 0) if result.ntuples else None
    if value is None:
        raise UpstreamError(f"{place(options)} does not say which it is", detail="IDENTIFY_SYSTEM is empty.")
    return value.decode()


def _check_server(sql: psycopg.Connection[Any]) -> None:
    version, level = _row(
        sql, "SELECT current_setting('server_version_num')::int, current_setting('wal_level')"
    )
    if version < OLDEST:
        raise NotReplicable(
            f"PostgreSQL {version // 10000} is not supported", detail=f"Versions since {OLDEST // 10000} are."
        )
    if level != "logical":
        raise NotReplicable(
            "the server's log has no data for logical replication",
            detail=f"wal_level is {level}.",
            hint="ALTER SYSTEM SET wal_level = logical; at the server, and restart it.",
        )
    slots, most = _row(
        sql, "SELECT count(*), current_setting('max_replication_slots')::int FROM pg_replication_slots"
    )
    if slots >= most:
        raise NotReplicable(
            "the server has no replication slot left",
            detail=f"All {most} of max_replication_slots are in use.",
            hint="Drop one that is not needed (pg_drop_replication_slot), or raise max_replication_slots.",
        )


def _check_publication(sql: psycopg.Connection[Any], name: str) -> None:
    rows = sql.execute(
        "SELECT pubname, pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication"
    ).fetchall()
    known = dict(rows)
    if name not in known:
        near = difflib.get_close_matches(name, [str(n) for n in known], n=_NEAR)
        hint = f"Did you mean {' or '.join(near)}?" if near else None
        raise UndefinedObject(
            f'publication "{name}" does not exist at the server',
            hint=hint or f"CREATE PUBLICATION {shown(name)} FOR TABLE ...; at the server",
        )
    if not known[name]:
        raise NotReplicable(
            f'publication "{name}" leaves changes out',
            hint=f"ALTER PUBLICATION {shown(name)} "
            "SET (publish = 'insert, update, delete, truncate'); at the server",
        )


def published_tables(
    sql: psycopg.Connection[Any], publication: str, relids: Collection[int] | None = None
) -> list[PublishedTable]:
    """The tables of a publication, or those of them with these numbers, by schema and name. No rows if the
    publication does not exist. Raises psycopg.Error."""
    lists = sql.info.server_version >= _LISTS_SINCE
    more = "p.attnames::text[], p.rowfilter" if lists else "NULL::text[], NULL::text"
    rows = sql.execute(
        f"""
        SELECT n.nspname::text, c.relname::text, c.oid::int8, {more}
        FROM pg_publication_tables p
        JOIN pg_namespace n ON n.nspname = p.schemaname
        JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
        WHERE p.pubname = %s AND (%s::oid[] IS NULL OR c.oid = ANY(%s::oid[]))
        ORDER BY 1, 2
        """.encode(),
        [publication, *[None if relids is None else list(relids)] * 2],
    ).fetchall()
    found = [int(row[2]) for row in rows]
    columns, parts = _columns(sql, found), _parts(sql, found)
    marks = read_marks(sql, publication, found)
    newest = sql.info.server_version >= _GENERATED_SINCE
    tables: list[PublishedTable] = []
    for schema, table, relid, names, row_filter in rows:
        every, of = columns.get(relid, []), parts.get(relid, [])
        kept = [c for c in every if _is_published(c, names, sql.info.server_version)]
        tables.append(
            PublishedTable(
                schema,
                table,
                relid,
                tuple(kept),
                tuple(c.name for c in every if c not in kept),
                tuple(c for c in every if c not in kept and (not c.generated or newest)),
                row_filter,
                tuple(shown(*p.name) for p in of if p.lacking),
                tuple(shown(*p.name) for p in of if p.unlogged),
                tuple(p.name for p in of if p.unreadable),
                tuple(shown(*p.name) for p in of if p.policies),
                marks.get(relid),
            )
        )
    return tables


def _is_published(column: PublishedColumn, names: Sequence[str] | None, version: int) -> bool:
    if names is not None and column.name not in names:
        return False
    return not column.generated or version >= _GENERATED_SINCE


def _columns(sql: psycopg.Connection[Any], relids: Sequence[int]) -> dict[int, list[PublishedColumn]]:
    found: dict[int, list[PublishedColumn]] = {}
    for relid, *column in sql.execute(
        """
        SELECT attrelid::int8, attname::text, attnum, atttypid::int8, atttypmod, NOT attnotnull,
               attgenerated <> ''
        FROM pg_attribute WHERE attrelid = ANY(%s::oid[]) AND attnum > 0 AND NOT attisdropped
        ORDER BY attrelid, attnum
        """,
        [relids],
    ):
        found.setdefault(relid, []).append(PublishedColumn(*column))
    return found


@dataclass(frozen=True, slots=True)
class _Part:
    """A published table or one of its partitions with rows, and what is wrong with it (PublishedTable)."""

    name: tuple[str, str]
    lacking: bool
    unlogged: bool
    unreadable: bool
    policies: bool


def _parts(sql: psycopg.Connection[Any], relids: Sequence[int]) -> dict[int, list[_Part]]:
    """(LOCK TABLE, with which the snapshot begins, needs a right to the table: rights to columns are not
    enough.)"""
    found: dict[int, list[_Part]] = {}
    for root, schema, table, *faults in sql.execute(
        """
        SELECT root.oid::int8, n.nspname::text, c.relname::text,
               c.relkind <> 'p' AND c.relreplident <> 'f', c.relkind <> 'p' AND c.relpersistence <> 'p',
               NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')),
               row_security_active(c.oid)
        FROM pg_class root
        CROSS JOIN LATERAL (
          SELECT root.oid UNION
          SELECT relid FROM pg_partition_tree(root.oid) WHERE isleaf AND root.relkind = 'p'
        ) tree (oid)
        JOIN pg_class c ON c.oid = tree.oid
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE root.oid = ANY(%s::oid[])
        ORDER BY 1, 2, 3
        """,
        [relids],
    ):
        found.setdefault(root, []).append(_Part((schema, table), *faults))
    return found


def _types(sql: psycopg.Connection[Any], oids: Collection[int]) -> dict[int, UpstreamType]:
    """The types, and those that domains and arrays are made of."""
    rows = sql.execute(
        """
        WITH RECURSIVE used AS (
          SELECT oid, typbasetype, typtypmod FROM pg_type WHERE oid = ANY(%s::oid[])
          UNION
          SELECT t.oid, t.typbasetype, t.typtypmod FROM used u
          JOIN pg_type t ON t.oid = u.typbasetype OR t.typarray = u.oid
        )
        SELECT u.oid::int8, format_type(u.oid, NULL), u.typbasetype::int8, u.typtypmod,
               coalesce((SELECT e.oid::int8 FROM pg_type e WHERE e.typarray = u.oid), 0)
        FROM used u
        """,
        [list(oids)],
    ).fetchall()
    return {row[0]: UpstreamType(*row) for row in rows}


def _row(sql: psycopg.Connection[Any], query: str) -> tuple[Any, ...]:
    (row,) = sql.execute(query.encode()).fetchall()
    return row


# -- one table


def replicated(
    published: Published, table: PublishedTable, text: Collection[str] = (), exclude: Collection[str] = ()
) -> ReplicatedTable:
    """The table as the source will have it. `text` and `exclude` are names of its columns. Raises
    TidemillError."""
    for name in [*text, *exclude]:
        _known(table, name)
    if table.lacking:
        raise _identity(published, table)
    if table.unlogged:
        raise NotReplicable(
            f"table {', '.join(table.unlogged)} is UNLOGGED at the server",
            detail="Its changes are not in the server's log.",
            hint=f"{_each('ALTER TABLE {} SET LOGGED', table.unlogged)}; at the server",
        )
    if table.unreadable:
        names = [shown(*name) for name in table.unreadable]
        schemas = dict.fromkeys(shown(schema) for schema, _ in table.unreadable)
        raise NotReplicable(
            f"permission denied for table {', '.join(names)} at the server",
            hint=f"GRANT USAGE ON SCHEMA {', '.join(schemas)} and GRANT SELECT ON {', '.join(names)} "
            "to the user of the connection; at the server",
            sqlstate="42501",
        )
    if table.policies:
        raise NotReplicable(
            f"table {', '.join(table.policies)} has row-level security at the server",
            detail="The user of the connection would not see all of its rows.",
            hint="Use a user with BYPASSRLS.",
        )
    kept = [c for c in table.columns if c.name not in exclude]
    if not kept:
        raise InvalidValue(
            f"table {table.shown} has no columns that could be read",
            hint=f"Leave it out: name the other tables (FOR TABLES ...), or ALTER PUBLICATION "
            f"{shown(published.publication)} DROP TABLE {table.shown}; at the server",
            sqlstate="22023",
        )
    return ReplicatedTable(
        f"{table.schema}.{table.table}",
        table.schema,
        table.table,
        table.relid,
        tuple(_column(published, table, c, c.name in text) for c in kept),
        table.filter,
        table.marks and table.marks.of_types({c.oid for c in kept if c.name in text}),
    )


def _known(table: PublishedTable, name: str) -> None:
    names = [c.name for c in table.columns]
    if name in names:
        return
    if name in table.left_out:
        raise UndefinedObject(
            f'column "{name}" of table {table.shown} is not published',
            hint="Leave it out: a column that is not published is not read.",
            sqlstate="42703",
        )
    near = difflib.get_close_matches(name, names, n=_NEAR)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"It has {', '.join(names)}."
    raise UndefinedObject(
        f'column "{name}" of table {table.shown} does not exist', hint=hint, sqlstate="42703"
    )


def _identity(published: Published, table: PublishedTable) -> TidemillError:
    what = "table" if len(table.lacking) == 1 else "tables"
    hint = f"{_each('ALTER TABLE {} REPLICA IDENTITY FULL', table.lacking)}; at the server"
    if table.refused:
        hint += f", but first: {_to_publish(published, table)} Else PostgreSQL refuses UPDATE and DELETE."
    return NotReplicable(
        f"{what} {', '.join(table.lacking)} must have REPLICA IDENTITY FULL",
        detail="Else the server's log does not have the rows that an UPDATE or DELETE removes.",
        hint=hint,
    )


def refused_changes(published: Published, table: PublishedTable) -> Notice | None:
    """A warning if PostgreSQL refuses UPDATE and DELETE of a table whose replica identity is FULL."""
    if not table.refused:
        return None
    return Notice(
        f"PostgreSQL refuses UPDATE and DELETE of table {table.shown}",
        "WARNING",
        detail=f'It has REPLICA IDENTITY FULL, and publication "{published.publication}" leaves out '
        f"{', '.join(c.name for c in table.refused)}.",
        hint=_to_publish(published, table),
    )


def _to_publish(published: Published, table: PublishedTable) -> str:
    if all(c.generated for c in table.refused):
        return (
            f"ALTER PUBLICATION {shown(published.publication)} SET (publish_generated_columns = stored); "
            "at the server. (A VIRTUAL column cannot be published.)"
        )
    return "Publish all columns of the table, and leave them out here with EXCLUDE COLUMNS."


def _each(statement: str, names: Sequence[str]) -> str:
    return "; ".join(statement.format(name) for name in names)


def _column(
    published: Published, table: PublishedTable, column: PublishedColumn, text: bool
) -> ReplicatedColumn:
    name = shown(table.schema, table.table, column.name)
    if text:
        changing = named_elsewhere(column.oid, published.types)
        if changing is not None:
            raise Unsupported(
                f"type {changing} of column {name} is not supported",
                detail="The texts of its values are names, which change without a change of the row.",
                hint=f"EXCLUDE COLUMNS ({shown(table.table, column.name)}) leaves it out.",
            )
        t = TEXT
    else:
        try:
            t = column_type(column.oid, column.typmod, published.types)
        except NotMapped as e:
            why = f": {e.why}" if e.why else ""
            raise Unsupported(
                f"type {e.shown} of column {name} is not supported{why}",
                hint=f"TEXT COLUMNS ({shown(table.table, column.name)}) keeps it as text, "
                "EXCLUDE COLUMNS leaves it out.",
            ) from None
    return ReplicatedColumn(column.name, t, column.nullable, column.oid, column.typmod, column.attnum, text)
