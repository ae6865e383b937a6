"""What Debezium wrote of tables with the columns `id` and `balance`, by the topics alone: the rows that they
add up to, and the committed changes that they lack.

A proof over a real Debezium that ends with other rows than the upstream asks it whose fault that is. Rows
that are not those of the topics are ours; a committed change that is in no topic is Debezium's.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import fastavro

from support.debezium import SchemaRegistry
from support.kafka import Kafka

Row = tuple[str, int, int]  # table, id, balance


@dataclass
class Topics:
    """`changes`: by their positions in PostgreSQL's log, so that what was repeated counts once."""

    snapshot: set[Row] = field(default_factory=set[Row])
    changes: dict[int, tuple[int, Row | None, Row | None]] = field(
        default_factory=dict[int, tuple[int, Row | None, Row | None]]
    )

    @staticmethod
    def read(kafka: Kafka, registry: SchemaRegistry, prefix: str, tables: Iterable[str]) -> Topics:
        """All that a connector wrote of its tables. The tables have one partition, and no change shares its
        position with another."""
        found = Topics()
        decode = _decoder(registry)
        for table in tables:
            for message in kafka.read(f"{prefix}.public.{table}"):
                value = message.value()
                if value is not None:
                    found._add(table, decode(value))
        return found

    def _add(self, table: str, change: Mapping[str, Any]) -> None:
        before, after = (
            None if row is None else (table, int(row["id"]), int(row["balance"]))
            for row in (change["before"], change["after"])
        )
        if change["op"] == "r":
            assert after is not None
            self.snapshot.add(after)
        else:
            source = change["source"]
            self.changes[int(source["lsn"])] = int(source["txId"]), before, after

    def rows(self) -> Counter[Row]:
        """The rows that the topics add up to. One may be there less often than not at all."""
        found = Counter(self.snapshot)
        for _, before, after in self.changes.values():
            if before is not None:
                found[before] -= 1
            if after is not None:
                found[after] += 1
        return Counter({row: n for row, n in found.items() if n})

    def lacks(self, committed: Mapping[int, Iterable[Row]]) -> dict[int, list[Row]]:
        """By transaction the rows that it left behind somewhere in its course, of which no topic tells."""
        written = {(transaction, after) for transaction, _, after in self.changes.values()}
        lacking = {
            transaction: [row for row in rows if (transaction, row) not in written]
            for transaction, rows in committed.items()
        }
        return {transaction: rows for transaction, rows in lacking.items() if rows}


def _decoder(registry: SchemaRegistry) -> Callable[[bytes], Any]:
    """Of JSON without schemas, and of Avro behind the id of its schema."""
    schemas: dict[int, Any] = {}

    def decode(value: bytes) -> Any:
        if value[:1] != b"\0":
            return json.loads(value)
        number = int.from_bytes(value[1:5], "big")
        if number not in schemas:
            text = registry.request("GET", f"/schemas/ids/{number}")["schema"]
            schemas[number] = fastavro.parse_schema(json.loads(text))
        return fastavro.schemaless_reader(io.BytesIO(value[5:]), schemas[number], None)

    return decode
