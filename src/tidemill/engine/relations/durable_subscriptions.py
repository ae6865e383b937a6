"""mz_catalog.mz_subscriptions: durable subscriptions, how far they are read, and what is kept for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.engine.relations.columns import columns_of
from tidemill.engine.relations.oids import item_oid
from tidemill.engine.relations.sources import Rows, Spec
from tidemill.subscriptions.service import DurableSubscriptions, SubscriptionState

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation


@dataclass(frozen=True, slots=True)
class DurableRow:
    """`lag`: how far the acknowledged position is behind the clock, in milliseconds."""

    state: SubscriptionState
    lag: int


def durable_rows(service: DurableSubscriptions, now: int) -> Sequence[DurableRow]:
    return [DurableRow(s, max(0, now - s.position.frontier + 1)) for s in service.states()]


def _subscriptions(s: Situation) -> Rows:
    rows: Rows = []
    known = {item.id: item for item in s.catalog.subscriptions()}
    for row in s.durable():
        item, state = known.get(row.state.place.item.id), row.state
        if item is None:
            continue
        rows.append(
            (
                item.id,
                item_oid(item.id),
                item.schema,
                item.name,
                item.relation,
                item.output,
                item.created,
                None if item.shares == 1 else state.place.share,
                state.position.frontier,
                row.lag,
                state.read,
                state.kept.bytes,
                state.kept.oldest,
                state.retain_ms,
                state.retain_bytes,
                state.position.lost,
            )
        )
    return rows


DURABLE_SUBSCRIPTIONS_SPEC: Spec = (
    "mz_catalog",
    "mz_subscriptions",
    columns_of(
        """id text, oid oid, schema_id text, name text, relation_id text, output text, created mz_timestamp,
        share int4, position mz_timestamp, lag int8, reading bool, unacknowledged_bytes int8,
        unacknowledged_since mz_timestamp, retain int8, retain_size int8, lost text"""
    ),
    _subscriptions,
)
