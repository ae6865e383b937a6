"""SHOW LOCATION OF a relation: its Delta table, and code that reads it there at a time.

The time is chosen, and waited for, as for a SELECT of the relation. All of it is in the table before the
statement is answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from tidemill.catalog.items import MaterializedView, Source, SourceTable, Table, View
from tidemill.engine.api import Outcome, Rows
from tidemill.engine.read import reading
from tidemill.engine.read.completeness import source_inputs, until_complete, until_readable
from tidemill.engine.read.delta_readers import READERS, DeltaVersion
from tidemill.engine.read.local_rows import stream, text_table
from tidemill.engine.read.reader import Reader
from tidemill.engine.read.select import QueryPlan, plan_relation
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import ActionOf, Plan, Value
from tidemill.errors import Notice, WrongObjectType
from tidemill.inputs.collections import Collections
from tidemill.inputs.timelines import show_time_of
from tidemill.persist.log import shard_folder
from tidemill.persist.snapshot import Snapshot
from tidemill.sql import ast
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN
from tidemill.types.model import INT8, MZ_TIMESTAMP, TEXT, Column, SqlType
from tidemill.types.names import physical_names

_COLUMNS = (
    Column("reader", TEXT),
    Column("location", TEXT),
    Column("version", INT8),
    Column("time", MZ_TIMESTAMP),
    Column("errors", INT8),
    Column("code", TEXT),
)
Stored = Table | Source | SourceTable | MaterializedView


def plan_show_location(
    view: CatalogView, reader: Reader, statement: ast.ShowLocation, types: Sequence[SqlType | None]
) -> Plan:
    item = view.resolver().item(statement.name)
    if not isinstance(item, Stored) or item.shard is None:
        raise WrongObjectType(
            f'"{item.name}" is not stored in a Delta table of its own',
            hint="Tables, sources and materialized views are."
            + (" CREATE MATERIALIZED VIEW stores the rows of a view." if isinstance(item, View) else ""),
            position=statement.name.offset + 1,
        )
    # Checks privileges, and gives the time, as a SELECT would.
    query = plan_relation(view, reader, statement.name, statement.as_of, types)

    async def act(params: Sequence[Value]) -> Outcome:
        found, errors = await _locate(reader, query, item, params)
        rows = [
            (name, found.location, found.version, found.time, errors, code(found)) for name, code in READERS
        ]
        return Rows(_COLUMNS, stream(text_table(_COLUMNS, rows)), tag="SHOW", counted=False)

    return ActionOf(act, query.param_types, _COLUMNS)


async def _locate(
    reader: Reader, query: QueryPlan, item: Stored, params: Sequence[Value]
) -> tuple[DeltaVersion, int]:
    reader.transactions.current.will_read()
    as_of = await query.as_of_time(params)
    sources = source_inputs(query.view.state, query.bound)
    await until_readable(reader, sources)
    time = await reading.choose_time(reader, as_of, sources)
    await until_complete(reader, sources, time)
    look = partial(_look, reader.runtime.collections, item, time)
    found, errors = await reader.execution.blocking(look)
    if errors:
        reader.execution.notice(
            Notice(
                f'"{item.name}" has errors at {show_time_of(item, time)}',
                detail=f"There are {errors}. SELECT fails with one of them; the code leaves them out.",
                hint="They are the rows of the Delta table whose mz_error is not null.",
            )
        )
    return found, errors


def _look(collections: Collections, item: Stored, time: int) -> tuple[DeltaVersion, int]:
    shard = collections.shard(item)
    # While the snapshot is open, no version can have merged what it reads.
    with collections.snapshot(item, time) as snapshot:
        location, _ = shard.blobs.table_uri(shard_folder(shard.id))
        return DeltaVersion(location, shard.version, time, snapshot.desc), _errors(snapshot)


def _errors(snapshot: Snapshot) -> int:
    """How many errors the collection has at the snapshot's time."""
    columns = physical_names(snapshot.desc)[:1]
    found = [
        table.filter(table[ERROR_COLUMN].is_valid()).select([ERROR_COLUMN, DIFF_COLUMN])
        for part in snapshot.parts
        if part.errors
        for table in [snapshot.read_part(part, columns)]
    ]
    if not found:
        return 0
    sums = pa.concat_tables(found).group_by(ERROR_COLUMN).aggregate([(DIFF_COLUMN, "sum")])
    return sum(n for n in sums[f"{DIFF_COLUMN}_sum"].to_pylist() if n > 0)
