"""Evaluation of stages of many queries over the rows of touched keys, in few Spark jobs.

`stage_queue` passes all that wait at one moment. For few rows a job costs the same whatever it computes: its
text is parsed and planned, and it starts. So there are two ways to share one:

* Pieces of one text (views that differ in what they add up, but not in what they make of the sums) are one
  query: a stage keeps the versions of its inputs apart, so those of each piece get numbers of their own.
* Other texts are sides of one UNION ALL, each as it was analysed by itself.

A piece that fails fails the job. Each half is then run separately, until the piece is alone with its error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.errors import TidemillError, Unavailable
from tidemill.query.job import Job
from tidemill.query.keyed_changes import (
    evaluate_keys,
    fetched,
    folded,
    repeated,
)
from tidemill.query.local import to_jdf
from tidemill.query.read import LIMITS
from tidemill.query.run import ResultStream
from tidemill.sql.plan.versions import VERSION
from tidemill.types.columns import contiguous

if TYPE_CHECKING:
    from tidemill.query.session_slots import SessionSlot
    from tidemill.query.spark import SparkHost

# Rows of one query, over all pieces of its text. (With more, nothing is gained.)
MERGED_ROWS = 100_000
# Sides of one UNION ALL: a plan with more takes seconds, and every caller would wait for it.
MAX_SIDES = 32


@dataclass(eq=False, slots=True)
class StagePiece:
    """A query over versions of tables, as `keyed_changes.evaluate_keys` takes it. With `alike`, each table
    has its versions as they are, and pieces of one text may be one query. `evaluate` leaves an `error`, or a
    `result`."""

    text: str
    tables: Mapping[str, pa.Table]
    schema: pa.Schema
    row_by_row: bool = False
    alike: bool = True
    result: pa.Table | None = None
    error: TidemillError | None = None

    @property
    def rows(self) -> int:
        return sum(t.num_rows for t in self.tables.values())


def evaluate(host: SparkHost, pieces: Sequence[StagePiece]) -> None:
    """Fill in every piece. Blocks. Raises `Unavailable` where Spark is gone; all else is a piece's own
    error."""
    merged = list(_merged(pieces))
    for first in range(0, len(merged), MAX_SIDES):
        _isolated(host, merged[first : first + MAX_SIDES])


def _isolated(host: SparkHost, sides: list[_Side]) -> None:
    try:
        if len(sides) == 1:
            (side,) = sides
            side.tell(evaluate_keys(host, side.text, side.tables, side.schema, row_by_row=side.row_by_row))
        else:
            _united(host, sides)
    except Unavailable:
        raise
    except TidemillError as e:
        pieces = [piece for side in sides for piece in side.pieces]
        if len(pieces) == 1:
            pieces[0].error = e
            return
        if len(sides) == 1:
            sides = [_Side.of([piece]) for piece in pieces]
        half = len(sides) // 2
        _isolated(host, sides[:half])
        _isolated(host, sides[half:])


# -- pieces of one text --------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Side:
    """Pieces of one text, as one query. `bounds`: the versions of the i-th piece are in
    [bounds[i], bounds[i + 1])."""

    pieces: list[StagePiece]
    tables: dict[str, pa.Table]
    bounds: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def text(self) -> str:
        return self.pieces[0].text

    @property
    def schema(self) -> pa.Schema:
        return self.pieces[0].schema

    @property
    def row_by_row(self) -> bool:
        return self.pieces[0].row_by_row

    @staticmethod
    def of(pieces: list[StagePiece]) -> _Side:
        if len(pieces) == 1:
            return _Side(pieces, dict(pieces[0].tables))
        sizes = [1 + max((_last(t) for t in piece.tables.values()), default=-1) for piece in pieces]
        bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        tables = {
            name: pa.concat_tables(
                [_shifted(piece.tables[name], int(bounds[i])) for i, piece in enumerate(pieces)]
            )
            for name in pieces[0].tables
        }
        return _Side(pieces, tables, bounds)

    def tell(self, found: pa.Table) -> None:
        if len(self.pieces) == 1:
            self.pieces[0].result = found
            return
        place = found.num_columns - 1
        version = contiguous(found.column(place)).to_numpy()
        order = np.argsort(version, kind="stable")
        ends = np.searchsorted(version[order], self.bounds)
        for i, piece in enumerate(self.pieces):
            own = order[ends[i] : ends[i + 1]]
            back = pa.array((version[own] - self.bounds[i]).astype(np.int32))
            rows = found.take(pa.array(own))
            piece.result = rows.set_column(place, found.schema.field(place), back)


def _last(table: pa.Table) -> int:
    versions = contiguous(table.column(VERSION)).to_numpy()
    return int(versions.max()) if len(versions) else -1


def _shifted(table: pa.Table, by: int) -> pa.Table:
    place = table.schema.get_field_index(VERSION)
    versions = contiguous(table.column(place)).to_numpy() + np.int32(by)
    return table.set_column(place, table.schema.field(place), pa.array(versions.astype(np.int32)))


def _merged(pieces: Sequence[StagePiece]) -> Iterator[_Side]:
    groups: dict[object, list[StagePiece]] = {}
    for piece in pieces:
        of = tuple(
            (name, tuple(zip(t.schema.names, t.schema.types, strict=True)))
            for name, t in piece.tables.items()
        )
        key = (piece.text, of) if piece.alike else piece
        groups.setdefault(key, []).append(piece)
    for group in groups.values():
        some: list[StagePiece] = []
        rows = 0
        for piece in group:
            if some and rows + piece.rows > MERGED_ROWS:
                yield _Side.of(some)
                some, rows = [], 0
            some.append(piece)
            rows += piece.rows
        yield _Side.of(some)


# -- one union -----------------------------------------------------------------------------------------


def _united(host: SparkHost, sides: Sequence[_Side]) -> None:
    job = Job(host, "changes")
    views = [{name: repeated(table) for name, table in side.tables.items()} for side in sides]
    small = max(t.num_rows for tables in views for t in tables.values()) <= LIMITS.small_rows
    with job.running(), host.lease(small=small) as slot:
        frames = [_frame(slot, host, side, tables) for side, tables in zip(sides, views, strict=True)]
        structs = [str(frame.schema().sql()) for frame in frames]
        distinct = list(dict.fromkeys(structs))
        made: list[str] = []
        try:
            parts: list[str] = []
            for i, (side, frame, struct) in enumerate(zip(sides, frames, structs, strict=True)):
                frame.createOrReplaceTempView(f"tm_side_{i}")
                made.append(f"tm_side_{i}")
                own = ", ".join(f"'c{n}', c{n}" for n in range(len(side.schema)))
                values = [f"named_struct({own})" if s == struct else f"CAST(NULL AS {s})" for s in distinct]
                named = ", ".join(f"{v} AS s{n}" for n, v in enumerate(values))
                parts.append(f"SELECT CAST({i} AS INT) AS q, {named} FROM tm_side_{i}")
            # In one wave: each side is a partition.
            frame = slot.jsession.sql(" UNION ALL ".join(parts)).coalesce(max(2, host.cores))
        finally:
            for name in made:
                slot.jsession.catalog().dropTempView(name)
        places = [1 + distinct.index(s) for s in structs]
        types = {
            place: pa.struct([pa.field(f"c{n}", f.type) for n, f in enumerate(side.schema)])
            for place, side in zip(places, sides, strict=True)
        }
        schema = pa.schema([("q", pa.int32()), *((f"s{p}", types[p]) for p in sorted(types))])
        found = fetched(ResultStream(host, job, frame, schema), schema)
    of = contiguous(found.column(0)).to_numpy()
    for i, (side, place) in enumerate(zip(sides, places, strict=True)):
        rows = contiguous(found.column(place).filter(pa.array(of == i)))
        side.tell(pa.table(rows.flatten(), schema=side.schema))


def _frame(slot: SessionSlot, host: SparkHost, side: _Side, tables: Mapping[str, pa.Table]) -> Any:
    made: list[str] = []
    try:
        for name, table in tables.items():
            own = folded(tables, row_by_row=side.row_by_row)
            to_jdf(slot, table, host.scratch, folded=own).createOrReplaceTempView(name)
            made.append(name)
        frame = slot.jsession.sql(side.text)
    finally:
        for name in made:
            slot.jsession.catalog().dropTempView(name)
    return frame.toDF(slot.jvm.PythonUtils.toSeq([f"c{n}" for n in range(len(side.schema))]))
