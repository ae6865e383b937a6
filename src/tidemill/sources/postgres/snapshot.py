"""Snapshot: the tables as they were when the slot was made, read in parallel by tasks.

The driver plans it from the sizes of the tables (`plan_snapshot`). The plan is a list of numbered ranges of
pages, which it computes and does not hold, so that it is small enough to be sent with every unit. A task
reads some of them by COPY, in a transaction of its own that sees the exported snapshot: together they are
each row once, whoever reads which range, and however often.

PostgreSQL shows a table that was truncated or rewritten after the snapshot as empty. So a task first locks a
table against that, and then compares its file with the one that the snapshot knows.
"""

from __future__ import annotations

import bisect
import itertools
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv as pa_csv
from psycopg import sql as composed
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

from tidemill.sources.contract import MAX_BATCH_ROWS, SourceBatch, UpstreamError
from tidemill.sources.postgres.connect import connect, upstream_error
from tidemill.sources.postgres.definition import ReplicatedTable, quoted
from tidemill.sources.postgres.values import batch_schema, decode_rows

# A range of this many pages (32 MB) is read in less than a second; a task notices its deadline more often,
# between batches.
RANGE_PAGES = 4096
# The most ranges of a plan: below it are numbers that no position in a log has.
MAX_RANGES = 1 << 16
# A batch of wide rows ends earlier.
BATCH_BYTES = 8 << 20
# Ranges of pages are read without reading the table from its beginning since this version.
RANGES_SINCE = 140_000
# How long a silent server is waited for before the caller is asked to look at its deadline.
SILENCE_SECONDS = 1.0

_DECODED_AS_BINARY = pa.binary()


class SnapshotGone(UpstreamError):
    """The exported snapshot cannot be read any more. Another one is needed, at a later position."""

    sqlstate = "72000"
    transient = True


@dataclass(frozen=True, slots=True)
class SnapshotRelation:
    """A table with rows: a table of the source (`output` is its number there), or a leaf of a partitioned
    one. `ranges` of `step` pages each; the last one has no end."""

    output: int
    schema: str
    table: str
    relid: int
    ranges: int
    step: int
    pages: int

    @property
    def sql(self) -> str:
        return f"ONLY {quoted(self.schema)}.{quoted(self.table)}"

    def condition(self, number: int) -> str | None:
        """Which rows are in a range; None: all."""
        found: list[str] = []
        if number > 0:
            found.append(f"ctid >= '({number * self.step},0)'::tid")
        if number < self.ranges - 1:
            found.append(f"ctid < '({(number + 1) * self.step},0)'::tid")
        return " AND ".join(found) or None


