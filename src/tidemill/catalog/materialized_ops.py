"""Catalog operations that create and alter materialized views; applied by `ops`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemill.catalog.columns import check_columns
from tidemill.catalog.items import ItemId, MaterializedView, Reference
from tidemill.catalog.source_ops import SourceDraft
from tidemill.types.model import RelationDesc


@dataclass(frozen=True, slots=True)
class CreateMaterializedViewOp:
    schema: ItemId
    name: str
    sql: str
    desc: RelationDesc
    references: tuple[Reference, ...]
    retain_history_ms: int | None = None


@dataclass(frozen=True, slots=True)
class SetViewHistory:
    """RESET is None."""

    view: ItemId
    milliseconds: int | None


MaterializedOp = CreateMaterializedViewOp | SetViewHistory


def apply(draft: SourceDraft, op: MaterializedOp) -> None:
    match op:
        case CreateMaterializedViewOp():
            draft.check_name(op.schema, op.name)
            check_columns(op.desc)
            depends_on = tuple(dict.fromkeys(r.id for r in op.references))
            for needed in depends_on:
                draft.state.relation(needed)
            item_id = draft.new_id()
            draft.put(
                MaterializedView(
                    item_id,
                    op.name,
                    op.schema,
                    op.sql,
                    op.desc,
                    f"{item_id}-{draft.time}",
                    draft.time,
                    depends_on,
                    op.references,
                    op.retain_history_ms,
                )
            )
        case SetViewHistory():
            view = draft.state.get(op.view, MaterializedView)
            draft.put(replace(view, retain_history_ms=op.milliseconds))
