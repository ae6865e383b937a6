"""Why a query is not maintained at the cost of what changed, and what to write instead."""

from __future__ import annotations

from tidemill.sql.plan.operators import Limit, Operator, Recursive, Ties

NO_KEY: dict[str, tuple[str, ...]] = {
    "GROUP BY": (
        "an aggregate over all rows",
        "Group by something, in a view of its own, and add the groups up in a query over it.",
    ),
    "GROUPING SETS": (
        "GROUPING SETS without a common key",
        "Write the sets as queries with GROUP BY, and UNION ALL between them.",
    ),
    "a window function": (
        "a window function without a common PARTITION BY",
        "Write PARTITION BY, the same in all windows of one SELECT.",
    ),
    "a subquery": (
        "a subquery that has no equality with the query around it",
        "Correlate it by an equality (=), or join the relations by one.",
    ),
    **{
        what: (
            f"a {what} without an equality of columns of both sides",
            "Join by an equality (=) of values of one type.",
        )
        for what in ("join", "left join", "right join", "full join", "LATERAL")
    },
}


def whole(op: Operator) -> tuple[str, ...]:
    if isinstance(op, Limit):
        word = "LIMIT" if op.count is not None else "OFFSET"
        return (
            f"{word} over all rows",
            "With ORDER BY at the end of a query the first rows are kept; row_number() gives those of a key.",
        )
    if isinstance(op, Ties):
        return ("WITH TIES over all rows",)
    if isinstance(op, Recursive):
        return ("WITH RECURSIVE",)
    return (type(op).__name__,)