@dataclass(frozen=True)
class SnapshotPlan:
    """`name` is the exported snapshot. `bytes` and `rows` are what the tables have, about."""

    name: str
    relations: tuple[SnapshotRelation, ...]
    bytes: int
    rows: int

    @cached_property
    def _starts(self) -> list[int]:
        """The number of the first range of each relation, and behind the last one."""
        return [0, *itertools.accumulate(r.ranges for r in self.relations)]

    @property
    def count(self) -> int:
        return self._starts[-1]

    def range_bytes(self) -> np.ndarray:
        """The size of each range, in its order, about."""
        pages = sum(relation.pages for relation in self.relations)
        sizes = [np.empty(0, np.int64)]
        for relation in self.relations:
            starts = np.arange(relation.ranges, dtype=np.int64) * relation.step
            found = np.clip(relation.pages - starts, 0, relation.step)
            found[-1] = max(0, relation.pages - int(starts[-1]))
            sizes.append(found * (self.bytes // max(pages, 1)))
        return np.concatenate(sizes)

    def whole(self, sql: psycopg.Connection[Any]) -> bool:
        """Whether all of its tables are still in the files that the snapshot knows. The session has no other
        use. Raises SnapshotGone, psycopg.Error."""
        _enter(sql, self.name)
        relids = [relation.relid for relation in self.relations]
        ((count,),) = sql.execute(
            "SELECT count(*) FROM pg_class WHERE oid = ANY(%s::oid[]) "
            "AND relfilenode = pg_relation_filenode(oid)",
            [relids],
        ).fetchall()
        return count == len(set(relids))

    def read(
        self,
        options: Mapping[str, Any],
        tables: Sequence[ReplicatedTable],
        first: int,
        last: int,
        done: Callable[[int, int], None] = lambda number, rows: None,
    ) -> Iterator[SourceBatch]:
        """The ranges from `first` to before `last`, in their order. `tables` are all of the source. `done` is
        told the number of each range, and its rows. Raises SnapshotGone and other UpstreamErrors."""
        if first >= last:
            return
        with connect(options) as sql:
            try:
                _enter(sql, self.name)
                locked: set[int] = set()
                for number in range(first, last):
                    at = bisect.bisect_right(self._starts, number) - 1
                    relation = self.relations[at]
                    if relation.relid not in locked:
                        _lock(sql, relation)
                        locked.add(relation.relid)
                    table = tables[relation.output]
                    rows = 0
                    for batch in _copy(sql, relation, table, number - self._starts[at]):
                        rows += batch.records
                        yield batch
                    done(number, rows)
            except psycopg.Error as e:
                raise upstream_error(e, options) from None


def plan_snapshot(
    sql: psycopg.Connection[Any], name: str, tables: Sequence[tuple[int, ReplicatedTable]]
) -> SnapshotPlan:
    """The plan for these tables, each with its number among the outputs. Raises psycopg.Error."""
    relids = [table.relid for _, table in tables]
    rows = sql.execute(_RELATIONS, [relids]).fetchall()
    page = int(sql.execute("SELECT current_setting('block_size')").fetchall()[0][0])
    step = RANGE_PAGES
    whole = sql.info.server_version < RANGES_SINCE
    while not whole and sum(_ranges(pages, step) for *_, pages, _ in rows) > MAX_RANGES:
        step *= 2
    leaves: dict[int, list[tuple[int, str, str, int, float]]] = {}
    for root, relid, schema, table, pages, tuples in rows:
        leaves.setdefault(root, []).append((relid, schema, table, pages, tuples))
    relations = tuple(
        SnapshotRelation(output, schema, name_, relid, 1 if whole else _ranges(pages, step), step, pages)
        for output, table in tables
        for relid, schema, name_, pages, _ in leaves.get(table.relid, ())
    )
    # (A table that was never analyzed has -1 rows.)
    count = int(sum(max(0.0, tuples) for *_, tuples in rows))
    return SnapshotPlan(name, relations, sum(pages for *_, pages, _ in rows) * page, count)


def _ranges(pages: int, step: int) -> int:
    return max(1, -(-pages // step))


# The relations with the rows of each table: itself, or the leaves of a partitioned one.
_RELATIONS = """
SELECT root.oid::int8, leaf.oid::int8, n.nspname::text, leaf.relname::text,
       (pg_relation_size(leaf.oid) / current_setting('block_size')::int8)::int8, leaf.reltuples::float8
FROM pg_class root
CROSS JOIN LATERAL (
  SELECT relid FROM pg_partition_tree(root.oid) WHERE isleaf AND root.relkind = 'p'
  UNION ALL SELECT root.oid WHERE root.relkind <> 'p'
) tree
JOIN pg_class leaf ON leaf.oid = tree.relid
JOIN pg_namespace n ON n.oid = leaf.relnamespace
WHERE root.oid = ANY(%s::oid[])
ORDER BY root.oid, leaf.oid
"""


def _enter(sql: psycopg.Connection[Any], snapshot: str) -> None:
    sql.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        sql.execute(composed.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
    except (
        psycopg.errors.InvalidParameterValue,
        psycopg.errors.UndefinedObject,
        psycopg.errors.ObjectNotInPrerequisiteState,
    ) as e:
        raise SnapshotGone(
            "the snapshot of the tables is no longer there",
            detail=f"{e.diag.message_primary}.",
            hint="The session that held it has ended. Another snapshot is taken by itself.",
        ) from None


def _lock(sql: psycopg.Connection[Any], relation: SnapshotRelation) -> None:
    """Keeps the table's file until the end of the transaction, and checks that it is the one that the
    snapshot has: functions see the catalog as it is now, queries as the snapshot has it."""
    sql.execute(f"LOCK TABLE {relation.sql} IN ACCESS SHARE MODE".encode())
    found = sql.execute(
        "SELECT relfilenode = pg_relation_filenode(oid) FROM pg_class WHERE oid = %s", [relation.relid]
    ).fetchone()
    if found is None or not found[0]:
        raise SnapshotGone(
            f"table {relation.schema}.{relation.table} was truncated or rewritten after the snapshot",
            detail="PostgreSQL would show it as empty.",
            hint="Another snapshot is taken by itself.",
        )


def _copy(
    sql: psycopg.Connection[Any], relation: SnapshotRelation, table: ReplicatedTable, number: int
) -> Iterator[SourceBatch]:
    """The rows of one range."""
    columns = ", ".join(quoted(c.name) for c in table.columns)
    conditions = [c for c in (relation.condition(number), table.filter and f"({table.filter})") if c]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    query = f"COPY (SELECT {columns} FROM {relation.sql}{where}) TO STDOUT (FORMAT csv)"
    result = sql.pgconn.exec_(query.encode())
    if result.status != ExecStatus.COPY_OUT:
        raise error_from_result(result, encoding="utf-8")
    read = _CsvColumns(table)
    for messages in _messages(sql):
        if not messages:
            rows = pa.RecordBatch.from_pylist([], schema=batch_schema(table))
            yield SourceBatch(relation.output, rows, 0, 0)
            continue
        data = b"".join(messages)
        rows = decode_rows(table, read(data), np.ones(len(messages), np.int64))
        yield SourceBatch(relation.output, rows, rows.num_rows, len(data))


def _messages(sql: psycopg.Connection[Any]) -> Iterator[list[bytes]]:
    """The messages of a COPY, each with one row, in lists that are a batch each; an empty list after a
    silence."""
    pgconn = sql.pgconn
    messages: list[bytes] = []
    size = 0
    take = pgconn.get_copy_data
    while True:
        length, data = take(1)
        if length > 0:
            # A copy: libpq's own buffers, kept by the ten thousands, cost three times as much.
            messages.append(bytes(data))
            size += length
            if size >= BATCH_BYTES or len(messages) >= MAX_BATCH_ROWS:
                yield messages
                messages, size = [], 0
        elif length == 0:
            if not select.select([pgconn.socket], [], [], SILENCE_SECONDS)[0]:
                yield []
            pgconn.consume_input()
        else:
            break
    if messages:
        yield messages
    while (result := pgconn.get_result()) is not None:
        if result.status != ExecStatus.COMMAND_OK:
            raise error_from_result(result, encoding="utf-8")


class _CsvColumns:
    """Rows in CSV to columns of texts. A value is quoted where necessary, and NULL is no value at all."""

    def __init__(self, table: ReplicatedTable) -> None:
        self._names = [str(i) for i in range(len(table.columns))]
        self._parse = pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)
        self._convert = pa_csv.ConvertOptions(
            column_types=dict.fromkeys(self._names, _DECODED_AS_BINARY),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            check_utf8=False,
        )

    def __call__(self, data: bytes) -> list[pa.Array]:
        # One block: a row may be larger than any that could be chosen before.
        read = pa_csv.ReadOptions(column_names=self._names, use_threads=False, block_size=len(data) + 1)
        found = pa_csv.read_csv(
            pa.BufferReader(data), read_options=read, parse_options=self._parse, convert_options=self._convert
        )
        return [column.combine_chunks() for column in found.columns]
