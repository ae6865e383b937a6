"""Keyed sinks of a real server into a real broker, exactly once: Avro, JSON, Debezium; and their encoders by
themselves. Parts are chosen with `--only`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial

import numpy as np
import pyarrow as pa

from bench.report import Figure
from bench.sink import to_kafka
from tidemill.sinks.keyed_changes import KeyedChanges
from tidemill.sinks.rows.messages import Origin, RowMessages
from tidemill.types.model import INT8, TEXT, Column

COLUMNS = [Column("id", INT8, nullable=False), Column("name", TEXT), Column("amount", INT8)]
ENCODED = 1_000_000
PIECE = 65_536


def _encoders(*, quick: bool) -> list[Figure]:
    """From rows to keys and values as bytes, the check of the keys included, on one core."""
    figures: list[Figure] = []
    for form, ids in (("avro", (1, 2)), ("json", None)):
        for envelope in ("upsert", "debezium"):
            messages = RowMessages(COLUMNS, [0], form, envelope, Origin("s", "d", "public", "big"), ids)
            changes = KeyedChanges(messages.keys)
            rows, used, size = PIECE if quick else ENCODED, 0.0, 0
            for first in range(0, rows, PIECE):
                numbers = np.arange(first, min(rows, first + PIECE))
                table = pa.table(
                    {
                        "id": numbers,
                        "name": pa.array([f"~name {n}" for n in numbers.tolist()]),
                        "amount": numbers * 7,
                        "mz_timestamp": np.zeros(len(numbers), np.int64),
                        "mz_diff": np.ones(len(numbers), np.int64),
                    }
                )
                began = time.process_time()
                found, keys = changes.of(table, initial=True)
                values = messages.values(found)
                lists = keys.to_pylist(), values.to_pylist()
                used += time.process_time() - began
                size += sum(map(len, lists[0])) + sum(map(len, lists[1]))
            what = f"{form} {envelope}, check and encode, {size / rows:.0f} bytes each, rows/s of a core"
            figures.append(Figure(what, f"{rows / used:,.0f}", ""))
    return figures


def _sink(kind: str, *, quick: bool) -> list[Figure]:
    return to_kafka(200_000 if quick else 10_000_000, kind)


PARTS: dict[str, Callable[..., list[Figure]]] = {
    "encoders": _encoders,
    "avro": partial(_sink, "Avro, UPSERT in a transaction"),
    "json": partial(_sink, "JSON, UPSERT in a transaction"),
    "debezium": partial(_sink, "Avro, DEBEZIUM in a transaction"),
}


def measure(*, quick: bool = False, only: Collection[str] = ()) -> list[Figure]:
    unknown = set(only) - set(PARTS)
    if unknown:
        raise SystemExit(f"no part named {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return [
        figure for name, part in PARTS.items() if not only or name in only for figure in part(quick=quick)
    ]
