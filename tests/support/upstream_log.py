"""What Debezium writes of transactions in a PostgreSQL, made by hand: for tests that need some order of
records, or a restart of the connector, at one exact place."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from support.kafka import Kafka, Record


@dataclass
class UpstreamLog:
    """`topics`: of each table (`public.name`), and of "transaction". Records wait in `queued` until they are
    written with `flush`, in any order of the topics."""

    kafka: Kafka
    topics: dict[str, str]
    txid: int = 700
    lsn: int = 10_000
    now: int = 1_794_730_000_000
    run: str = field(default_factory=lambda: _run(1_794_700_000_000))
    queued: dict[str, list[Record]] = field(default_factory=dict[str, list[Record]])
    committed: int | None = None

    def transaction(
        self, *changes: tuple[str, Any, Any], end: bool = True, counted: int | None = None
    ) -> str:
        """One transaction: (table, row before, row after) each. Gives its id. `counted`: what END says of
        each table instead."""
        self.txid += 1
        self.tick()
        self.announce("BEGIN", None)
        of_table: dict[str, int] = {}
        for order, (table, before, after) in enumerate(changes, 1):
            of_table[table] = of_table.get(table, 0) + 1
            self.change(table, before, after, order, of_table[table])
        told = str(self.txid)
        self.lsn += 10
        if end:
            self.announce("END", {t: n if counted is None else counted for t, n in of_table.items()})
            self.committed = self.lsn
        return told

    def tick(self) -> None:
        self.now += 5
        self.lsn += 10

    def announce(self, status: str, counts: dict[str, int] | None) -> None:
        said = (
            None if counts is None else [{"data_collection": t, "event_count": n} for t, n in counts.items()]
        )
        value = {
            "status": status,
            "id": f"{self.txid}:{self.lsn}",
            "event_count": None if counts is None else sum(counts.values()),
            "data_collections": said,
            "ts_ms": self.now,
        }
        self.put("transaction", {"id": value["id"]}, value)

    def change(self, table: str, before: Any, after: Any, order: int, of_table: int) -> None:
        self.tick()
        row = before if after is None else after
        last = "null" if self.committed is None else f'"{self.committed}"'
        schema, _, name = table.partition(".")
        value = {
            "before": before,
            "after": after,
            "source": {
                "version": "3.6.2.Final",
                "connector": "postgresql",
                "name": "made",
                "ts_ms": self.now,
                "snapshot": "false",
                "db": "bank",
                "sequence": f'[{last},"{self.lsn}"]',
                "schema": schema,
                "table": name,
                "txId": self.txid,
                "lsn": self.lsn,
                "xmin": None,
            },
            "transaction": {
                "id": f"{self.txid}:{self.lsn}",
                "total_order": order,
                "data_collection_order": of_table,
            },
            "op": "c" if before is None else "d" if after is None else "u",
            "ts_ms": self.now,
        }
        self.put(table, {"id": row["id"]}, value)

    def snapshot(self, table: str, *rows: Any) -> None:
        """The first rows of a table, which no transaction has."""
        for row in rows:
            schema, _, name = table.partition(".")
            value = {
                "before": None,
                "after": row,
                "source": {
                    "version": "3.6.2.Final",
                    "connector": "postgresql",
                    "name": "made",
                    "ts_ms": self.now,
                    "snapshot": "true",
                    "db": "bank",
                    "sequence": f'[null,"{self.lsn}"]',
                    "schema": schema,
                    "table": name,
                    "txId": self.txid,
                    "lsn": self.lsn,
                    "xmin": None,
                },
                "transaction": None,
                "op": "r",
                "ts_ms": self.now,
            }
            self.put(table, {"id": row["id"]}, value)

    def put(self, topic: str, key: Any, value: Any) -> None:
        headers = [("__debezium.context.runId", self.run.encode())]
        record = Record(json.dumps(key), json.dumps(value), headers, self.now)
        self.queued.setdefault(topic, []).append(record)

    def restart(self) -> None:
        """Another run of the connector."""
        self.now += 5000
        self.run = _run(self.now)

    def flush(self, *names: str, most: int | None = None) -> None:
        """Write what is queued, of these topics only, and of each so many records."""
        for name in names or tuple(self.queued):
            records = self.queued.get(name, [])
            some, self.queued[name] = records[:most], records[most:] if most is not None else []
            self.kafka.produce(self.topics[name], some)

    def pending(self) -> Iterator[str]:
        return (name for name, records in self.queued.items() if records)


def _run(started: int) -> str:
    """A UUID of version 7."""
    return str(uuid.UUID(int=(started << 80) | (0x7 << 76) | (0x2 << 62)))
