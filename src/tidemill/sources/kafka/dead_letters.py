"""Dead letters: the undecodable messages of an output, as rows of a separate relation.

Called by `outputs`; the engine adds the twin when a source is created. An output with ON ERROR DEAD LETTER
has a twin in the definition (`twin`).
The messages are decoded once for both: the output keeps the rows without an error, and the twin has one row
for each of the others. Both are bound and committed like any two outputs of a source. A dead letter therefore
has the time that the row of its message would have had. Reading the same offsets again returns the same dead
letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.sources.contract import OutputDefinition
from tidemill.sources.kafka.messages import TopicMessages, offset_column, timestamp_column
from tidemill.types.arrow import ERROR_COLUMN, error_parts, storage_schema
from tidemill.types.columns import valid_mask
from tidemill.types.kernels import pc
from tidemill.types.model import BYTEA, INT4, TEXT, TIMESTAMP, UINT8, Column, RelationDesc

# Keys of an output in a definition: it has ON ERROR DEAD LETTER; it is the twin.
ASIDE, TWIN = "dead_letter", "dead_letters"

# A dead letter keeps this much of a key and of a value. The default limit of brokers is 1 MB, so nearly all
# are complete; the offset identifies a larger message. Limits the memory of a batch in a task.
MAX_KEPT_BYTES = 1 << 20

DESC = RelationDesc(
    (
        Column("error", TEXT, nullable=False),
        Column("partition", INT4, nullable=False),
        Column("offset", UINT8, nullable=False),
        Column("timestamp", TIMESTAMP),
        Column("key", BYTEA),
        Column("value", BYTEA),
    )
)


def twin(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The output `name` with the dead letters of the output `spec`."""
    return {**spec, "name": name, TWIN: True}


def twin_output(name: str) -> OutputDefinition:
    return OutputDefinition(name, DESC)


def without_errors(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that are not errors."""
    errors = _errors(rows)
    return rows if errors is None else rows.filter(pc.is_null(errors))


def dead_letters(messages: TopicMessages, rows: pa.RecordBatch) -> pa.RecordBatch:
    """One row for each message that is an error. `rows` has the row of each message."""
    errors = _errors(rows)
    wrong = np.zeros(len(messages), np.bool_) if errors is None else valid_mask(errors)
    bad = messages.where(wrong)
    texts = [] if errors is None else errors.filter(pa.array(wrong)).to_pylist()
    timestamps = np.full(len(bad), -1, np.int64) if bad.timestamps is None else bad.timestamps
    columns = [
        pa.array([error_parts(text)[0] for text in texts], pa.string()),
        pa.array(np.full(len(bad), bad.partition, np.int32)),
        offset_column(bad.offsets),
        timestamp_column(timestamps)[0],
        pc.binary_slice(bad.keys, 0, MAX_KEPT_BYTES),
        pc.binary_slice(bad.values, 0, MAX_KEPT_BYTES),
    ]
    schema = pa.schema([f.with_nullable(True) for f in storage_schema(DESC)])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _errors(rows: pa.RecordBatch) -> pa.Array | None:
    """The column of errors; None if the batch has no error."""
    if ERROR_COLUMN not in rows.schema.names:
        return None
    errors = rows.column(ERROR_COLUMN)
    return None if errors.null_count == len(errors) else errors
