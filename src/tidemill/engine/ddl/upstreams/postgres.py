"""FROM POSTGRES: asks the server what the publication has, and describes the tables that the statement chose.

Each table has its own output in the catalog, a subsource of FOR ... too: so they are added and dropped one by
one. The replication slot is made by the source itself (`sources.postgres.source`), when it first runs.
"""

from __future__ import annotations

import difflib
import json
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tidemill.catalog.connections import POSTGRES, connection_of
from tidemill.catalog.items import Source
from tidemill.engine.ddl.upstreams.described import DescribeContext, Described, DescribedTable
from tidemill.engine.ddl.upstreams.messages import DescribedOutput
from tidemill.errors import (
    DuplicateObject,
    Internal,
    SyntaxError_,
    TidemillError,
    UndefinedObject,
    Unsupported,
)
from tidemill.sources.offsets import Offsets
from tidemill.sources.postgres.definition import GAUGE, ReplicatedTable, shown
from tidemill.sources.postgres.describe import Published, PublishedTable, look, refused_changes, replicated
from tidemill.sql import ast
from tidemill.sql.parser.upstreams.postgres import Postgres

# How many names a hint has.
_NEAR = 3


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A table that the statement chose: its name here, and the choice of its columns by their names alone.
    `offset` is where the statement names it."""

    table: PublishedTable
    name: ast.Name
    choice: ast.ColumnChoice
    offset: int


def describe_postgres(statement: ast.CreateSource, postgres: Postgres, context: DescribeContext) -> Described:
    publication = _check(statement, postgres)
    connection = context.find(postgres.connection, POSTGRES)
    published = look(context.reached(connection), publication)
    chosen = _chosen(published, statement.tables, postgres.choice)
    definition = {
        "kind": POSTGRES,
        "connection": connection.id,
        "publication": publication,
        "slot": f"tidemill_{uuid.uuid4().hex}",
        "system": published.system,
        "lsn": None,
        "timeline": None,
        "outputs": [],
        "started": context.started,
    }
    return Described(
        POSTGRES,
        f'publication "{publication}"',
        definition,
        GAUGE,
        (),
        connections=(connection.id,),
        tables=tuple(_described(published, one, statement.name) for one in chosen),
        notices=tuple(n for one in chosen if (n := refused_changes(published, one.table)) is not None),
    )


def describe_postgres_table(
    source: Source, statement: ast.CreateTableFromSource, context: DescribeContext
) -> DescribedOutput:
    """The output that CREATE TABLE adds to its source."""
    if not statement.messages.silent:
        raise _messages(statement.source.offset)
    published = _published(source, context)
    table = _find(published, statement.reference)
    named = _Chosen(table, statement.name, statement.choice, statement.reference.offset)
    spec = _replicated(published, named)
    return DescribedOutput(spec.spec(), spec.output, (), Offsets.at(published.position))


def describe_postgres_added(
    source: Source, statement: ast.AddSubsources, context: DescribeContext
) -> tuple[tuple[DescribedTable, ...], Offsets]:
    """The subsources that ALTER SOURCE adds, and the position of `DescribedOutput.at`."""
    published = _published(source, context)
    chosen = _chosen(published, ast.ForTables(statement.outputs), statement.choice)
    tables = tuple(_described(published, one, statement.name) for one in chosen)
    return tables, Offsets.at(published.position)


def _published(source: Source, context: DescribeContext) -> Published:
    """What the publication of an existing source has now."""
    connection = connection_of(context.catalog, source)
    if connection is None:
        raise Internal(f"source {source.name} has no connection")
    return look(context.reached(connection), json.loads(source.definition)["publication"])


# -- the statement


def _check(statement: ast.CreateSource, postgres: Postgres) -> str:
    """The publication. Raises for clauses that do not go with it."""
    if not postgres.publication:
        raise SyntaxError_(
            "a PostgreSQL source needs the option PUBLICATION", hint="Write (PUBLICATION 'p')."
        )
    if not statement.messages.silent:
        raise _messages(postgres.offset)
    if not statement.validate:
        raise Unsupported(
            "VALIDATE = false is not possible for a PostgreSQL source",
            detail="The server must say which columns its tables have.",
        )
    if statement.tables is None and postgres.choice != ast.NO_CHOICE:
        raise SyntaxError_(
            "TEXT COLUMNS and EXCLUDE COLUMNS need tables",
            hint="Write FOR TABLES (...), or give them to CREATE TABLE ... FROM SOURCE ... WITH (...).",
        )
    return postgres.publication


def _messages(offset: int) -> TidemillError:
    return Unsupported(
        "FORMAT, INCLUDE, ENVELOPE and ON ERROR are not possible for a PostgreSQL source",
        detail="Its tables have rows, not messages.",
        hint="Leave them out.",
        position=offset + 1,
    )


# -- the choice of tables


def _chosen(
    published: Published, tables: ast.ForTables | None, choice: ast.ColumnChoice
) -> tuple[_Chosen, ...]:
    if tables is None:
        return ()
    if tables.tables is not None:
        asked = [(_find(published, t.output), t.alias or _item(t.output), t.output) for t in tables.tables]
        found = [(table, name, reference.offset) for table, name, reference in asked]
    else:
        kept = published.tables if tables.schemas is None else _in_schemas(published, tables.schemas)
        found = [(table, ast.Name((table.table,)), 0) for table in kept]
    _check_once(found)
    choices = _by_table([table for table, _, _ in found], choice)
    return tuple(
        _Chosen(table, name, choices.get(table.relid, ast.NO_CHOICE), offset) for table, name, offset in found
    )


def _item(name: ast.Name) -> ast.Name:
    return ast.Name((name.item,), name.offset)


def _in_schemas(published: Published, schemas: Sequence[ast.Ident]) -> list[PublishedTable]:
    known = sorted({table.schema for table in published.tables})
    for schema in schemas:
        if schema.value not in known:
            raise UndefinedObject(
                f'publication "{published.publication}" has no tables in schema "{schema.value}"',
                hint=_near(schema.value, known) or f"It has tables in {', '.join(known)}.",
                sqlstate="3F000",
                position=schema.offset + 1,
            )
    asked = {schema.value for schema in schemas}
    return [table for table in published.tables if table.schema in asked]


def _find(published: Published, reference: ast.Name) -> PublishedTable:
    """The table of that name. Its schema may be left out if no other schema has one of the name."""
    if len(reference.parts) > 2:
        raise SyntaxError_(
            "a table of a publication is named by its schema and its name",
            hint=f"Write {ast.Name(reference.parts[-2:])}: the database is that of the connection.",
            position=reference.offset + 1,
        )
    schema, name = reference.parts[:-1], reference.item
    found = [t for t in published.tables if t.table == name and schema in ((), (t.schema,))]
    if len(found) == 1:
        return found[0]
    if found:
        raise TidemillError(
            f'table reference "{reference}" is ambiguous',
            detail=f"The publication has {' and '.join(t.shown for t in found)}.",
            hint="Write it with its schema.",
            sqlstate="42P09",
            position=reference.offset + 1,
        )
    raise UndefinedObject(
        f'publication "{published.publication}" has no table "{".".join(reference.parts)}"',
        hint=_near(name, [t.table for t in published.tables])
        or f"ALTER PUBLICATION {shown(published.publication)} ADD TABLE {reference}; at the server. "
        f"It has {_some([t.shown for t in published.tables])}.",
        sqlstate="42P01",
        position=reference.offset + 1,
    )


def _near(name: str, known: Collection[str]) -> str | None:
    near = difflib.get_close_matches(name, list(known), n=_NEAR)
    return f"Did you mean {' or '.join(dict.fromkeys(near))}?" if near else None


def _some(names: Sequence[str]) -> str:
    more = len(names) - 4 * _NEAR
    return ", ".join(names[: 4 * _NEAR]) + (f" and {more} more" if more > 0 else "")


def _check_once(found: Sequence[tuple[PublishedTable, ast.Name, int]]) -> None:
    """No table twice, and no name twice."""
    tables: set[int] = set()
    names: dict[str, PublishedTable] = {}
    for table, name, offset in found:
        if table.relid in tables:
            raise DuplicateObject(
                f"table {table.shown} is named more than once", sqlstate="42712", position=offset + 1
            )
        tables.add(table.relid)
        other = names.setdefault(name.item, table)
        if other is not table:
            raise DuplicateObject(
                f'two tables would have the name "{name.item}"',
                detail=f"They are {other.shown} and {table.shown}.",
                hint="Write FOR TABLES (schema.name AS another, ...).",
                sqlstate="42712",
                position=offset + 1 if offset else None,
            )


# -- the choice of columns


def _by_table(tables: Sequence[PublishedTable], choice: ast.ColumnChoice) -> dict[int, ast.ColumnChoice]:
    """The choice of each table, by its number at the server, with names of columns alone."""
    text, exclude = (_columns(tables, names) for names in (choice.text, choice.exclude))
    return {
        relid: ast.ColumnChoice(tuple(text.get(relid, ())), tuple(exclude.get(relid, ())))
        for relid in {*text, *exclude}
    }


def _columns(tables: Sequence[PublishedTable], names: Sequence[ast.Name]) -> dict[int, list[ast.Name]]:
    found: dict[int, list[ast.Name]] = {}
    for name in names:
        *schema, table, column = ("", *name.parts) if len(name.parts) == 1 else name.parts
        of = [t for t in tables if t.table == table and schema in ([], [t.schema])]
        if len(of) != 1:
            raise UndefinedObject(
                f'"{name}" is no column of one of the chosen tables',
                hint=_near(table, [t.table for t in tables])
                or "Write table.column, or schema.table.column. "
                f"The tables are {_some([t.shown for t in tables])}.",
                sqlstate="42703",
                position=name.offset + 1,
            )
        found.setdefault(of[0].relid, []).append(ast.Name((column,), name.offset))
    return found


# -- a table


def _described(published: Published, chosen: _Chosen, source: ast.Name) -> DescribedTable:
    table = _replicated(published, chosen)
    reference = ast.Name((table.schema, table.table))
    statement = ast.CreateTableFromSource(_item(chosen.name), _item(source), reference, choice=chosen.choice)
    return DescribedTable(chosen.name, table.output, table.spec(), statement)


def _replicated(published: Published, chosen: _Chosen) -> ReplicatedTable:
    text, exclude = chosen.choice.text, chosen.choice.exclude
    for name in (*text, *exclude):
        if len(name.parts) > 1:
            raise SyntaxError_(
                "a column of the table is named by its name alone",
                hint=f"Write {ast.Ident(name.item)}.",
                position=name.offset + 1,
            )
    try:
        return replicated(published, chosen.table, [n.item for n in text], [n.item for n in exclude])
    except TidemillError as e:
        named = [n.offset for n in (*text, *exclude) if f'"{n.item}"' in e.primary]
        offset = named[0] if named else chosen.offset
        e.position = e.position or (offset + 1 if offset else None)
        raise
