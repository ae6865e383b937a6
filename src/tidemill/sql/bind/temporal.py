"""Queries with temporal filters, for whoever keeps their result up to date.

`check_kept` refuses every other use of mz_now(). `on_changes` and `due_queries` return bound queries without
mz_now() whose last columns are thresholds: `subscribe.temporal` makes of them the times at which a row comes
and leaves. Called by the engine and by `inputs.temporal`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemill.errors import Unsupported
from tidemill.sql.bind.determinism import Dependence, Determinism
from tidemill.sql.plan import temporal
from tidemill.sql.plan.linear import NotLinear, linear_parts
from tidemill.sql.plan.operators import Scan, walk_plan
from tidemill.types.model import Column

if TYPE_CHECKING:
    from tidemill.sql.bind.model import BoundQuery

HINT = (
    "Use it in WHERE as mz_now() <= e (or <, >=, >, =, BETWEEN), ANDed with other conditions, where e is an "
    "expression over the columns of one relation. The result of a join or GROUP BY can be a materialized "
    "view of its own."
)


@dataclass(frozen=True, slots=True)
class BoundedQuery:
    """A query whose last columns are thresholds: a row belongs to the result while `mz_now() symbol value`
    holds for all of them."""

    query: BoundQuery
    symbols: tuple[str, ...]


def check_kept(bound: BoundQuery, what: str) -> BoundQuery:
    """The query, if its result follows from its inputs and the time alone. `what` is the context in errors,
    as in `SUBSCRIBE to a query`."""
    if not bound.uses_mz_now:
        return bound
    try:
        due_queries(bound)
    except (temporal.NotTemporal, NotLinear):
        raise Unsupported(f"{what} with this use of mz_now() is not supported", hint=HINT) from None
    return bound


def without_read_time(found: Determinism) -> Determinism:
    """Without mz_now(), which was checked."""
    kept = {name: on for name, on in found.found.items() if on is not Dependence.READ_TIME}
    return Determinism(kept)


def on_changes(bound: BoundQuery) -> BoundedQuery | None:
    """The query itself, with the thresholds of its filters behind its columns; None if it cannot be evaluated
    on the changes of its inputs."""
    if bound.determinism.on(Dependence.CHANCE) is not None:
        return None
    found = temporal.bounded(bound.plan)
    return None if found is None else _query(bound, found, bound.columns)


def due_queries(bound: BoundQuery) -> list[BoundedQuery]:
    """Linear queries, one per temporal filter; the result changes only when the inputs do and when a row of
    one of them comes or leaves. Raises NotTemporal or NotLinear."""
    found = temporal.due(bound.plan)
    for each in found:
        if not linear_parts(each.plan):
            raise temporal.NotTemporal
    return [_query(bound, each, ()) for each in found]


def _query(bound: BoundQuery, found: temporal.Bounded, columns: tuple[Column, ...]) -> BoundedQuery:
    from tidemill.sql.bind.model import Lowered

    scans = {o.placeholder for o in walk_plan(found.plan) if isinstance(o, Scan)}
    thresholds = [Column(f"mz_threshold_{i}", t.node.type) for i, t in enumerate(found.thresholds)]
    query = replace(
        bound,
        columns=(*columns, *thresholds),
        lowered=Lowered(found.plan),
        inputs={name: item for name, item in bound.inputs.items() if name in scans},
        used={name: used for name, used in bound.used.items() if name in scans},
        determinism=without_read_time(bound.determinism),
    )
    return BoundedQuery(query, tuple(t.symbol for t in found.thresholds))
