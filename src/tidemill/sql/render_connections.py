"""Statements about secrets and connections back to SQL text: `render`'s part for them."""

from __future__ import annotations

from tidemill.sql import ast
from tidemill.sql.names import quote_literal


def create_secret_sql(s: ast.CreateSecret) -> str:
    return f"CREATE SECRET {'IF NOT EXISTS ' if s.if_not_exists else ''}{s.name} AS {quote_literal(s.value)}"


def alter_secret_sql(s: ast.AlterSecret) -> str:
    return f"ALTER SECRET {'IF EXISTS ' if s.if_exists else ''}{s.name} AS {quote_literal(s.value)}"


def create_connection_sql(s: ast.CreateConnection) -> str:
    head = f"CREATE CONNECTION {'IF NOT EXISTS ' if s.if_not_exists else ''}{s.name} TO {s.kind.value}"
    return f"{head} ({', '.join(map(_option, s.options))}){_validate(s.validate)}"


def alter_connection_sql(s: ast.AlterConnection) -> str:
    actions = [f"SET ({', '.join(map(_option, s.changed))})"] if s.changed else []
    actions += [f"RESET ({', '.join(s.reset)})"] if s.reset else []
    head = f"ALTER CONNECTION {'IF EXISTS ' if s.if_exists else ''}{s.name}"
    return f"{head} {', '.join(actions)}{_validate(s.validate)}"


def _option(option: ast.ConnectionOption) -> str:
    match option.value:
        case ast.SecretName(name):
            return f"{option.name} = SECRET {name}"
        case str() as text:
            return f"{option.name} {quote_literal(text)}"
        case (address,):
            return f"BROKER {quote_literal(address)}"
        case addresses:
            return f"{option.name} ({', '.join(map(quote_literal, addresses))})"


def _validate(validate: bool) -> str:
    return "" if validate else " WITH (VALIDATE = false)"
