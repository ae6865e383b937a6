"""Records that were damaged on the way: each is an error in its own slot, and the others are as they were."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from kafka.kafka_decoders import spec
from kafka.test_kafka_debezium import Writers, captured, latest, told
from tidemill.decode.avro.decoder import AvroDecoder
from tidemill.decode.contract import Decoder
from tidemill.decode.json import JsonDecoder
from tidemill.sources.kafka.envelopes import plan
from tidemill.sources.kafka.messages import RecordRows, TopicMessages

Record = tuple[bytes | None, bytes | None]


class AnyWriters(Writers):
    """A number that no schema has would stall the source: here it is that of some other schema."""

    def schema_text(self, schema_id: int) -> str:
        return super().schema_text(schema_id if 1 <= schema_id <= 4 else 1)


def avro() -> tuple[RecordRows, list[Record]]:
    records = captured("pga_avro_raw")["pga.public.customers"]
    form = {"format": "avro", "schema": latest(records, "value")}
    keys: Decoder = AvroDecoder(latest(records, "key"), framed=True, writers=AnyWriters())
    values: Decoder = AvroDecoder(latest(records, "value"), framed=True, writers=AnyWriters())
    layout = plan(spec("debezium upsert", key=form, value=form), keys.columns, values.columns)
    raw = [
        tuple(
            None if r.get(f"{p}_b64") is None else base64.b64decode(r[f"{p}_b64"]) for p in ("key", "value")
        )
        for r in records
    ]
    return RecordRows(layout, keys, values, json_value=False), [(k, v) for k, v in raw]


def as_json() -> tuple[RecordRows, list[Record]]:
    decoder = JsonDecoder()
    layout = plan(spec("debezium upsert", key="json", value="json"), decoder.columns, decoder.columns)
    records = captured("pgs_schemas_enabled")["pgs.public.customers"]
    return RecordRows(layout, decoder, decoder, json_value=True), [
        (told(r["key"]), told(r["value"])) for r in records
    ]


def upsert() -> tuple[RecordRows, list[Record]]:
    decoder = JsonDecoder()
    layout = plan(spec("upsert", key="json", value="json"), decoder.columns, decoder.columns)
    records = [
        (json.dumps({"id": n}).encode(), json.dumps({"id": n, "x": "é" * n}).encode()) for n in range(9)
    ]
    return RecordRows(layout, decoder, decoder, json_value=False), [(k, v) for k, v in records]


def damaged(draw: random.Random, message: bytes | None) -> bytes | None:
    if message is None or draw.random() < 0.1:
        return None if draw.random() < 0.5 else b""
    at = draw.randrange(len(message) or 1)
    how = draw.randrange(5)
    if how == 0:
        return message[:at]
    if how == 1:
        return message[:at] + bytes([draw.randrange(256)]) + message[at + 1 :]
    if how == 2:
        return message + draw.randbytes(draw.randint(1, 4))
    if how == 3:
        return message[:at] + draw.randbytes(draw.randint(1, 8)) + message[at:]
    return draw.randbytes(draw.randint(0, 64))


def messages(records: list[Record]) -> TopicMessages:
    keys, values = ([r[n] for r in records] for n in (0, 1))
    return TopicMessages(
        0, pa.array(keys, pa.binary()), pa.array(values, pa.binary()), np.arange(len(records))
    )


def check(make: Callable[[], tuple[RecordRows, list[Record]]], count: int, seed: int) -> None:
    maker, sound = make()
    draw = random.Random(seed)
    records: list[Record] = []
    hurt: list[bool] = []
    for _ in range(count):
        key, value = draw.choice(sound)
        hurt.append(draw.random() < 0.5)
        if hurt[-1]:
            if draw.random() < 0.3:
                key = damaged(draw, key)
            else:
                value = damaged(draw, value)
        records.append((key, value))
    for first in range(0, count, 1000):
        part, sick = records[first : first + 1000], hurt[first : first + 1000]
        rows = maker.make(messages(part))
        rows.validate(full=True)
        assert rows.num_rows == len(part)
        healthy = [r for r, bad in zip(part, sick, strict=True) if not bad]
        alone = maker.make(messages(healthy))
        chosen = rows.filter(pa.array([not bad for bad in sick]))
        common = [n for n in alone.schema.names if n != "mz_offset"]
        assert chosen.select(common) == alone.select(common), "a damaged record changed another"
        slots = rows.column("mz_key").to_pylist()
        errors = rows.column("mz_error").to_pylist()
        gone = rows.column("mz_tombstone").to_pylist()
        for (key, value), slot, error, deletes in zip(part, slots, errors, gone, strict=True):
            assert slot in (None, b"\x00" if key is None else b"\x01" + key)
            if key is None:
                assert slot == b"\x00"
            if value is None:
                assert deletes and error is None
            if slot is not None and not deletes:
                assert error is not None


FORMS = [avro, as_json, upsert]


@pytest.mark.parametrize("make", FORMS)
def test_damaged_records_hurt_only_themselves(make: Callable[[], tuple[RecordRows, list[Record]]]) -> None:
    check(make, 2000, 4711)


@pytest.mark.chaos
@pytest.mark.parametrize("make", FORMS)
def test_many_damaged_records_hurt_only_themselves(
    make: Callable[[], tuple[RecordRows, list[Record]]],
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    check(make, 100_000, seed)
