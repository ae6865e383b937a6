"""SHOW CREATE: the statement that would make the thing anew, as it is called and set today."""

from __future__ import annotations

from dataclasses import replace

from tidemill.catalog.items import Relation, Source, SourceProgress, SourceTable, Table, View
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import Outcome
from tidemill.engine.changes import wrong_kind
from tidemill.engine.kinds import statement_kind
from tidemill.engine.local_rows import text_columns, text_rows
from tidemill.engine.plan import Action, Plan
from tidemill.engine.session import EngineSession
from tidemill.errors import Internal, WrongObjectType
from tidemill.reclock.boundaries import DEFAULT_INTERVAL_MS
from tidemill.sql import ast
from tidemill.sql.names import quote_ident
from tidemill.sql.parse import parse
from tidemill.sql.render import to_sql
from tidemill.types.model import type_name


def plan_show_create(session: EngineSession, statement: ast.ShowCreate, catalog: CatalogState) -> Plan:
    item = session.resolver(catalog).item(statement.name)
    if statement_kind(item) is not statement.kind:
        raise wrong_kind(item, statement.kind, statement.name)
    name = ast.Name(catalog.full_name(item))
    create = _create_sql(catalog, name, item, statement.name)
    columns = text_columns("name", "create_sql")

    async def act(s: EngineSession) -> Outcome:
        del s
        return text_rows([c.name for c in columns], [(".".join(name.parts), create)])

    return Action(act, columns)


def _create_sql(catalog: CatalogState, name: ast.Name, item: Relation, written: ast.Name) -> str:
    match item:
        case Table():
            return create_table_sql(name, item)
        case View():
            return create_view_sql(name, item)
        case Source():
            return create_source_sql(catalog, name, item)
        case SourceTable() if not item.subsource:
            source = catalog.get(item.source, Source)
            return to_sql(
                ast.CreateTableFromSource(
                    name,
                    ast.Name(catalog.full_name(source)),
                    ast.Name((item.output,)),
                    tuple(ast.Ident(n) for n in item.desc.names),
                )
            )
        case SourceTable() | SourceProgress():
            source = catalog.get(item.source, Source)
            raise WrongObjectType(
                f'"{item.name}" was made with its source',
                hint=f"Use SHOW CREATE SOURCE {ast.Name(catalog.full_name(source))}.",
                position=written.offset + 1,
            )


def create_table_sql(name: ast.Name, table: Table) -> str:
    """The statement that would make the table anew."""
    lines: list[str] = []
    for column, default in zip(table.desc.columns, table.defaults, strict=True):
        line = f"{quote_ident(column.name)} {type_name(column.type)}"
        if not column.nullable:
            line += " NOT NULL"
        if default is not None:
            line += f" DEFAULT {default}"
        lines.append(line)
    for key in table.keys:
        kind = "PRIMARY KEY" if key.primary else "UNIQUE"
        lines.append(f"{kind} ({', '.join(quote_ident(c) for c in key.columns)})")
    text = f"CREATE TABLE {name} (" + ", ".join(lines) + ")"
    if table.retain_history_ms is not None:
        text += f" WITH (RETAIN HISTORY FOR '{table.retain_history_ms}ms')"
    return text


def create_view_sql(name: ast.Name, view: View) -> str:
    columns = ", ".join(quote_ident(c) for c in view.desc.names)
    return f"CREATE VIEW {name} ({columns}) AS {view.sql}"


def create_source_sql(catalog: CatalogState, name: ast.Name, source: Source) -> str:
    """The statement that made it, with what RENAME and ALTER have changed since."""
    (parsed,) = parse(source.sql)
    statement = parsed.statement
    if not isinstance(statement, ast.CreateSource):
        raise Internal(f"the text of source {source.name} is no CREATE SOURCE")
    subsources = tuple(
        ast.SourceOutput(ast.Name((t.output,)), ast.Name((t.name,)))
        for t in catalog.source_tables(source.id)
        if t.subsource
    )
    retain, interval = source.retain_history_ms, source.interval_ms
    return to_sql(
        replace(
            statement,
            name=name,
            tables=ast.ForTables(subsources) if subsources else None,
            progress=ast.Name((catalog.progress(source.id).name,)),
            retain_history=None if retain is None else f"{retain}ms",
            interval=None if interval == DEFAULT_INTERVAL_MS else f"{interval}ms",
        )
    )
