"""A sink of a relation that got columns: its schema reads what was written with the one before, and the other
way round, which is what a registry asks for."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from tidemill.sinks.rows.messages import schemas
from tidemill.types.model import INT4, INT8, TEXT, Column, Kind, SqlType

BEFORE = (Column("id", INT8, nullable=False), Column("name", TEXT))
AFTER = (*BEFORE, Column("n", INT4), Column("price", SqlType(Kind.NUMERIC, precision=12, scale=2)))
ROW = {"id": 1, "name": "one"}


def converted(value: Any, writer: str, reader: str) -> Any:
    buffer = io.BytesIO()
    schema = fastavro.parse_schema(json.loads(writer))
    fastavro.schemaless_writer(buffer, schema, value)
    buffer.seek(0)
    return fastavro.schemaless_reader(buffer, schema, fastavro.parse_schema(json.loads(reader)))


@pytest.mark.parametrize("envelope", ["upsert", "debezium"])
def test_a_column_more(envelope: str) -> None:
    (old_key, old), (new_key, new) = (schemas(columns, [0], envelope) for columns in (BEFORE, AFTER))
    assert old_key == new_key
    more = {**ROW, "n": None, "price": None}

    def message(row: dict[str, Any]) -> dict[str, Any]:
        if envelope == "upsert":
            return row
        source = dict.fromkeys(names(old), "") | {"ts_ms": 1}
        return {"before": None, "after": row, "source": source, "op": "c", "ts_ms": 1}

    assert converted(message(ROW), old, new) == message(more)
    assert converted(message({**ROW, "n": 5, "price": None}), new, old) == message(ROW)


def names(schema: str) -> list[str]:
    (source,) = [f for f in json.loads(schema)["fields"] if f["name"] == "source"]
    return [f["name"] for f in source["type"]["fields"] if f["type"] == "string"]
