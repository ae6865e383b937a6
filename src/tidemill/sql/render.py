"""Statements back to SQL text: for SHOW CREATE, and for what the catalog keeps.

`to_sql` is the inverse of `parse`: `parse(to_sql(s))` gives a statement equal to `s`. Names are written as
they stand in the statement; whoever wants them qualified puts qualified names in first. Raises
`Unsupported` for a query that the PostgreSQL generator cannot write.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch

from sqlglot import exp

from tidemill.errors import Internal
from tidemill.sql import ast
from tidemill.sql.names import quote_ident, quote_literal
from tidemill.sql.render_connections import (
    alter_connection_sql,
    alter_secret_sql,
    create_connection_sql,
    create_secret_sql,
)
from tidemill.sql.render_roles import role_sql
from tidemill.sql.render_sinks import create_sink_sql
from tidemill.sql.render_sources import (
    alter_source_sql,
    create_source_sql,
    create_table_from_source_sql,
)
from tidemill.sql.render_subscribe import subscribe_sql
from tidemill.sql.render_trees import expr_sql as _expr
from tidemill.sql.render_trees import expression_sql, query_sql

__all__ = ["expression_sql", "query_sql", "to_sql"]


@singledispatch
def to_sql(statement: ast.Statement) -> str:
    """`statement` as canonical text, without a semicolon."""
    if (text := role_sql(statement)) is not None:
        return text
    raise Internal(f"no text for {type(statement).__name__}")


def _list(items: Iterable[object]) -> str:
    return ", ".join(str(i) for i in items)


def _columns(columns: tuple[ast.Ident, ...]) -> str:
    return f" ({_list(columns)})" if columns else ""


def _if(condition: bool, text: str) -> str:
    return f"{text} " if condition else ""


def _history(duration: str | None) -> str:
    return "" if duration is None else f" WITH (RETAIN HISTORY FOR {quote_literal(duration)})"


@to_sql.register
def _(s: ast.Subscribe) -> str:
    return subscribe_sql(s)


# -- relations


@to_sql.register
def _(s: ast.Query) -> str:
    return query_sql(s)


def _column_def(column: ast.ColumnDef) -> str:
    text = f"{column.name} {column.type}"
    if column.not_null:
        text += " NOT NULL"
    if column.default is not None:
        text += f" DEFAULT {_default(column.default)}"
    if column.primary_key:
        text += " PRIMARY KEY"
    if column.unique:
        text += " UNIQUE"
    return text


def _default(default: ast.Expr) -> str:
    """A default ends where a constraint could start (NOT, NULL, ...): whatever may hold such words stands
    in parentheses."""
    text = _expr(default)
    plain = isinstance(default.tree, exp.Literal | exp.Null | exp.Boolean | exp.Cast | exp.Func)
    return text if plain else f"({text})"


def _constraint(constraint: ast.TableConstraint) -> str:
    named = f"CONSTRAINT {constraint.name} " if constraint.name else ""
    return f"{named}{constraint.kind.value} ({_list(constraint.columns)})"


@to_sql.register
def _(s: ast.CreateTable) -> str:
    elements = [*map(_column_def, s.columns), *map(_constraint, s.constraints)]
    body = "(\n    " + ",\n    ".join(elements) + "\n)" if elements else "()"
    return f"CREATE TABLE {_if(s.if_not_exists, 'IF NOT EXISTS')}{s.name} {body}{_history(s.retain_history)}"


@to_sql.register
def _(s: ast.CreateTableAs) -> str:
    head = f"CREATE TABLE {_if(s.if_not_exists, 'IF NOT EXISTS')}{s.name}{_columns(s.columns)}"
    tail = "" if s.with_data else " WITH NO DATA"
    return f"{head}{_history(s.retain_history)} AS {query_sql(s.query)}{tail}"


@to_sql.register
def _(s: ast.CreateView) -> str:
    head = f"CREATE {_if(s.or_replace, 'OR REPLACE')}VIEW {_if(s.if_not_exists, 'IF NOT EXISTS')}"
    return f"{head}{s.name}{_columns(s.columns)} AS {query_sql(s.query)}"


@to_sql.register
def _(s: ast.CreateMaterializedView) -> str:
    head = f"CREATE MATERIALIZED VIEW {_if(s.if_not_exists, 'IF NOT EXISTS')}{s.name}{_columns(s.columns)}"
    cluster = f" IN CLUSTER {s.cluster}" if s.cluster else ""
    return f"{head}{cluster}{_history(s.retain_history)} AS {query_sql(s.query)}"


@to_sql.register
def _(s: ast.CreateSchema) -> str:
    return f"CREATE SCHEMA {_if(s.if_not_exists, 'IF NOT EXISTS')}{s.name}"


@to_sql.register
def _(s: ast.CreateDatabase) -> str:
    return f"CREATE DATABASE {_if(s.if_not_exists, 'IF NOT EXISTS')}{s.name}"


@to_sql.register
def _(s: ast.Drop) -> str:
    cascade = " CASCADE" if s.cascade else ""
    return f"DROP {s.kind.value} {_if(s.if_exists, 'IF EXISTS')}{_list(s.names)}{cascade}"


@to_sql.register
def _(s: ast.AlterTable) -> str:
    return f"ALTER TABLE {_if(s.if_exists, 'IF EXISTS')}{s.name} {_action(s.action)}"


@to_sql.register
def _(s: ast.AlterMaterializedView) -> str:
    return f"ALTER MATERIALIZED VIEW {_if(s.if_exists, 'IF EXISTS')}{s.name} {_action(s.action)}"


def _action(action: ast.TableAction) -> str:
    match action:
        case ast.AddColumn(column, if_not_exists):
            return f"ADD COLUMN {_if(if_not_exists, 'IF NOT EXISTS')}{_column_def(column)}"
        case ast.SetDefault(column, default):
            change = "DROP DEFAULT" if default is None else f"SET DEFAULT {_default(default)}"
            return f"ALTER COLUMN {column} {change}"
        case ast.SetNotNull(column, not_null):
            return f"ALTER COLUMN {column} {'SET' if not_null else 'DROP'} NOT NULL"
        case ast.RenameColumn(column, new_name):
            return f"RENAME COLUMN {column} TO {new_name}"
        case ast.SetRetainHistory(duration):
            if duration is None:
                return "RESET (RETAIN HISTORY)"
            return f"SET (RETAIN HISTORY FOR {quote_literal(duration)})"


@to_sql.register
def _(s: ast.Rename) -> str:
    return f"ALTER {s.kind.value} {_if(s.if_exists, 'IF EXISTS')}{s.name} RENAME TO {s.new_name}"


@to_sql.register
def _(s: ast.CommentOn) -> str:
    kind = "ROLE" if s.kind is None else s.kind.value
    what = f"COLUMN {s.name}.{s.column}" if s.column else f"{kind} {s.name}"
    return f"COMMENT ON {what} IS {'NULL' if s.text is None else quote_literal(s.text)}"


@to_sql.register
def _(s: ast.CreateSink) -> str:
    return create_sink_sql(s)


@to_sql.register
def _(s: ast.CreateSource) -> str:
    return create_source_sql(s)


@to_sql.register
def _(s: ast.CreateTableFromSource) -> str:
    return create_table_from_source_sql(s)


@to_sql.register
def _(s: ast.AlterSource) -> str:
    return alter_source_sql(s)


@to_sql.register
def _(s: ast.CreateSecret) -> str:
    return create_secret_sql(s)


@to_sql.register
def _(s: ast.AlterSecret) -> str:
    return alter_secret_sql(s)


@to_sql.register
def _(s: ast.CreateConnection) -> str:
    return create_connection_sql(s)


@to_sql.register
def _(s: ast.AlterConnection) -> str:
    return alter_connection_sql(s)


# -- rows


def _returning(items: tuple[ast.Expr, ...]) -> str:
    return f" RETURNING {_list(map(_expr, items))}" if items else ""


def _alias(alias: ast.Ident | None) -> str:
    return f" AS {alias}" if alias else ""


def _where(where: ast.Expr | None) -> str:
    return f" WHERE {_expr(where)}" if where else ""


def _relations(word: str, query: ast.Query | None) -> str:
    """The items of FROM or USING, which the statement keeps as SELECT * FROM items."""
    if query is None:
        return ""
    head = "SELECT * FROM "
    text = query_sql(query)
    if not text.startswith(head):
        raise Internal("the relations of a write are not SELECT * FROM items")
    return f" {word} {text.removeprefix(head)}"


@to_sql.register
def _(s: ast.Insert) -> str:
    match s.source:
        case None:
            source = "DEFAULT VALUES"
        case ast.Values(rows):
            source = "VALUES " + ", ".join(f"({_list(map(_expr, row))})" for row in rows)
        case ast.Query():
            source = query_sql(s.source)
    return f"INSERT INTO {s.table}{_alias(s.alias)}{_columns(s.columns)} {source}{_returning(s.returning)}"


def _assignment(assignment: ast.Assignment) -> str:
    if len(assignment.columns) == 1:
        return f"{assignment.columns[0]} = {_expr(assignment.value)}"
    return f"({_list(assignment.columns)}) = {_expr(assignment.value)}"


@to_sql.register
def _(s: ast.Update) -> str:
    head = f"UPDATE {s.table}{_alias(s.alias)} SET {_list(map(_assignment, s.assignments))}"
    return f"{head}{_relations('FROM', s.from_)}{_where(s.where)}{_returning(s.returning)}"


@to_sql.register
def _(s: ast.Delete) -> str:
    head = f"DELETE FROM {s.table}{_alias(s.alias)}{_relations('USING', s.using)}"
    return f"{head}{_where(s.where)}{_returning(s.returning)}"


@to_sql.register
def _(s: ast.Truncate) -> str:
    return f"TRUNCATE {_list(s.tables)}"


def _copy_options(o: ast.CopyOptions) -> str:
    said = [f"FORMAT {o.format}"]
    if o.format != "binary":
        said += [f"DELIMITER {quote_literal(o.delimiter)}", f"NULL {quote_literal(o.null)}"]
        said += [f"HEADER {'match' if o.header_match else 'true'}"] if o.header else []
    if o.format == "csv":
        said += [f"QUOTE {quote_literal(o.quote)}", f"ESCAPE {quote_literal(o.escape)}"]
    said += [f"DEFAULT {quote_literal(o.default)}"] if o.default is not None else []
    said += [f"ENCODING {quote_literal(o.encoding)}"] if o.encoding != "UTF8" else []
    forced = (("QUOTE", o.force_quote), ("NOT_NULL", o.force_not_null), ("NULL", o.force_null))
    for name, columns in forced:
        if columns == ("*",):
            said.append(f"FORCE_{name} *")
        elif columns:
            said.append(f"FORCE_{name} ({_list(map(quote_ident, columns))})")
    return f" WITH ({_list(said)})"


@to_sql.register
def _(s: ast.CopyFrom) -> str:
    return f"COPY {s.table}{_columns(s.columns)} FROM STDIN{_copy_options(s.options)}{_where(s.where)}"


@to_sql.register
def _(s: ast.CopyTo) -> str:
    source = str(s.source) if isinstance(s.source, ast.Name) else f"({to_sql(s.source)})"
    return f"COPY {source}{_columns(s.columns)} TO STDOUT{_copy_options(s.options)}"


# -- the session


def _modes(modes: ast.TransactionModes) -> str:
    said: list[str] = []
    if modes.isolation is not None:
        said.append(f"ISOLATION LEVEL {modes.isolation.upper()}")
    if modes.read_only is not None:
        said.append("READ ONLY" if modes.read_only else "READ WRITE")
    if modes.deferrable is not None:
        said.append("DEFERRABLE" if modes.deferrable else "NOT DEFERRABLE")
    return _list(said)


@to_sql.register
def _(s: ast.Begin) -> str:
    return f"{'START TRANSACTION' if s.start else 'BEGIN'} {_modes(s.modes)}".rstrip()


@to_sql.register
def _(s: ast.Commit) -> str:
    return "COMMIT AND CHAIN" if s.chain else "COMMIT"


@to_sql.register
def _(s: ast.Rollback) -> str:
    return "ROLLBACK AND CHAIN" if s.chain else "ROLLBACK"


@to_sql.register
def _(s: ast.Savepoint) -> str:
    return f"SAVEPOINT {s.name}"


@to_sql.register
def _(s: ast.ReleaseSavepoint) -> str:
    return f"RELEASE {s.name}"


@to_sql.register
def _(s: ast.RollbackTo) -> str:
    return f"ROLLBACK TO {s.name}"


@to_sql.register
def _(s: ast.SetTransaction) -> str:
    return f"SET {'SESSION CHARACTERISTICS AS ' if s.session else ''}TRANSACTION {_modes(s.modes)}"


@to_sql.register
def _(s: ast.Declare) -> str:
    return f"DECLARE {s.name} {_if(s.binary, 'BINARY')}CURSOR {_if(s.hold, 'WITH HOLD')}FOR {to_sql(s.query)}"


@to_sql.register
def _(s: ast.Fetch) -> str:
    timeout = "" if s.timeout is None else f" WITH (TIMEOUT = {quote_literal(s.timeout)})"
    verb = "MOVE" if s.move else "FETCH"
    return f"{verb} {'ALL' if s.count is None else s.count} FROM {s.cursor}{timeout}"


@to_sql.register
def _(s: ast.Close) -> str:
    return f"CLOSE {s.cursor or 'ALL'}"


@to_sql.register
def _(s: ast.Prepare) -> str:
    types = f" ({_list(s.types)})" if s.types else ""
    return f"PREPARE {s.name}{types} AS {to_sql(s.statement)}"


@to_sql.register
def _(s: ast.Execute) -> str:
    return f"EXECUTE {s.name}" + (f" ({_list(map(_expr, s.arguments))})" if s.arguments else "")


@to_sql.register
def _(s: ast.Deallocate) -> str:
    return f"DEALLOCATE {s.name or 'ALL'}"


def _variable(name: str) -> str:
    return ".".join(quote_ident(part) for part in name.split("."))


def _values(values: tuple[str, ...] | None) -> str:
    return "DEFAULT" if values is None else _list(map(quote_literal, values))


@to_sql.register
def _(s: ast.SetVariable) -> str:
    return f"SET {_if(s.local, 'LOCAL')}{_variable(s.name)} = {_values(s.values)}"


@to_sql.register
def _(s: ast.ResetVariable) -> str:
    return f"RESET {'ALL' if s.name is None else _variable(s.name)}"


@to_sql.register
def _(s: ast.ShowVariable) -> str:
    return f"SHOW {'ALL' if s.name is None else _show_name(s.name)}"


def _show_name(name: str) -> str:
    """Quoted where the word would list something instead: SHOW "tables"."""
    listed = {listing.value.lower() for listing in ast.Listing}
    return f'"{name}"' if name in listed else _variable(name)


@to_sql.register
def _(s: ast.AlterSystem) -> str:
    if s.name is None:
        return "ALTER SYSTEM RESET ALL"
    if s.values is None:
        return f"ALTER SYSTEM RESET {_variable(s.name)}"
    return f"ALTER SYSTEM SET {_variable(s.name)} = {_values(s.values)}"


@to_sql.register
def _(s: ast.Discard) -> str:
    return f"DISCARD {s.kind.value}"


@to_sql.register
def _(s: ast.ShowObjects) -> str:
    within = f" FROM {s.within}" if s.within else ""
    within += f" ON {s.on}" if s.on else ""
    like = "" if s.like is None else f" LIKE {quote_literal(s.like)}"
    return f"SHOW {s.listing.value}{within}{like}{_where(s.where)}"


@to_sql.register
def _(s: ast.ShowCreate) -> str:
    return f"SHOW CREATE {s.kind.value} {s.name}"


@to_sql.register
def _(s: ast.Explain) -> str:
    options = [
        quote_ident(name) if value is None else f"{quote_ident(name)} {quote_literal(value)}"
        for name, value in s.options
    ]
    return f"EXPLAIN {f'({_list(options)}) ' if options else ''}{to_sql(s.statement)}"


@to_sql.register
def _(s: ast.ExplainMaterializedView) -> str:
    return f"EXPLAIN MATERIALIZED VIEW {s.name}"


@to_sql.register
def _(s: ast.ExplainTimestamp) -> str:
    return f"EXPLAIN TIMESTAMP FOR {query_sql(s.query)}"


@to_sql.register
def _(s: ast.NoOp) -> str:
    return s.text
