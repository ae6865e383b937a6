"""SHOW CREATE: the statement that would create the object again, with its current names and settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidemill.catalog.connections import connection_of
from tidemill.catalog.items import (
    Connection,
    MaterializedView,
    SchemaItem,
    Secret,
    Sink,
    Source,
    SourceProgress,
    SourceTable,
    Subscription,
    Table,
    View,
)
from tidemill.catalog.state import CatalogState
from tidemill.engine.api import Outcome
from tidemill.engine.ddl.catalog_changes import wrong_kind
from tidemill.engine.ddl.connections import create_connection_sql
from tidemill.engine.ddl.defaults import default_trees
from tidemill.engine.read.local_rows import text_columns, text_rows
from tidemill.engine.relations.kinds import statement_kind
from tidemill.engine.relations.view_text import query_today
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Action, Plan
from tidemill.errors import Internal, WrongObjectType
from tidemill.reclock.boundaries import DEFAULT_INTERVAL_MS
from tidemill.sql import ast
from tidemill.sql.names import quote_ident
from tidemill.sql.parse import parse
from tidemill.sql.parser.envelopes.debezium import Debezium
from tidemill.sql.parser.envelopes.debezium_upsert import DebeziumUpsert
from tidemill.sql.render import to_sql
from tidemill.types.model import type_name


def plan_show_create(view: CatalogView, statement: ast.ShowCreate) -> Plan:
    kinds = (ast.ObjectKind.CONNECTION, ast.ObjectKind.SINK, ast.ObjectKind.SUBSCRIPTION)
    named = {kind: kind.value.lower() for kind in kinds}
    item = view.resolver().any_item(statement.name, named.get(statement.kind, "relation"))
    if statement_kind(item) is not statement.kind:
        raise wrong_kind(item, statement.kind, statement.name, view.state)
    name = ast.Name(view.state.full_name(item))
    create = _create_sql(view.state, name, item, statement.name)
    columns = text_columns("name", "create_sql")

    async def act() -> Outcome:
        return text_rows([c.name for c in columns], [(".".join(name.parts), create)])

    return Action(act, columns)


def _create_sql(catalog: CatalogState, name: ast.Name, item: SchemaItem, written: ast.Name) -> str:
    match item:
        case Connection():
            return create_connection_sql(catalog, name, item)
        case Sink():
            return create_sink_sql(catalog, name, item)
        case Subscription():
            return create_subscription_sql(catalog, name, item)
        case Secret():
            raise Internal("what a secret holds is not shown")
        case Table():
            return create_table_sql(name, item)
        case View():
            return create_view_sql(catalog, name, item)
        case MaterializedView():
            return create_materialized_view_sql(catalog, name, item)
        case Source():
            return create_source_sql(catalog, name, item)
        case SourceTable() if not item.subsource:
            return create_table_from_source_sql(catalog, name, item)
        case SourceTable() | SourceProgress():
            owner = catalog.relation(item.owner or item.source)
            kind = statement_kind(owner).value
            raise WrongObjectType(
                f'"{item.name}" was made with its {kind.lower()}',
                hint=f"Use SHOW CREATE {kind} {ast.Name(catalog.full_name(owner))}.",
                position=written.offset + 1,
            )


def create_table_sql(name: ast.Name, table: Table) -> str:
    """The statement that would create the table again."""
    trees = default_trees(table)
    columns = tuple(
        ast.ColumnDef(
            ast.Ident(column.name),
            type_name(column.type),
            not_null=not column.nullable,
            default=ast.Expr(trees[column.name]) if column.name in trees else None,
        )
        for column in table.desc.columns
    )
    constraints = tuple(
        ast.TableConstraint(
            ast.ConstraintKind.PRIMARY_KEY if key.primary else ast.ConstraintKind.UNIQUE,
            tuple(map(ast.Ident, key.columns)),
        )
        for key in table.keys
    )
    retain = table.retain_history_ms
    history = None if retain is None else f"{retain}ms"
    return to_sql(ast.CreateTable(name, columns, constraints, retain_history=history))


def create_view_sql(catalog: CatalogState, name: ast.Name, view: View) -> str:
    columns = ", ".join(quote_ident(c) for c in view.desc.names)
    return f"CREATE VIEW {name} ({columns}) AS {query_today(catalog, view, catalog.full_name)}"


def create_materialized_view_sql(catalog: CatalogState, name: ast.Name, view: MaterializedView) -> str:
    columns = ", ".join(quote_ident(c) for c in view.desc.names)
    retain = view.retain_history_ms
    history = "" if retain is None else f" WITH (RETAIN HISTORY FOR '{retain}ms')"
    query = query_today(catalog, view, catalog.full_name)
    return f"CREATE MATERIALIZED VIEW {name} ({columns}){history} AS {query}"


def create_sink_sql(catalog: CatalogState, name: ast.Name, sink: Sink) -> str:
    """The statement that created the sink, with current names."""
    (parsed,) = parse(sink.sql)
    statement = parsed.statement
    if not isinstance(statement, ast.CreateSink):
        raise Internal(f"the text of sink {sink.name} is no CREATE SINK")
    body = json.loads(sink.definition)

    def connection(kept: str | None) -> ast.Name | None:
        return None if kept is None else ast.Name(catalog.full_name(catalog.get(kept, Connection)))

    relation = ast.Name(catalog.full_name(catalog.relation(sink.relation)))
    target, through = statement.target, connection(body["connection"])
    if through is not None:
        target = target.through(through)
    form = replace(statement.format, registry=connection(body["registry"]))
    return to_sql(replace(statement, name=name, relation=relation, target=target, format=form))


def create_subscription_sql(catalog: CatalogState, name: ast.Name, item: Subscription) -> str:
    relation: ast.Name | ast.Query
    if item.relation is not None:
        relation = ast.Name(catalog.full_name(catalog.relation(item.relation)))
    else:
        (parsed,) = parse(query_today(catalog, item, catalog.full_name))
        if not isinstance(parsed.statement, ast.Query):
            raise Internal(f"the text of subscription {item.name} is no query")
        relation = parsed.statement
    keys = tuple(map(ast.Ident, item.keys))
    envelopes = {"envelope_upsert": ast.EnvelopeUpsert, "envelope_debezium": ast.EnvelopeDebezium}
    envelope = envelopes[item.output](keys) if keys else None
    retain = None if item.retain_ms is None else f"{item.retain_ms}ms"
    size = None if item.retain_bytes is None else f"{item.retain_bytes}B"
    return to_sql(
        ast.CreateSubscription(
            name,
            relation,
            envelope,
            snapshot=item.snapshot,
            retain=retain,
            retain_size=size,
            shares=item.shares,
            share_key=tuple(map(ast.Ident, item.share_key)),
        )
    )


def create_table_from_source_sql(catalog: CatalogState, name: ast.Name, table: SourceTable) -> str:
    source = ast.Name(catalog.full_name(catalog.get(table.source, Source)))
    if table.sql is None or table.definition is None:
        columns = tuple(ast.Ident(n) for n in table.desc.names)
        return to_sql(ast.CreateTableFromSource(name, source, ast.Name((table.output,)), columns))
    statement = _table_statement(table, table.sql)
    messages = statement.messages
    if not messages.silent:
        messages = _messages_today(catalog, table, messages, json.loads(table.definition))
    return to_sql(replace(statement, name=name, source=source, messages=messages))


def _table_statement(table: SourceTable, sql: str) -> ast.CreateTableFromSource:
    (parsed,) = parse(sql)
    if not isinstance(parsed.statement, ast.CreateTableFromSource):
        raise Internal(f"the text of table {table.name} is no CREATE TABLE ... FROM SOURCE")
    return parsed.statement


def _messages_today(
    catalog: CatalogState, of: Source | SourceTable, said: ast.Messages, spec: Mapping[str, Any]
) -> ast.Messages:
    """The definition's `spec` of the output, with the current names of the connections to registries and of
    the dead letters."""

    def form(written: ast.Format | None, kept: Mapping[str, Any] | None) -> ast.Format | None:
        if kept is None or not isinstance(written, ast.AvroRegistry | ast.ProtobufRegistry):
            return written
        connection = (kept.get("registry") or {}).get("connection")
        if connection is None:
            return written
        return replace(written, registry=ast.Name(catalog.full_name(catalog.get(connection, Connection))))

    letters, on_error = catalog.dead_letters(of), said.on_error
    if on_error is not None and letters is not None:
        on_error = replace(on_error, into=ast.Name((letters.name,)))
    envelope, transactions = said.envelope, spec["envelope"].get("transactions")
    if transactions is not None and isinstance(envelope, Debezium | DebeziumUpsert):
        assert envelope.transactions is not None
        topic = ast.Name(catalog.full_name(catalog.get(transactions["source"], Source)))
        envelope = replace(envelope, transactions=replace(envelope.transactions, source=topic))
    return replace(
        said,
        key=form(said.key, spec["key"]),
        value=form(said.value, spec["value"]),
        envelope=envelope,
        on_error=on_error,
    )


def create_source_sql(catalog: CatalogState, name: ast.Name, source: Source) -> str:
    """The statement that created the source, with the changes that RENAME and ALTER have made since."""
    (parsed,) = parse(source.sql)
    statement = parsed.statement
    if not isinstance(statement, ast.CreateSource):
        raise Internal(f"the text of source {source.name} is no CREATE SOURCE")
    statement = _source_today(catalog, statement, source)
    tables = [t for t in catalog.source_tables(source.id) if t.subsource and t.dead_letters_of is None]
    subsources = tuple(ast.SourceOutput(_reference(t), ast.Name((t.name,))) for t in tables)
    statement = replace(statement, upstream=statement.upstream.choosing(_choice(tables)))
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


def _reference(table: SourceTable) -> ast.Name:
    """What the upstream calls the table."""
    return ast.Name((table.output,)) if table.sql is None else _table_statement(table, table.sql).reference


def _choice(tables: Sequence[SourceTable]) -> ast.ColumnChoice:
    """The choices of all subsources, whichever statement made them."""
    text: list[ast.Name] = []
    exclude: list[ast.Name] = []
    for table in tables:
        if table.sql is not None:
            made = _table_statement(table, table.sql)
            of = made.reference.parts
            text += [ast.Name((*of, *name.parts)) for name in made.choice.text]
            exclude += [ast.Name((*of, *name.parts)) for name in made.choice.exclude]
    return ast.ColumnChoice(tuple(text), tuple(exclude))


def _source_today(catalog: CatalogState, statement: ast.CreateSource, source: Source) -> ast.CreateSource:
    """The definition with the current names of its connections."""
    connection = connection_of(catalog, source)
    if connection is not None:
        name = ast.Name(catalog.full_name(connection))
        statement = replace(statement, upstream=statement.upstream.through(name))
    if source.depends_on and source.desc is not None:
        spec, *_ = json.loads(source.definition)["outputs"]
        statement = replace(statement, messages=_messages_today(catalog, source, statement.messages, spec))
    return statement
