"""Definitions as text: of keys, of their indexes, of views."""

from __future__ import annotations

from tidemill.engine.relations.pg.world import PgKey, PgRelation
from tidemill.sql.names import quote_ident, quote_name


def key_columns(r: PgRelation, key: PgKey) -> str:
    names = r.desc.names
    return ", ".join(quote_ident(names[n - 1]) for n in key.numbers)


def constraint_definition(r: PgRelation, key: PgKey) -> str:
    return f"{'PRIMARY KEY' if key.primary else 'UNIQUE'} ({key_columns(r, key)})"


def index_definition(r: PgRelation, key: PgKey) -> str:
    table = quote_name(r.schema, r.name)
    return f"CREATE UNIQUE INDEX {quote_ident(key.name)} ON {table} USING btree ({key_columns(r, key)})"
