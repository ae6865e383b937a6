"""Avro by columns against fastavro record by record: random schemas and values, evolution, and broken
bytes."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from avro_world import (
    Names,
    encode,
    evolved,
    expected,
    fastavro_value,
    mutated,
    plain,
    random_record,
    random_value,
    text,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.decode.avro.decoder import AvroDecoder
from tidemill.decode.contract import Decoded
from tidemill.types.arrow import arrow_type

SEEDS = st.integers(0, 2**48)


def rows_of(
    decoder: AvroDecoder, messages: list[bytes | None]
) -> tuple[list[dict[str, Any]], list[str | None]]:
    decoded = decoder.decode(pa.array(messages, pa.binary()))
    check_form(decoder, decoded, len(messages))
    columns = [plain(column) for column in decoded.columns]
    names = [c.name for c in decoder.columns]
    rows = [{n: column[i] for n, column in zip(names, columns, strict=True)} for i in range(len(messages))]
    errors: list[str | None] = [None] * len(messages)
    if decoded.errors is not None:
        errors = decoded.errors.to_pylist()
    return rows, errors


def check_form(decoder: AvroDecoder, decoded: Decoded, count: int) -> None:
    for column, array in zip(decoder.columns, decoded.columns, strict=True):
        assert array.type == arrow_type(column.type)
        assert len(array) == count
        array.validate(full=True)


@settings(max_examples=150)
@given(SEEDS)
def test_values_are_those_of_fastavro(seed: int) -> None:
    rng = random.Random(seed)
    schema = random_record(rng, Names(), 3)
    messages = [encode(rng, schema, random_value(rng, schema)) for _ in range(rng.choice([1, 7, 40]))]
    rows, errors = rows_of(AvroDecoder(text(schema), framed=False), list(messages))
    assert errors == [None] * len(messages)
    for message, row in zip(messages, rows, strict=True):
        value, left = fastavro_value(schema, message)
        assert left == 0
        assert row == expected(schema, value)


class Writers:
    def __init__(self, *schemas: Any) -> None:
        self.schemas = schemas

    def schema_text(self, schema_id: int) -> str:
        return text(self.schemas[schema_id - 1])


@settings(max_examples=150)
@given(SEEDS)
def test_evolution_is_that_of_fastavro(seed: int) -> None:
    """A reader's schema over messages of two writers, one of them older."""
    rng = random.Random(seed)
    names = Names()
    older = random_record(rng, names, 2)
    reader = evolved(rng, older, names)
    writers = [older, reader]
    messages: list[bytes] = []
    for _ in range(20):
        which = rng.randrange(2)
        value = random_value(rng, writers[which])
        messages.append(b"\0" + (which + 1).to_bytes(4, "big") + encode(rng, writers[which], value))
    rows, errors = rows_of(AvroDecoder(text(reader), framed=True, writers=Writers(*writers)), list(messages))
    assert errors == [None] * len(messages)
    for message, row in zip(messages, rows, strict=True):
        writer = writers[message[4] - 1]
        value, _ = fastavro_value(writer, message[5:], reader)
        assert row == expected(reader, value)


def hurt(rng: random.Random, schema: Any, count: int) -> None:
    """`count` broken messages among sound ones: each gives fastavro's value or an error, whatever is read
    beside it, and the sound ones are unharmed."""
    sound = [encode(rng, schema, random_value(rng, schema)) for _ in range(20)]
    broken = [mutated(rng, rng.choice(sound), sound) for _ in range(count)]
    messages = sound + broken
    rng.shuffle(messages)
    decoder = AvroDecoder(text(schema), framed=False)
    rows, errors = rows_of(decoder, list(messages))
    for message, row, error in zip(messages, rows, errors, strict=True):
        if error is not None:
            assert error.startswith("avro deserialization error: ")
            assert message not in sound
            assert all(value is None for value in row.values())
            continue
        value, left = fastavro_value(schema, message)
        assert left == 0, "a message was not read to its end"
        assert row == expected(schema, value)
    # A message says the same in another batch.
    some = rng.sample(range(len(messages)), 5)
    for i in some:
        assert rows_of(decoder, [messages[i]]) == ([rows[i]], [errors[i]])


@settings(max_examples=40)
@given(SEEDS)
def test_broken_messages(seed: int) -> None:
    rng = random.Random(seed)
    hurt(rng, random_record(rng, Names(), 2), 50)


@pytest.mark.chaos
def test_many_broken_messages() -> None:
    for seed in range(500):
        rng = random.Random(seed)
        hurt(rng, random_record(rng, Names(), 3), 200)
