"""The rows of the generators against a model that makes one event at a time out of plain integers, and
against vectors that never change: what an event gives is kept in people's shards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.sources.contract import SourcePiece
from tidemill.sources.definition import Definition, open_source
from tidemill.sources.generators.auction_words import ITEMS, ORGANIZATIONS, USERS
from tidemill.sources.generators.definition import normalise
from tidemill.sources.generators.draws import draws, stream

STARTED = 1_760_000_000_000
MASK = 2**64 - 1

# Output, row, and what the contract adds.
Row = tuple[int, tuple[Any, ...]]


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def nth(state: int, n: int) -> int:
    return mix((state + (n + 1) * 0x9E3779B97F4A7C15) & MASK)


def begin(seed: int, quantity: int) -> int:
    return nth(nth(seed, 0) + quantity, 0)


def counter(d: Definition, event: int) -> list[Row]:
    cardinality = d.get("max_cardinality")
    if cardinality is None:
        return [(0, (event + 1,))]
    gone = event + 1 - cardinality
    return [(0, (event + 1, 1))] + ([(0, (gone, -1))] if gone > 0 else [])


def key_value(d: Definition, event: int) -> list[Row]:
    seed, keys, size = d["seed"], d["keys"], d["value_size"]
    snapshot = event < d["snapshot_rounds"] * keys
    key = (event if snapshot else nth(begin(seed, 1), event)) % keys
    words = -(-size // 8)
    drawn = [nth(begin(seed, 2), event * words + n) for n in range(words)]
    value = b"".join(w.to_bytes(8, "little") for w in drawn)[:size]
    deleted = not snapshot and nth(begin(seed, 3), event) % 1_000_000 < d["tombstones"]
    row: list[Any] = [key, b"" if deleted else value]
    if "partitions" in d:
        row.insert(0, key % d["partitions"])
    return [(0, (*row, event, deleted) if d["envelope"] == "UPSERT" else tuple(row))]


def auction(d: Definition, event: int) -> list[Row]:
    def drawn(quantity: int, number: int, bound: int) -> int:
        return nth(begin(d["seed"], quantity), number) % bound

    def time(at: int) -> int:
        return d["started"] * 1000 + at * d["tick_interval"]

    if event == 0:
        fixed: list[Row] = [(0, (n + 1, name)) for n, name in enumerate(ORGANIZATIONS)]
        fixed += [(1, (n + 1, n % 10 + 1, name)) for n, name in enumerate(USERS)]
        return fixed + [(2, (n + 1, n + 1, drawn(8, n, 100_000))) for n in range(10)]
    cycle, place = divmod(event - 1, 10)
    if place == 0:
        end = time(event + 200 + drawn(4, cycle, 100))
        return [(3, (cycle + 1, drawn(1, cycle, 100) + 1, ITEMS[drawn(2, cycle, 100)], end))]
    chosen = cycle - drawn(5, event, min(20, cycle + 1))
    buyer = (drawn(1, chosen, 100) + drawn(6, event, 99) + 1) % 100
    percent = 100 + event - (10 * chosen + 1) + drawn(7, event, 20)
    amount = (drawn(3, chosen, 990) + 10) * percent // 100
    return [(4, (cycle * 9 + place, buyer + 1, chosen + 1, amount, time(event)))]


def plain(column: pa.Array) -> list[Any]:
    """Decimals as integers, times as microseconds."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).to_pylist()
    values = column.to_pylist()
    return [int(v) for v in values] if pa.types.is_decimal(column.type) else values


def read(d: Definition, lower: int, upper: int) -> list[Row]:
    """Sorted by output, which keeps the order within one."""
    rows: list[Row] = []
    for batch in open_source(d).reader().read(SourcePiece(None, lower, upper)):
        columns = [plain(column) for column in batch.rows.columns]
        rows += [(batch.output, row) for row in zip(*columns, strict=True)]
    return sorted(rows, key=lambda row: row[0])


