"""Run the shapes of plan that small queries have until they are fast.

Measured: the first 15 runs are up to ten times slower, because Spark's classes are loaded and its optimizer is
interpreted before it is compiled. `SparkHost` calls this in its start-up thread before it says that it is ready.
"""

from __future__ import annotations

from typing import Any

# Enough that the optimizer's and Arrow's hot methods are compiled; more buys nothing that a first user would notice.
ROUNDS = 8

_SHAPES = (
    "select * from range(3) where id = 1",
    "select id % 2 as k, count(*), sum(id) from range(100) group by 1 order by 1",
    "select a.id from range(10) a join range(10) b on a.id = b.id where a.id > 3 order by a.id limit 5",
)


def warm_up(session: Any) -> None:
    for _ in range(ROUNDS):
        for text in _SHAPES:
            session.sql(text).toArrow()
