"""Rows of an output: decodes the messages of the inbox, column by column."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.decode.contract import legible
from tidemill.decode.formats import open_decoder
from tidemill.sources.kafka.dead_letters import ASIDE, DESC, MAX_KEPT_BYTES, TWIN
from tidemill.sources.kafka.messages import (
    DECODE_ERROR,
    first_of,
    nulled,
    offset_column,
    with_messages,
)
from tidemill.sources.pubnub.layout import message_layout
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, error_parts, storage_schema
from tidemill.types.kernels import pc

# A timetoken that is later has no timestamp (in the year 2262); such messages are errors anyway.
_TICKS_PER_MICROSECOND = 10


class MessageRows:
    """Of one output."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._layout = message_layout(spec)
        self._decoder = open_decoder(spec["value"])
        self._json = spec["value"]["format"] == "json"
        self._channel: str | None = spec.get("channel")
        self._aside, self._twin = bool(spec.get(ASIDE)), bool(spec.get(TWIN))
        fields = [field.with_nullable(True) for field in storage_schema(self._layout.output.desc)]
        self._own = pa.schema([*fields, pa.field(DIFF_COLUMN, pa.int64(), nullable=False)])

    def make(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """`messages` has the columns of the inbox."""
        messages = self._wanted(messages)
        payloads = self._payloads(messages)
        decoded = self._decoder.decode(payloads)
        found = with_messages(decoded.errors, payloads)
        if found is not None:
            found = pc.binary_join_element_wise(pa.scalar(DECODE_ERROR), found, "")
        errors = first_of(messages.column("error"), found)
        if self._twin:
            return _dead_letters(messages, errors)
        columns = [*decoded.columns, *(_included(what, messages) for what in self._layout.included)]
        ones = pa.array(np.ones(len(messages), np.int64))
        if errors is None:
            return pa.RecordBatch.from_arrays([*columns, ones], schema=self._own)
        failed = errors.is_valid()
        columns = [nulled(column, failed) for column in columns]
        schema = self._own.append(pa.field(ERROR_COLUMN, pa.string()))
        rows = pa.RecordBatch.from_arrays([*columns, ones, _located(errors, messages)], schema=schema)
        return rows.filter(pc.invert(failed)) if self._aside else rows

    def _wanted(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        if self._channel is None:
            return messages
        names = pc.unique(messages.column("channel")).to_pylist()
        of = [n for n in names if n is None or n == self._channel or fnmatchcase(n, self._channel)]
        chosen = pc.is_in(messages.column("channel"), pa.array(of, pa.string()))
        by = pc.fill_null(pc.equal(messages.column("subscription"), self._channel), False)
        return messages.filter(pc.or_(chosen, by))

    def _payloads(self, messages: pa.RecordBatch) -> pa.Array:
        payloads = messages.column("payload")
        if self._json:
            quoted = pc.fill_null(messages.column("quoted"), False)
            if pc.any(quoted).as_py():
                # A text is rarely published to be read as JSON.
                texts = [json.dumps(text) for text in payloads.filter(quoted).to_pylist()]
                payloads = pc.replace_with_mask(payloads, quoted, pa.array(texts, pa.string()))
        return payloads.cast(pa.binary())


def _located(errors: pa.Array, messages: pa.RecordBatch) -> pa.Array:
    """The errors, each with its message. A gap has its own place."""
    quoted = {name: legible(name) for name in pc.unique(messages.column("channel")).to_pylist() if name}
    channels = messages.column("channel")
    if any(name != shown for name, shown in quoted.items()):
        channels = pa.array([quoted.get(name) for name in channels.to_pylist()], pa.string())
    texts = pc.binary_join_element_wise(
        errors,
        pa.scalar('\nChannel "'),
        channels,
        pa.scalar('", region '),
        messages.column("region").cast(pa.string()),
        pa.scalar(", timetoken "),
        messages.column("timetoken").cast(pa.string()),
        pa.scalar("."),
        "",
    )
    return pc.if_else(messages.column("timetoken").is_valid(), texts, errors)


def _included(what: str, messages: pa.RecordBatch) -> pa.Array:
    tokens = pc.fill_null(messages.column("timetoken"), 0)
    if what == "key":
        return messages.column("channel")
    if what == "partition":
        return messages.column("region")
    if what == "offset":
        return offset_column(tokens.to_numpy(zero_copy_only=False))
    return _published(tokens)


def _published(tokens: pa.Array) -> pa.Array:
    return pc.divide(tokens, pa.scalar(_TICKS_PER_MICROSECOND, pa.int64())).cast(pa.timestamp("us"))


def _dead_letters(messages: pa.RecordBatch, errors: pa.Array | None) -> pa.RecordBatch:
    """A row for each message that is an error, and for each gap."""
    wrong = pa.array(np.zeros(len(messages), np.bool_)) if errors is None else errors.is_valid()
    bad = messages.filter(wrong)
    texts = [] if errors is None else errors.filter(wrong).to_pylist()
    tokens = bad.column("timetoken")
    positions = pc.coalesce(tokens, bad.column("position"))
    columns = [
        pa.array([_whole(text) for text in texts], pa.string()),
        bad.column("region").cast(pa.int32()),
        offset_column(positions.to_numpy(zero_copy_only=False)),
        _published(tokens),
        pc.binary_slice(bad.column("channel").cast(pa.binary()), 0, MAX_KEPT_BYTES),
        pc.binary_slice(bad.column("payload").cast(pa.binary()), 0, MAX_KEPT_BYTES),
        pa.array(np.ones(len(bad), np.int64)),
    ]
    fields = [f.with_nullable(True) for f in storage_schema(DESC)]
    schema = pa.schema([*fields, pa.field(DIFF_COLUMN, pa.int64(), nullable=False)])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _whole(text: str) -> str:
    """An error on one line: a gap says in its second which messages are missing."""
    primary, detail = error_parts(text)
    return primary if detail is None else f"{primary} ({detail.removesuffix('.')})"
