"""Evaluation of linear queries over changes: many queries, on small tables, in few Spark jobs.

`evaluations` passes all requests that wait at one moment. Each is a branch of a bound query
(`sql.bind.linear`) and the changes of the relation that it reads. The result for each is its output rows, and
for each row the change that it belongs to. The expressions are those that the binder makes for SELECT, on the
same Spark. So values, NULLs and errors are the same.

There are two forms, measured for 100 queries of three columns over 1,000 rows on two cores:

* Branches in flat form (filters and a projection) over the same table are columns of one projection: NULL
  where a filter is not true, else a struct of the outputs. Spark folds a projection of rows that it holds
  during planning, without generating code: 230 ms for any set of queries. (As a stage with generated code:
  300 ms, and 2 s when the set of queries is new.)
* The others are branches of one UNION ALL, each as the binder made it: 650 ms.

One branch that fails fails the job. Each half is then run separately, until the branch is alone with its
error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.errors import LimitExceeded, TidemillError, Unavailable
from tidemill.query.job import Job
from tidemill.query.local import to_jdf
from tidemill.query.read import LIMITS
from tidemill.query.run import ResultStream
from tidemill.sql.bind import ROW, Branch
from tidemill.sql.bind.linear import FLAT_ALIAS
from tidemill.sql.functions.tree import sql_text
from tidemill.types.arrow import arrow_schema
from tidemill.types.model import Column, RelationDesc
from tidemill.types.spark import spark_type

if TYPE_CHECKING:
    from tidemill.query.spark import SparkHost

# Rows times output columns of one job: limits a result in the JVM to some tens of megabytes.
MAX_CELLS = 4_000_000
# Rows times queries that are evaluated during planning, at about a microsecond each. Up to this number,
# generated code is not faster, even when it is compiled.
FOLDED_CELLS = 1_000_000
# What one branch may produce from one table of changes.
MAX_RESULT_BYTES = 512 << 20

_numbers = itertools.count(1)


class Formula:
    """A branch of a query, with its texts, which are made once. `columns` are the query's; all branches
    return them."""

    def __init__(self, branch: Branch, columns: Sequence[Column]) -> None:
        self.number = next(_numbers)
        self.branch = branch
        self.schema = arrow_schema(
            RelationDesc(tuple(Column(f"c{i}", c.type) for i, c in enumerate(columns)))
        )
        # Spark's name of the outputs as one value.
        self.struct = f"STRUCT<{', '.join(f'c{i}: {spark_type(c.type)}' for i, c in enumerate(columns))}>"
        self._selects: dict[str, str] = {}
        self.flat = None if branch.flat is None else self._as_column()

    @property
    def width(self) -> int:
        return len(self.schema) + 1

    def _as_column(self) -> str:
        flat = self.branch.flat
        assert flat is not None
        outputs = _struct([sql_text(o) for o in flat.outputs])
        for condition in reversed(flat.conditions):
            outputs = f"CASE WHEN {sql_text(condition)} THEN {outputs} END"
        return f"{outputs} AS q{self.number}"

    def select(self, view: str, structs: Sequence[str]) -> str:
        """The branch over `view` as one side of UNION ALL: its number, the change's, and its outputs in the
        column of `structs` that is its own."""
        body = self._selects.get(view)
        if body is None:
            body = self._selects[view] = sql_text(self.branch.over(view))
        own = _struct([f"b.c{i}" for i in range(len(self.schema))])
        values = [own if s == self.struct else f"CAST(NULL AS {s})" for s in structs]
        named = ", ".join(f"{v} AS s{i}" for i, v in enumerate(values))
        return f"SELECT CAST({self.number} AS INT) AS q, b.{ROW} AS {ROW}, {named} FROM ({body}) AS b"


def _struct(values: Sequence[str]) -> str:
    return "named_struct(" + ", ".join(f"'c{i}', {v}" for i, v in enumerate(values)) + ")"


@dataclass(eq=False, slots=True)
class ChangePiece:
    """One formula (which is in no other piece at the time) over one table of changes: the relation's columns
    under physical names; others do not matter. `evaluate` leaves an `error`, or a `result`."""

    formula: Formula
    table: pa.Table
    error: TidemillError | None = None
    _rows: list[pa.Table] = field(default_factory=list[pa.Table])
    _bytes: int = 0

    @property
    def result(self) -> pa.Table:
        """The outputs c0, c1, ... and, last, of which row of the table each is (`ROW`)."""
        schema = self.formula.schema.append(pa.field(ROW, pa.int64()))
        return pa.concat_tables(self._rows) if self._rows else schema.empty_table()

    def add(self, structs: pa.Array, numbers: pa.Array) -> None:
        arrays = [
            a if a.type == f.type else a.cast(f.type)
            for a, f in zip(structs.flatten(), self.formula.schema, strict=True)
        ]
        rows = pa.table([*arrays, numbers], schema=self.formula.schema.append(pa.field(ROW, pa.int64())))
        self._bytes += rows.nbytes
        if self._bytes > MAX_RESULT_BYTES:
            raise LimitExceeded(
                f"the changes of the query exceed {MAX_RESULT_BYTES >> 20} MB at once", sqlstate="54000"
            )
        self._rows.append(rows)

    def reset(self) -> None:
        self._rows, self._bytes = [], 0


def evaluate(host: SparkHost, pieces: Sequence[ChangePiece]) -> None:
    """Fill in every piece. Blocks. Raises `Unavailable` where Spark is gone; all else is a piece's own
    error."""
    shared = _by_table([p for p in pieces if p.formula.flat is not None])
    for group in shared:
        _isolated(host, group, _projected)
    _isolated(host, [p for p in pieces if p.formula.flat is None], _united)


def _by_table(pieces: Sequence[ChangePiece]) -> list[list[ChangePiece]]:
    """Groups those over equal tables. (Followers of one relation get equal spans of its changes, and
    comparing them costs some 40 µs.)"""
    groups: list[list[ChangePiece]] = []
    for piece in pieces:
        for group in groups:
            if group[0].table is piece.table or group[0].table.equals(piece.table):
                group.append(piece)
                break
        else:
            groups.append([piece])
    return groups


def _isolated(
    host: SparkHost, pieces: list[ChangePiece], run: Callable[[SparkHost, list[ChangePiece]], None]
) -> None:
    if not pieces:
        return
    try:
        run(host, pieces)
    except Unavailable:
        raise
    except TidemillError as e:
        for piece in pieces:
            piece.reset()
        if len(pieces) == 1:
            pieces[0].error = e
            return
        half = len(pieces) // 2
        _isolated(host, pieces[:half], run)
        _isolated(host, pieces[half:], run)


# -- one projection ------------------------------------------------------------------------------------


def _projected(host: SparkHost, pieces: list[ChangePiece]) -> None:
    table = pieces[0].table
    columns = [p.formula.flat for p in pieces]
    text = f"SELECT {FLAT_ALIAS}.{ROW} AS {ROW}, {', '.join(map(str, columns))} FROM tm_ch_0 AS {FLAT_ALIAS}"
    schema = pa.schema(
        [(ROW, pa.int64()), *((f"q{p.formula.number}", pa.struct(p.formula.schema)) for p in pieces)]
    )
    for part in _slices(table, sum(p.formula.width for p in pieces)):
        folded = part.num_rows * len(pieces) <= FOLDED_CELLS
        for batch in _run(host, text, {"tm_ch_0": part}, schema, folded=folded):
            numbers = batch.column(0)
            for piece, structs in zip(pieces, batch.columns[1:], strict=True):
                if structs.null_count < len(structs):
                    there = structs.is_valid()
                    piece.add(structs.filter(there), numbers.filter(there))


# -- one union -----------------------------------------------------------------------------------------


def _united(host: SparkHost, pieces: list[ChangePiece]) -> None:
    structs = list(dict.fromkeys(p.formula.struct for p in pieces))
    groups = _by_table(pieces)
    names = {p: f"tm_ch_{n}" for n, group in enumerate(groups) for p in group}
    text = " UNION ALL ".join(p.formula.select(names[p], structs) for p in pieces)
    types = {p.formula.struct: pa.struct(p.formula.schema) for p in pieces}
    schema = pa.schema(
        [("q", pa.int32()), (ROW, pa.int64()), *((f"s{i}", types[s]) for i, s in enumerate(structs))]
    )
    by_number = {p.formula.number: (p, 2 + structs.index(p.formula.struct)) for p in pieces}
    tables = [_numbered(group[0].table) for group in groups]
    limit = max(1, MAX_CELLS // sum(p.formula.width for p in pieces))
    for lower in range(0, max(t.num_rows for t in tables), limit):
        views = {f"tm_ch_{n}": t.slice(lower, limit) for n, t in enumerate(tables)}
        for batch in _run(host, text, views, schema, folded=False):
            of = batch.column(0).to_numpy()
            for number in np.unique(of).tolist():
                piece, at = by_number[number]
                mine = pa.array(of == number)
                piece.add(batch.column(at).filter(mine), batch.column(1).filter(mine))


# -- Spark ---------------------------------------------------------------------------------------------


def _slices(table: pa.Table, width: int) -> Iterator[pa.Table]:
    numbered = _numbered(table)
    limit = max(1, MAX_CELLS // width)
    for lower in range(0, table.num_rows, limit):
        yield numbered.slice(lower, limit)


def _numbered(table: pa.Table) -> pa.Table:
    return table.append_column(ROW, pa.array(np.arange(table.num_rows)))


def _run(
    host: SparkHost, text: str, views: dict[str, pa.Table], schema: pa.Schema, *, folded: bool
) -> ResultStream:
    job = Job(host, "changes")
    small = max(t.num_rows for t in views.values()) <= LIMITS.small_rows
    with job.running(), host.lease(small=small) as slot:
        made: list[str] = []
        try:
            for name, table in views.items():
                to_jdf(slot, table, host.scratch, folded=folded).createOrReplaceTempView(name)
                made.append(name)
            frame = slot.jsession.sql(text)
        finally:
            for name in made:
                slot.jsession.catalog().dropTempView(name)
        return ResultStream(host, job, frame, schema)
