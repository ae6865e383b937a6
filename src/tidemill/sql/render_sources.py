"""Statements about sources back to SQL text: `render`'s part for them."""

from __future__ import annotations

from tidemill.sql import ast
from tidemill.sql.ast.sources import OptionValue
from tidemill.sql.names import quote_literal


def create_source_sql(s: ast.CreateSource) -> str:
    clauses = [
        f"CREATE SOURCE {'IF NOT EXISTS ' if s.if_not_exists else ''}{s.name}{_idents(s.columns)}",
        f"IN CLUSTER {s.cluster}" if s.cluster else "",
        f"FROM {_upstream(s.upstream)}",
        _for_tables(s.tables),
        f"INCLUDE {', '.join(map(_include, s.include))}" if s.include else "",
        f"ENVELOPE {s.envelope}" if s.envelope else "",
        f"EXPOSE PROGRESS AS {s.progress}" if s.progress else "",
        _with(s.retain_history, s.interval),
    ]
    return " ".join(clause for clause in clauses if clause)


def create_table_from_source_sql(s: ast.CreateTableFromSource) -> str:
    head = f"CREATE TABLE {'IF NOT EXISTS ' if s.if_not_exists else ''}{s.name}{_idents(s.columns)}"
    return f"{head} FROM SOURCE {s.source} (REFERENCE {s.reference})"


def alter_source_sql(s: ast.AlterSource) -> str:
    verb = "RESET" if s.actions[0].duration is None else "SET"
    options = ", ".join(map(_action, s.actions))
    return f"ALTER SOURCE {'IF EXISTS ' if s.if_exists else ''}{s.name} {verb} ({options})"


def _idents(columns: tuple[ast.Ident, ...]) -> str:
    return f" ({', '.join(map(str, columns))})" if columns else ""


def _upstream(upstream: ast.Upstream) -> str:
    options = ", ".join(map(_option, upstream.options))
    return f"LOAD GENERATOR {upstream.kind}{f' ({options})' if options else ''}"


def _option(option: ast.Option) -> str:
    return option.name if option.value is None else f"{option.name} {_value(option.value)}"


def _value(value: OptionValue) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return quote_literal(value) if isinstance(value, str) else str(value)


def _for_tables(tables: ast.ForTables | None) -> str:
    if tables is None:
        return ""
    if tables.tables is None:
        return "FOR ALL TABLES"
    return f"FOR TABLES ({', '.join(map(_output, tables.tables))})"


def _output(output: ast.SourceOutput) -> str:
    return f"{output.output} AS {output.alias}" if output.alias else str(output.output)


def _include(include: ast.Include) -> str:
    return f"{include.what} AS {include.alias}" if include.alias else include.what


def _with(history: str | None, interval: str | None) -> str:
    said = [ast.SetRetainHistory(history)] if history is not None else []
    options = ", ".join(
        _action(a) for a in (*said, *([ast.SetTimestampInterval(interval)] if interval is not None else []))
    )
    return f"WITH ({options})" if options else ""


def _action(action: ast.SourceAction) -> str:
    name = "RETAIN HISTORY" if isinstance(action, ast.SetRetainHistory) else "TIMESTAMP INTERVAL"
    if action.duration is None:
        return name
    word = "FOR " if isinstance(action, ast.SetRetainHistory) else ""
    return f"{name} {word}{quote_literal(action.duration)}"
