"""SHOW CREATE SOURCE gives a statement that makes the same source: under today's names, with today's
options."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemill.catalog.items import BUILTINS
from tidemill.catalog.ops import CreateDatabaseOp, RenameOp, apply_all
from tidemill.catalog.source_ops import CreateSourceOp, NewSubsource, SetSourceHistory, SetSourceInterval
from tidemill.catalog.state import CatalogState
from tidemill.engine.read.show_create import create_source_sql
from tidemill.sql import ast
from tidemill.sql.parse import parse
from tidemill.types.model import INT8, Column, RelationDesc

ROWS = RelationDesc((Column("n", INT8),))


def read(sql: str) -> ast.CreateSource:
    (parsed,) = parse(sql)
    assert isinstance(parsed.statement, ast.CreateSource)
    return parsed.statement


def made(sql: str, *outputs: str) -> CatalogState:
    """A catalog with the source `s` of this text."""
    state = apply_all(CatalogState(BUILTINS.items, next_id=1, time=0), [CreateDatabaseOp("d")], time=1)
    subsources = tuple(NewSubsource(o, o, ROWS, "none") for o in outputs)
    desc = None if outputs else ROWS
    op = CreateSourceOp(
        "u2", "s", "load-generator", "{}", sql, desc, None, RelationDesc(()), ROWS, 1000, None, subsources
    )
    return apply_all(state, [op], time=2)


def shown(state: CatalogState) -> ast.CreateSource:
    (source,) = state.sources()
    return read(create_source_sql(state, ast.Name(state.full_name(source)), source))


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE SOURCE s FROM LOAD GENERATOR COUNTER",
        'CREATE SOURCE s (a, "B") FROM LOAD GENERATOR KEY VALUE (KEYS 5, SEED = -1) ENVELOPE NONE',
    ],
)
def test_as_it_was_made(sql: str) -> None:
    name, progress = ast.Name(("d", "public", "s")), ast.Name(("s_progress",))
    assert shown(made(sql)) == replace(read(sql), name=name, progress=progress)


def test_as_it_is_now() -> None:
    sql = "CREATE SOURCE s FROM LOAD GENERATOR AUCTION FOR ALL TABLES WITH (TIMESTAMP INTERVAL '1s')"
    state = made(sql, "bids", "users")
    (source,), progress = state.sources(), state.progress("u3")
    bids, _ = state.source_tables(source.id)
    changes = [
        RenameOp(source.id, 'Odd "name"'),
        RenameOp(progress.id, "how far"),
        RenameOp(bids.id, "Offers"),
        SetSourceInterval(source.id, 250),
        SetSourceHistory(source.id, 60_000),
    ]
    state = apply_all(state, changes, time=3)
    assert shown(state) == replace(
        read('CREATE SOURCE s FROM LOAD GENERATOR AUCTION FOR TABLES (bids AS "Offers", users AS users)'),
        name=ast.Name(("d", "public", 'Odd "name"')),
        progress=ast.Name(("how far",)),
        interval="250ms",
        retain_history="60000ms",
    )
