"""Error rows for records that the upstream no longer has.

A table that is created later begins with everything that its source has bound so far. Retention may have
removed the first of these records permanently. This is an error of the table alone. It is stored in the
table's collection, where every read meets it. Written by `machine`.
"""

from __future__ import annotations

import pyarrow as pa

from tidemill.ingest.unit import UnitFailure
from tidemill.sources.contract import KEY_SLOT_COLUMN
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN, shard_schema
from tidemill.types.model import RelationDesc

# In the hidden column that distinguishes error slots of upserts. No record has this value, so no record
# replaces the error.
SLOT = b"\x02"


def error_of(desc: RelationDesc, failure: UnitFailure, time: int) -> pa.Table:
    """The one update with the error."""
    text = f"the table cannot begin where its source does: {failure.primary}"
    if failure.detail:
        text += f" ({failure.detail.rstrip('.')})"
    given: dict[str, object] = {
        TIME_COLUMN: time,
        DIFF_COLUMN: 1,
        ERROR_COLUMN: f"Source error: {text}",
        KEY_SLOT_COLUMN: SLOT,
    }
    schema = shard_schema(desc)
    return pa.table([pa.array([given.get(f.name)], f.type) for f in schema], schema=schema)
