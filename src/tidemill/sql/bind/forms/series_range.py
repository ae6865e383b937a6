"""generate_series of integers between constants, in FROM, as a series and not as an array of all its rows."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidemill.sql.functions.lattice import INTEGERS
from tidemill.sql.plan.expressions import BoundNode, Const, Convert
from tidemill.sql.plan.operators import Series
from tidemill.types.model import SqlType

_END = 1 << 63


def counted_series(nodes: Sequence[BoundNode], t: SqlType) -> Series | None:
    """None if an end or the step is not known, or is NULL."""
    known = [_number(n) for n in nodes]
    start, stop, step = (*known, 1) if len(known) == 2 else known
    if start is None or stop is None or not step:
        return None
    found = Series(start, stop, step, t)
    # The first number after the end must fit into 64 bits, too.
    return found if -_END <= start + found.rows * step < _END else None


def _number(node: BoundNode) -> int | None:
    """Only integers, because conversions between them do not change the value."""
    while isinstance(node, Convert) and node.type.kind in INTEGERS:
        node = node.arg
    if not isinstance(node, Const) or node.type.kind not in INTEGERS:
        return None
    return node.value.as_py() if isinstance(node.value, pa.Scalar) else None
