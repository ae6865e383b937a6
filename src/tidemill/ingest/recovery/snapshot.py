"""A snapshot supplied by a program, as the first updates of a collection.

Called by `batches` when a stream is read from the middle.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.errors import InvalidValue
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN, shard_schema
from tidemill.types.identity import consolidate
from tidemill.types.json import canonical_json
from tidemill.types.model import Kind, RelationDesc
from tidemill.types.names import physical_names


def snapshot_rows(given: pa.Table, desc: RelationDesc, at: int) -> pa.Table:
    """The snapshot as updates of the collection, each row once. Raises InvalidValue."""
    names = physical_names(desc)
    missing = [name for name in names if name not in given.column_names]
    if missing:
        raise InvalidValue(
            f"the snapshot has no column {', '.join(missing)}", detail=f"It has {given.column_names}."
        )
    schema = shard_schema(desc)
    columns: dict[str, pa.ChunkedArray | pa.Array] = {n: given.column(n) for n in names}
    for name, column in zip(names, desc.columns, strict=True):
        if column.type.kind is Kind.JSONB:
            said = (None if v is None else canonical_json(v) for v in given.column(name).to_pylist())
            columns[name] = pa.array(said, pa.string())
    columns[TIME_COLUMN] = pa.array(np.full(given.num_rows, at, np.int64))
    once = pa.array(np.ones(given.num_rows, np.int64))
    columns[DIFF_COLUMN] = given.column(DIFF_COLUMN) if DIFF_COLUMN in given.column_names else once
    columns[ERROR_COLUMN] = pa.nulls(given.num_rows, pa.string())
    try:
        return consolidate(pa.table({f.name: columns[f.name] for f in schema}).cast(schema), desc)
    except pa.ArrowInvalid as e:
        raise InvalidValue("the snapshot's columns are not those of the stream", detail=f"{e}.") from None
