"""Warm-up of what small queries do.

The first runs are several times slower than later ones, because classes are loaded and the optimizer is
interpreted before it is compiled. `SparkHost` calls this in its start-up thread, when queries can already
run, before it reports that it is ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.query.read import ConstantInput
from tidemill.query.run import run
from tidemill.types.model import INT8, TEXT, Column

if TYPE_CHECKING:
    from tidemill.query.spark import SparkHost

# Three rounds take 4 to 5 s of a cold start on two cores; the rest becomes faster with use.
ROUNDS = 3

_TABLE = pa.table({"k": pa.array(range(100), pa.int64()), "v": pa.array(["x"] * 100, pa.string())})
_SHAPES: tuple[tuple[str, tuple[Column, ...]], ...] = (
    ("select k, v from warm where k = 7", (Column("k", INT8), Column("v", TEXT))),
    (
        "select a.k % 3 as g, count(*) as n from warm a join warm b on a.k = b.k group by 1 order by 1",
        (Column("g", INT8), Column("n", INT8)),
    ),
    ("select k from warm where v like 'x%' order by k desc limit 5", (Column("k", INT8),)),
)


def warm_up(host: SparkHost) -> None:
    """A query of a client's is not delayed: it warms the session up just as well."""
    for _ in range(ROUNDS):
        for text, columns in _SHAPES:
            if host.busy:
                continue
            with run(host, text, {"warm": ConstantInput(_TABLE)}, columns) as stream:
                for _ in stream:
                    pass
