"""mz_view_stages: what materialized views and subscriptions keep by key, to follow changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.engine.relations.columns import columns_of
from tidemill.engine.relations.sources import Rows, Spec

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation


def _stages(s: Situation) -> Rows:
    owners = {c.shard: c.item.id for c in s.catalog.collections() if not c.remap}
    return [
        (
            f.reader or None,
            f.name,
            "stage" if f.key is None else "relation",
            ", ".join(sorted({owners[shard] for shard in f.collections if shard in owners})),
            None if f.key is None else ", ".join(f.key),
            f.rows,
            f.bytes,
            f.upper,
            f.known,
            f.read,
        )
        for f in s.arrangements()
    ]


VIEW_STAGES_SPECS: list[Spec] = [
    (
        "mz_internal",
        "mz_view_stages",
        columns_of(
            """view_id text, arrangement text, kind text, relation_ids text, key text, rows int8, bytes int8,
            frontier mz_timestamp, updates_known int8, updates_read int8"""
        ),
        _stages,
    ),
]
