"""Catalog operation that creates a durable subscription; applied by `ops`."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.catalog.items import ItemId, Reference, Subscription
from tidemill.catalog.source_ops import SourceDraft
from tidemill.types.model import RelationDesc


@dataclass(frozen=True, slots=True)
class CreateSubscriptionOp:
    """The fields of `Subscription`."""

    schema: ItemId
    name: str
    sql: str
    relation: ItemId | None
    desc: RelationDesc
    references: tuple[Reference, ...]
    output: str
    keys: tuple[str, ...]
    snapshot: bool
    retain_ms: int | None = None
    retain_bytes: int | None = None
    shares: int = 1
    share_key: tuple[str, ...] = ()


def apply(draft: SourceDraft, op: CreateSubscriptionOp) -> None:
    draft.check_name(op.schema, op.name)
    depends_on = tuple(dict.fromkeys(r.id for r in op.references))
    for needed in depends_on:
        draft.state.relation(needed)
    draft.put(
        Subscription(
            draft.new_id(),
            op.name,
            op.schema,
            op.sql,
            op.relation,
            op.desc,
            op.references,
            depends_on,
            op.output,
            op.keys,
            draft.time,
            op.snapshot,
            op.retain_ms,
            op.retain_bytes,
            op.shares,
            op.share_key,
        )
    )
