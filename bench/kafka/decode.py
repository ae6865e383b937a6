"""Decoding alone, on one core: columns from messages that are in memory."""

from __future__ import annotations

import io
import json
import struct
import time
from typing import Any

import fastavro
import numpy as np
import polars as pl
import pyarrow as pa

from bench.kafka.load import SCHEMA, Load, Wrong, fields, messages
from bench.report import Figure
from tidemill.decode.contract import Decoded
from tidemill.decode.formats import open_decoder
from tidemill.sources.contract import MAX_BATCH_ROWS

_TYPES: dict[type[pl.DataType], str] = {pl.Int64: "long", pl.Float64: "double", pl.String: "string"}
# As a registry has them: framed, and most fields may be null.
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "message",
    "fields": [
        {"name": name, "type": "long" if name == "id" else ["null", _TYPES[of]]}
        for name, of in SCHEMA.items()
    ],
}
SCHEMA_ID = 7


def avro(rows: pl.DataFrame) -> pa.Array:
    """Messages with the five bytes in front."""
    schema = fastavro.parse_schema(AVRO)
    head = b"\0" + struct.pack(">I", SCHEMA_ID)
    out: list[bytes] = []
    for row in rows.iter_rows(named=True):
        buffer = io.BytesIO(head)
        buffer.seek(len(head))
        fastavro.schemaless_writer(buffer, schema, row)
        out.append(buffer.getvalue())
    return pa.array(out, pa.binary())


def _rate(format_: dict[str, Any], pieces: list[pa.Array], rounds: int) -> tuple[float, list[Decoded]]:
    """Records per second of processor time, of all threads; the best of some rounds. And what came out."""
    decoder = open_decoder(format_)
    best, found = float("inf"), list[Decoded]()
    for _ in range(rounds):
        began = time.process_time()
        found = [decoder.decode(piece) for piece in pieces]
        best = min(best, time.process_time() - began)
    if any(one.errors is not None for one in found):
        raise Wrong("a good message was taken for a bad one")
    return sum(len(piece) for piece in pieces) / best, found


def measure(*, quick: bool) -> list[Figure]:
    count = 20_000 if quick else 500_000
    load = Load(count, count // 4)
    batches = pl.concat(load.batches()).with_columns(gone=pl.lit(False))
    rows = batches.select(*fields()).with_columns(note=pl.lit("a note of some length, as notes are"))
    encoded = avro(rows.select(*SCHEMA))
    framed = {"format": "avro", "schema": json.dumps(AVRO), "framed": True, "registry": None}
    rate, found = _rate(framed, _cut(encoded), 3)
    for number, name in enumerate(SCHEMA):
        column = pl.concat([_series(one.columns[number]) for one in found])
        if not np.array_equal(column.to_numpy(), rows[name].to_numpy()):
            raise Wrong(f"wrong values of {name}")
    values = messages(batches)["value"].to_arrow().cast(pa.binary())
    plain, _ = _rate({"format": "json"}, _cut(values), 3)
    what = f"decoding {count:,} records of {len(SCHEMA)} fields, one core"
    size = encoded.nbytes // count
    return [
        Figure(f"{what}: Avro, {size} bytes", f"{rate:,.0f}/s", ">= 500,000/s (1,000,000)", rate >= 500_000),
        Figure(f"{what}: JSON to jsonb, 188 bytes", f"{plain:,.0f}/s", ""),
    ]


def _cut(column: pa.Array) -> list[pa.Array]:
    """Into pieces of the size that a reader gives to a decoder."""
    return [column.slice(at, MAX_BATCH_ROWS) for at in range(0, len(column), MAX_BATCH_ROWS)]


def _series(column: pa.Array) -> pl.Series:
    found = pl.from_arrow(column)
    assert isinstance(found, pl.Series)
    return found
