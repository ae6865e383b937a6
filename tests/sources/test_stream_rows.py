"""Records of a CDCv2 stream as batches of a source: what each says, also where that is nothing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidemill.cdcv2 import AvroCodec
from tidemill.sources.stream_rows import StreamRows

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


def forms() -> dict[str, tuple[dict[str, Any], bytes]]:
    """A format, and its message of no updates."""
    codec, pairs = AvroCodec(SCHEMA), AvroCodec(SCHEMA, 2)
    avro: dict[str, Any] = {"format": "avro", "framed": False, "registry": None}
    return {
        "json": ({"format": "json"}, b"[]"),
        "json of pairs": ({"format": "json", "components": 2}, b" [ ]"),
        "avro": ({**avro, "schema": codec.avro_schema}, b"\x00\x00"),
        "avro of pairs": ({**avro, "schema": pairs.avro_schema, "components": 2}, b"\x00\x00"),
    }


@pytest.mark.parametrize("form", forms())
def test_a_message_of_no_updates_says_nothing(form: str) -> None:
    value, message = forms()[form]
    maker = StreamRows(0, {"name": "s", "value": value}, ("partition ", ", offset "))
    (batch,) = maker.make("0", [7, 8, 9], [message, None, message], 20)
    assert batch.rows.num_rows == 0 and batch.records == 3
    # A record without a value is something else.
    (stated,) = batch.stated
    assert (stated.offset, stated.said) == (
        8,
        "Decode error: a record without a value\nIn partition 0, offset 8.",
    )
