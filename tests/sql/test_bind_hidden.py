"""Columns that can be named and are no part of *: how the time of a progress relation is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.errors import TidemillError
from tidemill.sql.ast import Query
from tidemill.sql.bind import BoundQuery, Relation, SessionInfo, bind_query
from tidemill.sql.parse import parse
from tidemill.types.model import INT4, MZ_TIMESTAMP, UINT8, Column, RelationDesc

PROGRESS = RelationDesc((Column("partition", INT4), Column("offset", UINT8)))
HIDDEN = ((Column("mz_timestamp", MZ_TIMESTAMP), "mz_timestamp"),)


class Names:
    """p and q have a hidden column, r has the same in sight."""

    def relation(self, parts: tuple[str, ...], position: int | None) -> Relation:
        name = parts[-1]
        if name == "r":
            desc = RelationDesc((Column("mz_timestamp", MZ_TIMESTAMP), Column("x", INT4)))
            return Relation("u3", ("public", "r"), desc, ("c_mz", "x"))
        assert name in ("p", "q"), position
        return Relation(f"u{name}", ("public", name), PROGRESS, ("partition", "offset"), hidden=HIDDEN)


def bound(sql: str) -> BoundQuery:
    (parsed,) = parse(sql)
    assert isinstance(parsed.statement, Query)
    query: Any = parsed.statement.tree
    return bind_query(query, Names(), session=SessionInfo())


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT * FROM p", ["partition", "offset"]),
        ("SELECT p.* FROM p", ["partition", "offset"]),
        ("SELECT mz_timestamp, * FROM p", ["mz_timestamp", "partition", "offset"]),
        ("SELECT x.mz_timestamp FROM p AS x (a, b)", ["mz_timestamp"]),
        ("SELECT * FROM p AS x (a, b)", ["a", "b"]),
        ("SELECT * FROM p WHERE mz_timestamp > 5 ORDER BY mz_timestamp", ["partition", "offset"]),
        ("SELECT mz_timestamp, count(*) FROM p GROUP BY mz_timestamp", ["mz_timestamp", "count"]),
        ("SELECT * FROM p NATURAL JOIN q", ["partition", "offset"]),
        ("SELECT * FROM p CROSS JOIN q", ["partition", "offset", "partition", "offset"]),
        ("SELECT p.mz_timestamp, q.mz_timestamp FROM p, q", ["mz_timestamp", "mz_timestamp"]),
        ("SELECT * FROM (p CROSS JOIN q) AS j", ["partition", "offset", "partition", "offset"]),
        ("SELECT * FROM (SELECT * FROM p) AS s", ["partition", "offset"]),
        ("SELECT mz_timestamp FROM (SELECT mz_timestamp FROM p) AS s", ["mz_timestamp"]),
        ("SELECT partition FROM p WHERE EXISTS (SELECT 1 FROM r WHERE r.mz_timestamp = p.mz_timestamp)",
         ["partition"]),
        ("SELECT * FROM p JOIN r USING (mz_timestamp)", ["mz_timestamp", "partition", "offset", "x"]),
        ("WITH c AS (SELECT * FROM p) SELECT * FROM c", ["partition", "offset"]),
    ],
)  # fmt: skip
def test_it_is_there_when_it_is_named(sql: str, columns: list[str]) -> None:
    query = bound(sql)
    assert [c.name for c in query.columns] == columns
    asked = "mz_timestamp" in sql.replace("r.mz_timestamp = ", "")
    named = {n for used in query.used.values() for n in used}
    assert ("mz_timestamp" in named) == asked
    assert all(c.type == MZ_TIMESTAMP for c in query.columns if c.name == "mz_timestamp")


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("SELECT mz_timestamp FROM p, q", "42702"),
        ("SELECT mz_timestamp FROM p, r", "42702"),
        ("SELECT mz_timestamp FROM (SELECT * FROM p) AS s", "42703"),
        ("SELECT mz_timestamp FROM (p CROSS JOIN r) AS j (a, b, c, d, e)", "42P10"),
        ("SELECT * FROM p AS x (a, b, c)", "42P10"),
    ],
)
def test_and_nowhere_else(sql: str, sqlstate: str) -> None:
    with pytest.raises(TidemillError) as caught:
        bound(sql)
    assert caught.value.sqlstate == sqlstate
