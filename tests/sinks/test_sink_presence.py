"""What a sink may join: a place with its format and its columns, or one without messages; else it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from support.debezium import SchemaRegistry
from support.kafka import Kafka
from tidemill.cdcv2 import AvroCodec, JsonCodec, Progress, UpdateColumns
from tidemill.decode.registry import Registry
from tidemill.errors import InvalidValue, TidemillError
from tidemill.sinks.files_form import avro_block, avro_header
from tidemill.sinks.presence import Wished, check_folder, check_topic

OURS = pa.schema([pa.field("id", pa.int32(), nullable=False), ("item", pa.string())])


def said(schema: pa.Schema = OURS) -> list[UpdateColumns | Progress]:
    """A statement of nothing before anything has columns."""
    rows: list[dict[str, Any]] = [{"id": 1, "item": "pear"}]
    if schema == OTHER:
        rows = [{"id": "one", "item": "pear"}]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    return [Progress([0], [5]), UpdateColumns.of(batch, [5]), Progress([5], [9], [(5, 1)])]


def encoded(codec: AvroCodec | JsonCodec, schema: pa.Schema = OURS) -> list[bytes]:
    return [message for one in said(schema) for message in codec.encode(one)]


def json_file(schema: pa.Schema = OURS) -> bytes:
    return b"".join(m + b"\n" for m in encoded(JsonCodec(schema), schema))


def avro_bytes(schema: pa.Schema = OURS, **more: Any) -> bytes:
    codec = AvroCodec(schema, **more)
    return avro_header(codec.avro_schema) + b"".join(map(avro_block, encoded(codec, schema)))


def plain_avro(path: Path) -> bytes:
    with open(path, "wb") as file:
        fastavro.writer(
            file, {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}, [{"a": 1}]
        )
    return path.read_bytes()


AVRO, JSON = Wished("avro", AvroCodec(OURS)), Wished("json", JsonCodec(OURS))
MORE = OURS.append(pa.field("price", pa.int64()))
OTHER = pa.schema([pa.field("id", pa.string(), nullable=False), ("item", pa.string())])
NULLABLE = pa.schema([("id", pa.int32()), ("item", pa.string())])


def refused(folder: Path, wished: Wished) -> str:
    with pytest.raises(
        InvalidValue, match='folder "f" holds something else than the sink would write'
    ) as caught:
        check_folder(folder, 'folder "f"', wished)
    assert caught.value.sqlstate == "55000" and caught.value.hint
    return str(caught.value.detail)


def test_folders_that_may_be_joined(tmp_path: Path) -> None:
    for wished, data in ((AVRO, avro_bytes()), (JSON, json_file())):
        folder = tmp_path / wished.form
        check_folder(folder, "a folder", wished)
        (folder / "sub").mkdir(parents=True)
        (folder / ".hidden").write_bytes(b"nonsense")
        (folder / "empty").write_bytes(b"")
        check_folder(folder, "a folder", wished)
        for name in ("0", "sub/1"):
            (folder / name).write_bytes(data)
        check_folder(folder, "a folder", wished)
    # Statements have no columns: they fit all.
    (tmp_path / "json" / "2").write_bytes(JsonCodec(MORE).encode_progress(Progress([0], [5])))
    check_folder(tmp_path / "json", "a folder", JSON)


def test_folders_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "0"
    for wished, data, found in (
        (
            AVRO,
            json_file(),
            'File "0" is no Avro. The sink writes Avro, with the columns id integer NOT NULL, item',
        ),
        (JSON, avro_bytes(), 'File "0" is Avro. The sink writes JSON, with the columns id, item.'),
        (
            AVRO,
            avro_bytes(MORE),
            "has the columns id integer NOT NULL, item text, price bigint. The sink writes",
        ),
        (AVRO, avro_bytes(OTHER), "has the columns id text NOT NULL, item text."),
        (AVRO, avro_bytes(NULLABLE), "has the columns id integer, item text."),
        (AVRO, plain_avro(path), "the Avro schema is not that of a CDCv2 stream"),
        (AVRO, avro_bytes()[:40], "this is no Avro file: it ends too early"),
        (AVRO, b"nonsense", "is no Avro"),
        (JSON, json_file(MORE), "the data of an update has unknown fields: price"),
        (JSON, json_file(OTHER), 'not a value of column "id", which is int32: "one"'),
        (JSON, json_file(OURS.remove(1)), 'File "0", byte 38 has the columns id. The sink writes'),
        (JSON, b"nonsense\n", "expecting value at character 1"),
        (JSON, b'[{"data":{"id":1,"item":"x"},"time":[1,2],"diff":1}]', "not a number of 64 bits: [1, 2]"),
    ):
        path.write_bytes(data)
        assert found in refused(tmp_path, wished)
    # The first ones and the last ones.
    for n in range(40):
        (tmp_path / f"{n:02d}").write_bytes(json_file())
    path.unlink()
    check_folder(tmp_path, "a folder", JSON)
    (tmp_path / "39").write_bytes(avro_bytes())
    assert 'File "39" is Avro' in refused(tmp_path, JSON)


def test_topics(kafka: Kafka, registry: SchemaRegistry) -> None:
    connection = {"brokers": [kafka.bootstrap]}
    avro = Wished("avro", AvroCodec(OURS), Registry({"url": registry.url}))
    numbers = {
        name: registry.register(f"presence-{name}", AvroCodec(schema).avro_schema)
        for name, schema in (("ours", OURS), ("more", MORE))
    }
    framed = encoded(AvroCodec(OURS, schema_id=numbers["ours"]))
    another = encoded(AvroCodec(MORE, schema_id=numbers["more"]), MORE)
    unknown = encoded(AvroCodec(OURS, schema_id=987_654_321))

    def topic(*partitions: list[bytes | None]) -> str:
        name = kafka.create_topic(partitions=len(partitions))
        for n, values in enumerate(partitions):
            kafka.produce(name, [(None, value, None, None, n) for value in values])
        return name

    plain: list[bytes | None] = [*encoded(JsonCodec(OURS))]
    for wished, name in (
        (avro, topic([], [])),
        (avro, topic([*framed], [*framed])),
        (JSON, topic(plain, plain)),
    ):
        check_topic(connection, name, "a topic", wished)
    for wished, name, found in (
        (avro, topic(plain), "Partition 0, offset 0 is no Avro in Confluent's framing. The sink writes Avro"),
        (
            avro,
            topic([*framed], [*framed, *another]),
            "Partition 1, offset 3 has the columns id integer NOT NULL, item",
        ),
        (avro, topic([*unknown]), "has schema 987654321, which the registry does not know"),
        (avro, topic([None]), "Partition 0, offset 0 has no value"),
        (JSON, topic([*framed]), "Partition 0, offset 0 is Avro. The sink writes JSON"),
        (
            JSON,
            topic([*plain] * 20 + [b"[{}]"]),
            'Partition 0, offset 60 is no message of the sink\'s columns: an update has no "data"',
        ),
    ):
        with pytest.raises(TidemillError, match="holds something else than the sink would write") as caught:
            check_topic(connection, name, "a topic", wished)
        assert found in str(caught.value.detail)
