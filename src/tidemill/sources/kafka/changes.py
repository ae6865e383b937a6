"""Rows of ENVELOPE DEBEZIUM: turns Kafka records into changes with both rows and a position, by columns.

Called by `reader` in the tasks. A record that cannot be decoded becomes an error, in a slot of its own that
nothing replaces. A change that lacks what the envelope needs stops the source (`change_faults`): which row it
takes away is not known.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import Decoded, Decoder
from tidemill.decode.debezium.avro_images import AvroImages
from tidemill.decode.debezium.images import DELETE, OPERATIONS, TRUNCATE, UPDATE, ImageReader, Images
from tidemill.decode.debezium.json_images import JsonImages
from tidemill.decode.debezium.positions import CONNECTORS
from tidemill.errors import TidemillError
from tidemill.sources.contract import (
    BEFORE_COLUMN,
    COMMITTED_COLUMN,
    KEY_SLOT_COLUMN,
    OFFSET_COLUMN,
    OP_COLUMN,
    PHASE_COLUMN,
    POSITION_COLUMN,
    TIMELINE_COLUMN,
    TOMBSTONE_COLUMN,
)
from tidemill.sources.kafka.change_faults import Faults
from tidemill.sources.kafka.change_origins import POSITION_TYPE, origins_of
from tidemill.sources.kafka.layout import Layout
from tidemill.sources.kafka.messages import (
    DECODE_ERROR,
    RowMaker,
    TopicMessages,
    first_of,
    located,
    nulled,
    with_messages,
)
from tidemill.types.arrow import ERROR_COLUMN
from tidemill.types.columns import valid_mask
from tidemill.types.kernels import pc

# Of the slot of an error; its partition and offset follow.
FAILED_PREFIX = b"\x02"

_INSTEAD = "ENVELOPE DEBEZIUM UPSERT"


class ChangeRows(RowMaker):
    """Makes rows of one output whose envelope is DEBEZIUM."""

    def __init__(self, layout: Layout, key: Decoder | None, value: Decoder, *, json_value: bool) -> None:
        super().__init__(layout, key)
        self._json = json_value
        self._reader: ImageReader = JsonImages(value) if json_value else AvroImages(value, self._key_columns)
        self._fields = [
            *self._schema,
            pa.field(ERROR_COLUMN, pa.string()),
            pa.field(KEY_SLOT_COLUMN, pa.binary()),
            pa.field(OFFSET_COLUMN, pa.int64(), nullable=False),
            pa.field(TOMBSTONE_COLUMN, pa.bool_(), nullable=False),
            pa.field(BEFORE_COLUMN, pa.struct(list(self._schema))),
            pa.field(PHASE_COLUMN, pa.uint8(), nullable=False),
            pa.field(POSITION_COLUMN, POSITION_TYPE),
            pa.field(OP_COLUMN, pa.uint8(), nullable=False),
            pa.field(COMMITTED_COLUMN, pa.int64()),
            pa.field(TIMELINE_COLUMN, pa.string()),
        ]

    def make(self, messages: TopicMessages) -> pa.RecordBatch:
        """A row of each change and of each record that failed, in the order of the records. Raises
        UpstreamError for the first change that breaks a constraint of the envelope."""
        raw = self._layout.envelope.bare_keys(messages.keys)
        keys = self._decode_keys(raw)
        images = self._reader.read(messages.values, raw, keys.columns)
        live = np.isin(images.op, OPERATIONS)
        if images.errors is not None:
            live &= images.errors.is_null().to_numpy(zero_copy_only=False)
        faults = Faults()
        _check(images, live, faults)
        # A key that cannot be read is an error of its record.
        readable = live if keys.errors is None else live & ~valid_mask(keys.errors)
        faults.note(readable & images.foreign, lambda _: _foreign())
        origins = origins_of(images.source, live, faults)
        faults.check(messages, keys.columns, self._key_columns)
        errors = self._errors(messages, keys, images, live)
        failed = np.zeros(len(messages), np.bool_) if errors is None else valid_mask(errors)
        good = live & ~failed
        present, old = good & images.has_after, good & images.has_before
        after, before = self._rows(images, keys.columns)
        if errors is not None:
            after = [nulled(column, pa.array(failed)) for column in after]
        columns = [
            *after,
            pa.nulls(len(messages), pa.string()) if errors is None else errors,
            _slots(messages, failed),
            pa.array(messages.offsets),
            pa.array(good & ~present),
            pa.StructArray.from_arrays(before, fields=list(self._schema), mask=pa.array(~old)),
            pa.array(origins.phases),
            origins.positions,
            pa.array(images.op),
            origins.committed,
            origins.timelines,
        ]
        if errors is not None:  # of a key that failed the change itself was read
            for at in (-4, -2, -1):
                columns[at] = nulled(columns[at], pa.array(failed))
            columns[-5] = pa.array(np.where(failed, np.uint8(0), origins.phases))
            columns[-3] = pa.array(np.where(failed, np.uint8(0), images.op))
        rows = pa.RecordBatch.from_arrays(columns, schema=pa.schema(self._fields))
        kept = live | failed
        return rows if bool(kept.all()) else rows.filter(pa.array(kept))

    def _rows(self, images: Images, keys: Sequence[pa.Array]) -> tuple[list[pa.Array], list[pa.Array]]:
        """The columns of the rows after and before. The key is the message's; a row before has the same, and
        in Avro its own columns for it."""
        after = self._placed(keys, images.after)
        return after, self._placed(keys, images.before) if self._json else list(images.before)

    def _placed(self, keys: Sequence[pa.Array], values: Sequence[pa.Array]) -> list[pa.Array]:
        columns: list[pa.Array] = [*self._schema]  # type: ignore[list-item]
        for at, column in zip(self._layout.value_at, values, strict=True):
            if at is not None:
                columns[at] = column
        for at, column in zip(self._layout.key_at, keys, strict=True):
            columns[at] = column
        return columns

    def _errors(
        self, messages: TopicMessages, keys: Decoded, images: Images, live: np.ndarray
    ) -> pa.Array | None:
        """Why a record is not a row. A record that is no change is none, whatever its key."""
        keyless = with_messages(keys.errors, messages.keys)
        if messages.keys.null_count:
            none = pc.if_else(messages.keys.is_null(), pa.scalar("a change without a key"), None)
            keyless = first_of(keyless, none)
        if keyless is not None:
            keyless = pc.if_else(pa.array(live), keyless, None)
        errors = first_of(with_messages(images.errors, messages.values), keyless)
        if errors is None:
            return None
        return located(pc.binary_join_element_wise(pa.scalar(DECODE_ERROR), errors, ""), messages)


def _slots(messages: TopicMessages, failed: np.ndarray) -> pa.Array:
    if not failed.any():
        return pa.nulls(len(messages), pa.binary())
    prefix = FAILED_PREFIX + int(messages.partition).to_bytes(4, "big")
    found = zip(failed.tolist(), messages.offsets.tolist(), strict=True)
    return pa.array([prefix + at.to_bytes(8, "big") if wrong else None for wrong, at in found], pa.binary())


def _check(images: Images, live: np.ndarray, faults: Faults) -> None:
    """Notes changes that lack a row that they must have."""
    op = images.op

    def said(row: int) -> str:
        rows = [f"{name} is null" for name, has in (("before", had), ("after", has_after)) if not has[row]]
        return ", ".join([f"op is {chr(op[row])}", *rows]) + "."

    had, has_after = images.has_before, images.has_after
    faults.note(live & (op == TRUNCATE), lambda _: _truncated())
    deletes = op == DELETE
    faults.note(
        live & ((op == UPDATE) | deletes) & ~had,
        lambda row: _without_before(_whole_rows(images, row), said(row)),
    )
    faults.note(live & ~deletes & (op != TRUNCATE) & ~has_after, lambda row: _without_after(said(row)))
    faults.note(live & images.unfilled, lambda row: _unfilled(_whole_rows(images, row)))


def _whole_rows(images: Images, row: int) -> str:
    """What to do upstream, for the connector of a change."""
    connector = CONNECTORS.get(images.source.text("connector")[row].as_py() or "")
    does = "The upstream must log whole old rows" if connector is None else connector.whole_rows
    return f"{does}. Then create a new source. {_INSTEAD} needs no old rows."


def _truncated() -> TidemillError:
    return TidemillError(
        "ENVELOPE DEBEZIUM cannot read a TRUNCATE",
        detail="op is t: the rows that it takes away are not in the message.",
        hint=f"{_INSTEAD} empties the relation. Debezium leaves it out if skipped.operations is t.",
        sqlstate="0A000",
    )


def _without_before(hint: str, said: str) -> TidemillError:
    return TidemillError("a change does not have the row before it", detail=said, hint=hint, sqlstate="55000")


def _without_after(said: str) -> TidemillError:
    return TidemillError(
        "a change does not have the row after it",
        detail=said,
        hint="Debezium writes it for every op but d: look for what changes its messages on their way.",
        sqlstate="22000",
    )


def _unfilled(hint: str) -> TidemillError:
    return TidemillError(
        "a change lacks a value that was left out as unchanged",
        detail="before does not have it either.",
        hint=hint,
        sqlstate="55000",
    )


def _foreign() -> TidemillError:
    return TidemillError(
        "a change has a row of another key than its message",
        detail="A column of the key is missing in before or after, or has another value there.",
        hint="ENVELOPE DEBEZIUM needs keys that are columns of the table, as Debezium writes them.",
        sqlstate="22000",
    )
