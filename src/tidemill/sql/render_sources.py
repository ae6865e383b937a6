"""CREATE SOURCE and CREATE TABLE ... FROM SOURCE back to SQL text. Called by `render`."""

from __future__ import annotations

from tidemill.sql import ast
from tidemill.sql.names import quote_literal
from tidemill.sql.render_formats import messages_sql


def create_source_sql(s: ast.CreateSource) -> str:
    clauses = [
        f"CREATE SOURCE {'IF NOT EXISTS ' if s.if_not_exists else ''}{s.name}{_idents(s.columns)}",
        f"IN CLUSTER {s.cluster}" if s.cluster else "",
        f"FROM {s.upstream.to_sql()}",
        _for_tables(s.tables),
        *messages_sql(s.messages),
        f"EXPOSE PROGRESS AS {s.progress}" if s.progress else "",
        _with(s),
    ]
    return " ".join(clause for clause in clauses if clause)


def create_table_from_source_sql(s: ast.CreateTableFromSource) -> str:
    head = f"CREATE TABLE {'IF NOT EXISTS ' if s.if_not_exists else ''}{s.name}{_idents(s.columns)}"
    clauses = [f"{head} FROM SOURCE {s.source} (REFERENCE {s.reference})", *messages_sql(s.messages)]
    choice = s.choice.to_sql()
    clauses.append(f"WITH ({choice})" if choice else "")
    return " ".join(clause for clause in clauses if clause)


def _idents(columns: tuple[ast.Ident, ...]) -> str:
    return f" ({', '.join(map(str, columns))})" if columns else ""


def _for_tables(tables: ast.ForTables | None) -> str:
    if tables is None:
        return ""
    if tables.schemas is not None:
        return f"FOR SCHEMAS ({', '.join(map(str, tables.schemas))})"
    if tables.tables is None:
        return "FOR ALL TABLES"
    return f"FOR TABLES ({', '.join(map(_output, tables.tables))})"


def _output(output: ast.SourceOutput) -> str:
    return f"{output.output} AS {output.alias}" if output.alias else str(output.output)


def _with(s: ast.CreateSource) -> str:
    options = [
        "" if s.timeline is None else f"TIMELINE {quote_literal(s.timeline)}",
        "" if s.retain_history is None else f"RETAIN HISTORY FOR {quote_literal(s.retain_history)}",
        "" if s.interval is None else f"TIMESTAMP INTERVAL {quote_literal(s.interval)}",
        "" if s.validate else "VALIDATE = false",
    ]
    said = ", ".join(o for o in options if o)
    return f"WITH ({said})" if said else ""
