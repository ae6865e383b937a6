"""mz_subscriptions: the running subscriptions and their progress. The rows are from `subscriptions`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.engine.relations.columns import columns_of
from tidemill.engine.relations.sources import Rows, Spec

if TYPE_CHECKING:
    from tidemill.engine.relations.system import Situation


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """One subscription. Everything before `frontier` was passed to the server layer; `lag` is the distance of
    `frontier` from the clock, in milliseconds. `bytes` is the size of the rows in the server's internal form.
    """

    id: int
    session: int
    relation: str
    output: str
    as_of: int
    frontier: int
    rows: int
    bytes: int
    lag: int


def _subscriptions(s: Situation) -> Rows:
    return [
        (str(r.id), r.session, r.relation, r.output, r.as_of, r.frontier, r.rows, r.bytes, r.lag)
        for r in s.subscriptions()
    ]


SUBSCRIPTION_SPECS: list[Spec] = [
    (
        "mz_internal",
        "mz_subscriptions",
        columns_of(
            """id text, session int4, relation text, output text, as_of mz_timestamp, frontier mz_timestamp,
            rows int8, bytes int8, lag int8"""
        ),
        _subscriptions,
    ),
]
