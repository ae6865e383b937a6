"""Evaluation of one stage for several followers at once.

`stage_queue` passes what waits at one moment. For few rows a query costs the same whatever it computes: its
text is parsed and planned, and a job starts. Views often have a stage of the same text: those that differ in
what they add up do not differ in what they make of the sums. A stage keeps the versions of its inputs apart,
so the versions of each follower get numbers of their own, and all are one query. (Queries of different texts
as sides of a UNION ALL cost as much as one after the other: each is still planned and executed.)

A piece that fails fails the query. Each half is then run separately, until the piece is alone with its error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.errors import TidemillError, Unavailable
from tidemill.query.keyed_changes import evaluate_keys
from tidemill.sql.plan.versions import VERSION
from tidemill.types.columns import contiguous

if TYPE_CHECKING:
    from tidemill.query.spark import SparkHost

# Rows of one query. (With more, nothing is gained.)
MERGED_ROWS = 100_000


@dataclass(eq=False, slots=True)
class StagePiece:
    """A query over versions of tables, as `keyed_changes.evaluate_keys` takes it. `evaluate` leaves an
    `error`, or a `result`."""

    text: str
    tables: Mapping[str, pa.Table]
    schema: pa.Schema
    row_by_row: bool = False
    result: pa.Table | None = None
    error: TidemillError | None = None

    @property
    def rows(self) -> int:
        return sum(t.num_rows for t in self.tables.values())


def evaluate(host: SparkHost, pieces: Sequence[StagePiece]) -> None:
    """Fill in every piece; all have one text, and tables of the same columns. Blocks. Raises `Unavailable`
    where Spark is gone; all else is a piece's own error."""
    some: list[StagePiece] = []
    rows = 0
    for piece in pieces:
        if some and rows + piece.rows > MERGED_ROWS:
            _isolated(host, some)
            some, rows = [], 0
        some.append(piece)
        rows += piece.rows
    if some:
        _isolated(host, some)


def _isolated(host: SparkHost, pieces: list[StagePiece]) -> None:
    try:
        _evaluate(host, pieces)
    except Unavailable:
        raise
    except TidemillError as e:
        if len(pieces) == 1:
            pieces[0].error = e
            return
        half = len(pieces) // 2
        _isolated(host, pieces[:half])
        _isolated(host, pieces[half:])


def _evaluate(host: SparkHost, pieces: Sequence[StagePiece]) -> None:
    one = pieces[0]
    if len(pieces) == 1:
        one.result = evaluate_keys(host, one.text, one.tables, one.schema, row_by_row=one.row_by_row)
        return
    # The versions of the i-th piece are in [bounds[i], bounds[i + 1]).
    sizes = [1 + max(map(_last, piece.tables.values()), default=-1) for piece in pieces]
    bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    tables = {
        name: pa.concat_tables(
            [_shifted(p.tables[name], int(b)) for p, b in zip(pieces, bounds, strict=False)]
        )
        for name in one.tables
    }
    found = evaluate_keys(host, one.text, tables, one.schema, row_by_row=one.row_by_row)
    place = found.num_columns - 1
    version = contiguous(found.column(place)).to_numpy()
    order = np.argsort(version, kind="stable")
    ends = np.searchsorted(version[order], bounds)
    for i, piece in enumerate(pieces):
        own = order[ends[i] : ends[i + 1]]
        back = pa.array((version[own] - bounds[i]).astype(np.int32))
        piece.result = found.take(pa.array(own)).set_column(place, found.schema.field(place), back)


def _last(table: pa.Table) -> int:
    versions = contiguous(table.column(VERSION)).to_numpy()
    return int(versions.max()) if len(versions) else -1


def _shifted(table: pa.Table, by: int) -> pa.Table:
    place = table.schema.get_field_index(VERSION)
    versions = contiguous(table.column(place)).to_numpy() + np.int32(by)
    return table.set_column(place, table.schema.field(place), pa.array(versions.astype(np.int32)))