DEFINITIONS: list[tuple[Callable[[Definition, int], list[Row]], Definition]] = [
    (counter, normalise("COUNTER", {}, STARTED)),
    (counter, normalise("COUNTER", {"MAX CARDINALITY": 30}, STARTED)),
    (key_value, normalise("KEY VALUE", {"KEYS": 10}, STARTED)),
    (key_value, normalise("KEY VALUE", {"KEYS": 2**62, "ENVELOPE": "NONE", "VALUE SIZE": 3}, STARTED)),
    (
        key_value,
        normalise(
            "KEY VALUE",
            {
                "KEYS": 20,
                "SNAPSHOT ROUNDS": 2,
                "TOMBSTONES": "12.5%",
                "PARTITIONS": 3,
                "SEED": 2**63 - 1,
                "VALUE SIZE": 21,
            },
            STARTED,
        ),
    ),
    (auction, normalise("AUCTION", {}, STARTED)),
    (auction, normalise("AUCTION", {"SEED": 7, "TICK INTERVAL": 3}, STARTED)),
]


@pytest.mark.parametrize(("model", "definition"), DEFINITIONS)
@settings(max_examples=40, deadline=None)
@given(first=st.integers(0, 300) | st.integers(0, 2**40), events=st.integers(0, 120))
def test_rows_are_those_of_the_model(
    model: Callable[[Definition, int], list[Row]], definition: Definition, first: int, events: int
) -> None:
    wanted = [row for event in range(first, first + events) for row in model(definition, event)]
    assert read(definition, first, first + events) == sorted(wanted, key=lambda row: row[0])


def test_draws_are_those_of_splitmix64() -> None:
    # The published vector for the state 1234567.
    wanted = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert draws(1234567, np.arange(5, dtype=np.uint64)).tolist() == wanted
    assert stream(5, 3) == begin(5, 3)


def digest(d: Definition, lower: int, upper: int) -> str:
    rows = [
        [output, *(v.hex() if isinstance(v, bytes) else v for v in row)]
        for output, row in read(d, lower, upper)
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


# Of the events from 0 to 2,000, and of 500 events from 10^9 on; one for each of DEFINITIONS.
GOLDEN = [
    ("6ebf9d0da88e3c5d", "dfb1961a93f07104"),
    ("b1854adbc5c3574d", "1dba17d79c3b6c55"),
    ("5a114d4f21878692", "00b510439a27e039"),
    ("3b58b42329a48545", "e697ec89a2f5c837"),
    ("40c97ab5e4b74fad", "42ab442bdbe08d17"),
    ("b5b12c475b6f3024", "76b02180164d7377"),
    ("7b815543e6c96739", "b5e9b54a82d0fdfa"),
]


@pytest.mark.parametrize("number", range(len(DEFINITIONS)))
def test_rows_never_change(number: int) -> None:
    definition = DEFINITIONS[number][1]
    assert (digest(definition, 0, 2_000), digest(definition, 10**9, 10**9 + 500)) == GOLDEN[number]


def test_rows_of_the_first_events() -> None:
    """Some of them written out, for the reader."""
    assert read(DEFINITIONS[1][1], 29, 32) == [
        (0, (30, 1)),
        (0, (31, 1)),
        (0, (1, -1)),
        (0, (32, 1)),
        (0, (2, -1)),
    ]
    # partition, key, value, mz_offset, mz_tombstone: the last two of the snapshot, then keys at random.
    assert read(DEFINITIONS[4][1], 38, 41) == [
        (0, (0, 18, bytes.fromhex("da30179d3c8bbcfc6b9b7b964982fd6f7b81b270f0"), 38, False)),
        (0, (1, 19, bytes.fromhex("314c82359fd5c97c9be213d83e74ad998352d445ce"), 39, False)),
        (0, (1, 16, bytes.fromhex("bd611563674d3fdc49aede1541bd17ea27847bdaab"), 40, False)),
    ]
    assert read(DEFINITIONS[5][1], 9, 13) == [
        (3, (2, 87, "Carved Barometer", 1760000021900000)),
        (4, (8, 30, 1, 552, 1760000000900000)),
        (4, (9, 18, 1, 519, 1760000001000000)),
        (4, (10, 74, 2, 491, 1760000001200000)),
    ]
