"""Sums are kept only over relations whose rows cannot be there a negative number of times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidemill.catalog.items import MaterializedView, Reference, Schema, Source, View
from tidemill.catalog.state import CatalogState
from tidemill.inputs.incremental import counts_hold
from tidemill.types.model import INT8, Column, RelationDesc

DESC = RelationDesc((Column("n", INT8),))
SOURCE = Source("u1", "s", "u0", "kafka", "{}", "CREATE", DESC, "u1-1", "none", DESC, "u1-r", 7, 1000)


@pytest.mark.parametrize(
    ("envelope", "holds"), [("none", True), ("upsert", True), ("debezium", False), ("materialize", False)]
)
def test_also_over_views_of_them(envelope: str, holds: bool) -> None:
    source = replace(SOURCE, envelope=envelope)
    view = View("u2", "v", "u0", "TABLE s", DESC, ("u1",), (Reference(("s",), "u1"),))
    kept = MaterializedView(
        "u3", "m", "u0", "TABLE v", DESC, "u3-1", 7, ("u1", "u2"), (Reference(("v",), "u2"),)
    )
    state = CatalogState([Schema("u0", "public", None), source, view, kept], next_id=4, time=8)
    assert counts_hold(state, ["u1"]) == holds
    assert counts_hold(state, ["u3"]) == holds
