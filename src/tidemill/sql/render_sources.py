"""CREATE SOURCE and CREATE TABLE ... FROM SOURCE back to SQL text: `render`'s part for them."""

from __future__ import annotations

from tidemill.sql import ast
from tidemill.sql.ast.sources import OptionValue
from tidemill.sql.names import quote_literal
from tidemill.sql.render_formats import messages_sql


def create_source_sql(s: ast.CreateSource) -> str:
    clauses = [
        f"CREATE SOURCE {'IF NOT EXISTS ' if s.if_not_exists else ''}{s.name}{_idents(s.columns)}",
        f"IN CLUSTER {s.cluster}" if s.cluster else "",
        f"FROM {_upstream(s.upstream)}",
        _for_tables(s.tables),
        *messages_sql(s.messages),
        f"EXPOSE PROGRESS AS {s.progress}" if s.progress else "",
        _with(s),
    ]
    return " ".join(clause for clause in clauses if clause)


def create_table_from_source_sql(s: ast.CreateTableFromSource) -> str:
    head = f"CREATE TABLE {'IF NOT EXISTS ' if s.if_not_exists else ''}{s.name}{_idents(s.columns)}"
    clauses = [f"{head} FROM SOURCE {s.source} (REFERENCE {s.reference})", *messages_sql(s.messages)]
    return " ".join(clause for clause in clauses if clause)


def _idents(columns: tuple[ast.Ident, ...]) -> str:
    return f" ({', '.join(map(str, columns))})" if columns else ""


def _upstream(upstream: ast.Upstream) -> str:
    match upstream:
        case ast.LoadGenerator(kind, options):
            shown = ", ".join(map(_option, options))
            return f"LOAD GENERATOR {kind}{f' ({shown})' if shown else ''}"
        case ast.Kafka():
            return f"KAFKA {_kafka(upstream)}"
        case ast.Files(path):
            return f"FILES {quote_literal(path)}"


def _kafka(kafka: ast.Kafka) -> str:
    offsets, time, prefix = kafka.start_offset, kafka.start_timestamp, kafka.group_id_prefix
    refresh = kafka.refresh_interval
    options = [
        "" if offsets is None else f"START OFFSET ({', '.join(map(str, offsets))})",
        "" if time is None else f"START TIMESTAMP {time}",
        "" if prefix is None else f"GROUP ID PREFIX {quote_literal(prefix)}",
        "" if refresh is None else f"TOPIC METADATA REFRESH INTERVAL {quote_literal(refresh)}",
    ]
    topic = "" if kafka.topic is None else f"TOPIC {quote_literal(kafka.topic)}"
    if kafka.connection is not None:
        return f"CONNECTION {kafka.connection} ({', '.join(o for o in (topic, *options) if o)})"
    brokers = ", ".join(map(quote_literal, kafka.brokers))
    more = ", ".join(o for o in options if o)
    return f"BROKERS ({brokers}) {topic}{f' ({more})' if more else ''}"


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


def _with(s: ast.CreateSource) -> str:
    options = [
        "" if s.timeline is None else f"TIMELINE {quote_literal(s.timeline)}",
        "" if s.retain_history is None else f"RETAIN HISTORY FOR {quote_literal(s.retain_history)}",
        "" if s.interval is None else f"TIMESTAMP INTERVAL {quote_literal(s.interval)}",
        "" if s.validate else "VALIDATE = false",
    ]
    said = ", ".join(o for o in options if o)
    return f"WITH ({said})" if said else ""
