"""CREATE CONNECTION back to SQL text. Called by `render`."""

from __future__ import annotations

from tidemill.sql import ast
from tidemill.sql.names import quote_literal


def create_connection_sql(s: ast.CreateConnection) -> str:
    kind = s.kind.replace("-", " ").upper()
    head = f"CREATE CONNECTION {'IF NOT EXISTS ' if s.if_not_exists else ''}{s.name} TO {kind}"
    tail = "" if s.validate else " WITH (VALIDATE = false)"
    return f"{head} ({', '.join(map(_option, s.options))}){tail}"


def _option(option: ast.ConnectionOption) -> str:
    match option.value:
        case ast.SecretName(name):
            return f"{option.name} = SECRET {name}"
        case str() as text:
            return f"{option.name} {quote_literal(text)}"
        case int() as number:
            return f"{option.name} {number}"
        case (single,):
            return f"{option.name.removesuffix('S')} {quote_literal(single)}"
        case several:
            return f"{option.name} ({', '.join(map(quote_literal, several))})"
