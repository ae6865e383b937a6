"""CREATE SUBSCRIPTION back to SQL text. Called by `render`."""

from __future__ import annotations

from tidemill.sql import ast
from tidemill.sql.names import quote_literal
from tidemill.sql.render_trees import query_sql


def create_subscription_sql(s: ast.CreateSubscription) -> str:
    followed = s.relation if isinstance(s.relation, ast.Name) else f"({query_sql(s.relation)})"
    clauses = [
        f"CREATE SUBSCRIPTION {'IF NOT EXISTS ' if s.if_not_exists else ''}{s.name} FOR {followed}",
        _envelope(s),
        _with(s),
    ]
    return " ".join(clause for clause in clauses if clause)


def _envelope(s: ast.CreateSubscription) -> str:
    if s.envelope is None:
        return ""
    kind = "UPSERT" if isinstance(s.envelope, ast.EnvelopeUpsert) else "DEBEZIUM"
    return f"ENVELOPE {kind} (KEY ({', '.join(map(str, s.envelope.keys))}))"


def _with(s: ast.CreateSubscription) -> str:
    options = [
        "" if s.snapshot else "SNAPSHOT = false",
        "" if s.retain is None else f"RETAIN = {quote_literal(s.retain)}",
        "" if s.retain_size is None else f"RETAIN SIZE = {quote_literal(s.retain_size)}",
        "" if s.shares == 1 else f"SHARES = {s.shares}",
        "" if not s.share_key else f"SHARE KEY = ({', '.join(map(str, s.share_key))})",
    ]
    said = ", ".join(o for o in options if o)
    return f"WITH ({said})" if said else ""
