"""Rows as JSON that lack members: whatever came before, in the same tick or an earlier one, fills them. Keys
are looked at by their buckets, as in the tasks: in most of them no record lacks anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kafka.test_kafka_debezium import json_rows
from tidemill.decode.debezium.placeholders import PLACEHOLDER
from tidemill.envelope.keys import KeyShape
from tidemill.envelope.upsert import FoundRows, upsert
from tidemill.ingest.exchange import partition_by_key
from tidemill.types.model import BYTEA, JSONB, Column, RelationDesc

DESC = RelationDesc((Column("key", JSONB), Column("data", JSONB)), (Column("mz_key", BYTEA),))
SHAPE = KeyShape.of(DESC, ["key", "mz_key"])

MEMBER = st.sampled_from([PLACEHOLDER, "x", 1, None])
# A key, and its row; None deletes it.
CHANGE = st.tuples(
    st.integers(1, 3), st.none() | st.fixed_dictionaries({"n": st.integers(0, 9), "a": MEMBER, "b": MEMBER})
)


class Kept:
    """The state as a plain dictionary of rows."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def lookup(self, rows: pa.RecordBatch, hashes: np.ndarray) -> FoundRows:
        keys = rows.column(0).to_pylist()
        where = [n for n, key in enumerate(keys) if key in self.rows]
        found = [self.rows[keys[n]] for n in where]
        return FoundRows(pa.RecordBatch.from_pylist(found, schema=SHAPE.schema), np.array(where, np.int64))


def folded(model: dict[int, Any], tick: Sequence[tuple[int, Any]]) -> None:
    """Record by record. An error has no members; a member that is not known is left out as a whole row."""
    for key, row in tick:
        old = model.get(key)
        if row is None:
            model.pop(key, None)
        elif PLACEHOLDER not in row.values():
            model[key] = row
        elif isinstance(old, dict):
            model[key] = {n: old[n] if v == PLACEHOLDER else v for n, v in row.items()}
        else:
            model[key] = "error"


@given(st.lists(st.lists(CHANGE, max_size=6), max_size=4))
def test_members_that_were_left_out_are_those_of_the_row_before(ticks: list[list[tuple[int, Any]]]) -> None:
    state, model = Kept(), dict[int, Any]()
    for time, tick in enumerate(ticks, 1):
        messages = [
            (b"%d" % key, json.dumps({"before": None, "after": row, "op": "u"}).encode()) for key, row in tick
        ]
        for bucket in partition_by_key(pa.Table.from_batches([json_rows(messages)]), SHAPE.key).values():
            changed = upsert(bucket, SHAPE, time, state)
            for row, deleted in zip(changed.rows.to_pylist(), changed.deleted, strict=True):
                if deleted:
                    state.rows.pop(row["key"], None)
                else:
                    state.rows[row["key"]] = row
        folded(model, tick)
        found = {
            int(key): "error" if row["mz_error"] else json.loads(row["data"])
            for key, row in state.rows.items()
        }
        assert found == model
