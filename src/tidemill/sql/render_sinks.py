"""CREATE SINK back to SQL text. Called by `render`."""

from __future__ import annotations

from tidemill.sql import ast


def create_sink_sql(s: ast.CreateSink) -> str:
    clauses = [
        f"CREATE SINK {'IF NOT EXISTS ' if s.if_not_exists else ''}{s.name}",
        f"IN CLUSTER {s.cluster}" if s.cluster else "",
        f"FROM {s.relation} INTO {s.target.to_sql()}",
        _key(s.key),
        f"FORMAT {_format(s.format)} ENVELOPE {s.envelope}",
        _with(s),
    ]
    return " ".join(clause for clause in clauses if clause)


def _key(key: ast.SinkKey | None) -> str:
    if key is None:
        return ""
    return f"KEY ({', '.join(map(str, key.columns))}){' NOT ENFORCED' if key.not_enforced else ''}"


def _format(form: ast.SinkFormat) -> str:
    if form.registry is None:
        return form.kind
    return f"{form.kind} USING CONFLUENT SCHEMA REGISTRY CONNECTION {form.registry}"


def _with(s: ast.CreateSink) -> str:
    options = [
        "" if s.snapshot else "SNAPSHOT = false",
        "" if s.as_of is None else f"AS OF {s.as_of}",
        "" if s.share is None else f"SHARE {s.share.number} OF {s.share.writers}",
        "JOIN = true" if s.join else "",
    ]
    said = ", ".join(o for o in options if o)
    return f"WITH ({said})" if said else ""
