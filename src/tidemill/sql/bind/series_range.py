"""generate_series of numbers between constants, in FROM: executed by Spark's range.

Called by `row_sources`. Promises the rows of the series in their order, in partitions of bounded size. An
array of all rows would have to fit into one task, as would the result of the query over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from tidemill.sql.bind.ir import BoundNode, Const, Convert
from tidemill.sql.functions.lattice import INTEGERS
from tidemill.sql.functions.tree import add, bigint, call, cast, cast_to, int_divide, sub
from tidemill.types.model import SqlType

# Rows of a partition, while there are few partitions: with a kilobyte each, a quarter of a gigabyte on disk.
# Smaller partitions would not return the first row earlier, and would occupy all cores with work for one;
# tasks are not interrupted for others.
PARTITION_ROWS = 256 * 1024
MAX_PARTITIONS = 1_000

_END = 1 << 63


@dataclass(frozen=True, slots=True)
class CountedSeries:
    start: int
    stop: int
    step: int

    @property
    def rows(self) -> int:
        return max(0, (self.stop - self.start) // self.step + 1)

    @property
    def partitions(self) -> int:
        return max(1, min(MAX_PARTITIONS, -(-self.rows // PARTITION_ROWS)))

    def query(self, t: SqlType, *, ordinality: bool) -> exp.Select:
        """The rows as c0, and their numbers as c1 if requested."""
        number = exp.column("id")
        items = [cast_to(number.copy(), t)]
        if ordinality:
            place = int_divide(sub(number.copy(), bigint(self.start)), bigint(self.step))
            items.append(cast(add(place, bigint(1)), "BIGINT"))
        named = [
            exp.Alias(this=e, alias=exp.to_identifier(f"c{n}", quoted=True)) for n, e in enumerate(items)
        ]
        ends = (self.start, self.start + self.rows * self.step, self.step)
        given = [bigint(n) for n in ends] + [exp.Literal.number(self.partitions)]
        return exp.Select(expressions=named, from_=exp.From(this=exp.Table(this=call("range", *given))))


def counted_series(nodes: Sequence[BoundNode]) -> CountedSeries | None:
    """None if an end or the step is not known, or is NULL."""
    known = [_number(n) for n in nodes]
    start, stop, step = (*known, 1) if len(known) == 2 else known
    if start is None or stop is None or not step:
        return None
    found = CountedSeries(start, stop, step)
    # The first number after the end must fit into 64 bits, too.
    return found if -_END <= start + found.rows * step < _END else None


def _number(node: BoundNode) -> int | None:
    """Only integers, because conversions between them do not change the value."""
    while isinstance(node, Convert) and node.type.kind in INTEGERS:
        node = node.arg
    if not isinstance(node, Const) or node.type.kind not in INTEGERS:
        return None
    return node.value.as_py() if isinstance(node.value, pa.Scalar) else None
