"""What decoding costs: messages to columns on one core, each format beside the usual way, record by record.

Times are processor time of this process, so that what else the machine does counts little. Both ways run in
turns in one process, and their values are compared.
"""

from __future__ import annotations

import csv
import io
import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf import message_factory

from bench.report import Figure
from tidemill.decode.avro.decoder import AvroDecoder
from tidemill.decode.contract import Decoder
from tidemill.decode.csv import CsvMessageDecoder
from tidemill.decode.json import JsonDecoder
from tidemill.decode.protobuf import ProtobufDecoder, compiled, find_message
from tidemill.sources.contract import MAX_BATCH_ROWS
from tidemill.types.json import canonical_json

Row = dict[str, Any]
FRAME = b"\0\0\0\0\1"
FLAT: dict[str, Any] = {
    "type": "record",
    "name": "Flat",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "state", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "ok", "type": "boolean"},
        {"name": "score", "type": ["null", "float"]},
    ],
}
SOURCE: dict[str, Any] = {
    "type": "record",
    "name": "Source",
    "fields": [
        {"name": n, "type": t}
        for n, t in (
            ("version", "string"),
            ("db", "string"),
            ("ts_ms", "long"),
            ("snapshot", ["null", "string"]),
            ("lsn", ["null", "long"]),
        )
    ],
}
# As Debezium writes changes.
ENVELOPE: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", FLAT]},
        {"name": "after", "type": ["null", "Flat"]},
        {"name": "source", "type": SOURCE},
        {"name": "op", "type": "string"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": "int"}},
    ],
}
PROTO = """
syntax = "proto3";
message Flat {
  int64 id = 1; string name = 2; double amount = 3; optional string note = 4; int32 state = 5; int64 at = 6;
  bool ok = 7; optional float score = 8;
}
"""


def _row(rng: random.Random, i: int) -> Row:
    return {
        "id": rng.randrange(10**7),
        "name": f"name {i % 1000}",
        "amount": round(rng.random() * 1000, 2),
        "note": None if i % 10 == 0 else f"a note of some length, number {i % 200:03}",
        "state": i % 5,
        "at": 1_700_000_000_000_000 + i * 1000,
        "ok": i % 2 == 0,
        "score": None if i % 3 == 0 else 1.5,
    }


def _envelope(rng: random.Random, i: int) -> Row:
    return {
        "before": None,
        "after": _row(rng, i),
        "source": {
            "version": "3.6.2.Final",
            "db": "shop",
            "ts_ms": 1_700_000_000_000 + i,
            "snapshot": None,
            "lsn": i,
        },
        "op": "c",
        "tags": ["a", "bb"][: i % 3],
        "more": {"k": i},
    }


def _bare(schema: Any) -> Any:
    """Without logical types: fastavro then makes numbers, as we do."""
    return json.loads(json.dumps(schema).replace('"logicalType": "timestamp-micros"', '"doc": ""'))


def _rate(work: Callable[[], object], records: int, turns: int) -> float:
    """Records per second of processor time, at best."""
    best = float("inf")
    for _ in range(turns):
        began = time.process_time()
        work()
        best = min(best, time.process_time() - began)
    return records / best


def _compare(
    what: str,
    decoder: Decoder,
    messages: Sequence[bytes],
    one: Callable[[bytes], Any],
    other: str,
    aim: int | None,
    *,
    turns: int,
) -> Figure:
    column = pa.array(messages, pa.binary())
    few = messages[: max(1, len(messages) // 8)]
    decoder.decode(column)  # what is learned at first is learned once
    decoded = decoder.decode(column)
    if decoded.errors is not None:
        raise AssertionError(f"{what}: {decoded.errors.drop_null()[0]}")
    ours = _rate(lambda: decoder.decode(column), len(messages), turns)
    theirs = _rate(lambda: [one(message) for message in few], len(few), turns)
    return Figure(
        f"{what}, {len(messages):,} messages of {sum(map(len, messages)) // len(messages)} bytes, records/s",
        f"{ours:,.0f} ({ours / theirs:.1f}x of {other}: {theirs:,.0f})",
        "" if aim is None else f">= {aim:,}",
        None if aim is None else ours >= aim,
    )


def _avro(schema: Any, rows: list[Row]) -> tuple[list[bytes], Callable[[bytes], Any]]:
    parsed = fastavro.parse_schema(_bare(schema))
    messages: list[bytes] = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        messages.append(FRAME + out.getvalue())

    def one(message: bytes) -> Any:
        return fastavro.schemaless_reader(io.BytesIO(message[len(FRAME) :]), parsed, None)

    return messages, one


def _check(decoder: Decoder, messages: Sequence[bytes], one: Callable[[bytes], Any]) -> None:
    """That fast is also right: the first messages, field by field."""
    decoded = decoder.decode(pa.array(messages[:200], pa.binary()))
    for name, column in zip([c.name for c in decoder.columns], decoded.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        if [one(message)[name] for message in messages[:200]] != column.to_pylist():
            raise AssertionError(f"column {name} is not what fastavro reads")


def measure(*, quick: bool = False) -> list[Figure]:
    rng = random.Random(1)
    turns = 2 if quick else 9
    count = 4096 if quick else MAX_BATCH_ROWS
    rows = [_row(rng, i) for i in range(count)]
    figures: list[Figure] = []

    messages, one = _avro(FLAT, rows)
    decoder = AvroDecoder(json.dumps(FLAT), framed=True)
    _check(decoder, messages, one)
    figures.append(_compare("Avro, 8 columns", decoder, messages, one, "fastavro", 500_000, turns=turns))
    small = AvroDecoder(json.dumps(FLAT), framed=True)
    figures.append(
        _compare("Avro, a tick's worth", small, messages[:1000], one, "fastavro", None, turns=turns)
    )
    messages, one = _avro(ENVELOPE, [_envelope(rng, i) for i in range(count)])
    decoder = AvroDecoder(json.dumps(ENVELOPE), framed=True)
    figures.append(
        _compare("Avro, nested as Debezium's", decoder, messages, one, "fastavro", None, turns=turns)
    )

    texts = [json.dumps(row).encode() for row in rows]
    figures.append(
        _compare(
            "JSON, 8 keys",
            JsonDecoder(),
            texts,
            lambda message: canonical_json(message.decode()),
            "one by one",
            None,
            turns=turns,
        )
    )
    files = compiled(PROTO, {})
    parse = message_factory.GetMessageClass(find_message(files, "Flat"))
    names = [field["name"] for field in FLAT["fields"]]

    def one_proto(message: bytes) -> Any:
        found: Any = parse.FromString(message)
        return [getattr(found, name) for name in names]

    protos = [parse(**row).SerializeToString() for row in rows]
    figures.append(
        _compare(
            "Protobuf, 8 fields",
            ProtobufDecoder(files, "Flat", framed=False),
            protos,
            one_proto,
            "upb",
            None,
            turns=turns,
        )
    )
    figures.append(
        _compare(
            "CSV, 8 columns",
            CsvMessageDecoder(names),
            [_csv(row) for row in rows],
            lambda message: next(csv.reader([message.decode()])),
            "Python's csv",
            None,
            turns=turns,
        )
    )
    return figures


def _csv(row: Row) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerow(row.values())
    return out.getvalue().encode()
