"""FORMAT, INCLUDE, ENVELOPE and ON ERROR back to SQL text. Called by `render_sources`."""

from __future__ import annotations

from tidemill.sql import ast
from tidemill.sql.names import quote_literal


def messages_sql(said: ast.Messages) -> list[str]:
    """The clauses; empty ones are empty text."""
    return [
        _formats(said.key, said.value),
        f"INCLUDE {', '.join(map(_include, said.include))}" if said.include else "",
        f"ENVELOPE {said.envelope.to_sql()}" if said.envelope else "",
        _on_error(said.on_error),
    ]


def _formats(key: ast.Format | None, value: ast.Format | None) -> str:
    if value is None:
        return ""
    return (
        f"FORMAT {_format(value)}"
        if key is None
        else f"KEY FORMAT {_format(key)} VALUE FORMAT {_format(value)}"
    )


def _format(form: ast.Format) -> str:
    match form:
        case ast.PlainFormat(name):
            return name
        case ast.Regex(pattern):
            return f"REGEX {quote_literal(pattern)}"
        case ast.Csv(columns, delimiter):
            shape = (
                f"{columns} COLUMNS"
                if isinstance(columns, int)
                else f"HEADER ({', '.join(map(str, columns))})"
                if columns
                else "HEADER"
            )
            cut = "" if delimiter is None else f" DELIMITED BY {quote_literal(delimiter)}"
            return f"CSV WITH {shape}{cut}"
        case ast.AvroSchema(schema, framed):
            tail = "" if framed else " (CONFLUENT WIRE FORMAT = false)"
            return f"AVRO USING SCHEMA {quote_literal(schema)}{tail}"
        case ast.AvroRegistry(registry, key, value):
            sides = (("KEY", key), ("VALUE", value))
            strategies = "".join(f" {side} STRATEGY {_strategy(s)}" for side, s in sides if s is not None)
            return f"AVRO USING {_registry(registry)}{strategies}"
        case ast.ProtobufRegistry(registry):
            return f"PROTOBUF USING {_registry(registry)}"
        case ast.ProtobufSchema(message, schema):
            return f"PROTOBUF MESSAGE {quote_literal(message)} USING SCHEMA {quote_literal(schema)}"


def _registry(registry: ast.Name | str) -> str:
    where = quote_literal(registry) if isinstance(registry, str) else f"CONNECTION {registry}"
    return f"CONFLUENT SCHEMA REGISTRY {where}"


def _strategy(strategy: ast.Strategy) -> str:
    if strategy.value is None:
        return strategy.kind
    value = strategy.value
    return f"{strategy.kind} {quote_literal(value) if isinstance(value, str) else value}"


def _include(include: ast.Include) -> str:
    if include.header is not None:
        return f"HEADER {quote_literal(include.header)} AS {include.alias}{' BYTES' if include.raw else ''}"
    return f"{include.what} AS {include.alias}" if include.alias else include.what


def _on_error(on_error: ast.OnError | None) -> str:
    if on_error is None:
        return ""
    if not on_error.dead_letter:
        return "ON ERROR FAIL"
    return f"ON ERROR DEAD LETTER INTO {on_error.into}" if on_error.into else "ON ERROR DEAD LETTER"
