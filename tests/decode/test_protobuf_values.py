"""Protobuf by columns against Protobuf's own parser: random messages, lawful oddities, and broken bytes."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from avro_world import mutated, plain
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from proto_world import expected, files, fill, in_pieces, message_class

from tidemill.decode.protobuf import ProtobufDecoder
from tidemill.types.arrow import arrow_type

SEEDS = st.integers(0, 2**48)
PREFIX = "protobuf deserialization error: "


def rows_of(
    decoder: ProtobufDecoder, messages: list[bytes | None]
) -> tuple[list[dict[str, Any]], list[str | None]]:
    decoded = decoder.decode(pa.array(messages, pa.binary()))
    columns: list[list[Any]] = []
    for column, array in zip(decoder.columns, decoded.columns, strict=True):
        assert array.type == arrow_type(column.type)
        array.validate(full=True)
        columns.append(plain(array))
    names = [c.name for c in decoder.columns]
    rows = [{n: column[i] for n, column in zip(names, columns, strict=True)} for i in range(len(messages))]
    errors: list[str | None] = [None] * len(messages)
    if decoded.errors is not None:
        errors = decoded.errors.to_pylist()
    return rows, errors


def same(row: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """`Struct` is compared only as far as being there: its text is `types.json`'s affair."""
    if wanted.get("extra") == "json":
        assert row["extra"].startswith('{"')
        row = {**row, "extra": "json"}
    return row == wanted


NAMES = st.sampled_from(["shop.Order", "old.Old"])


@settings(max_examples=60)
@given(SEEDS, NAMES)
def test_values_are_those_of_the_parser(seed: int, name: str) -> None:
    rng = random.Random(seed)
    messages: list[bytes] = []
    for _ in range(30):
        message = fill(rng, message_class(name)())
        messages.append(in_pieces(rng, message) if rng.random() < 0.3 else message.SerializeToString())
    # Said twice, messages merge: singular fields by the last, repeated ones one behind the other.
    messages += [messages[0] + messages[1], messages[2] + messages[2]]
    rows, errors = rows_of(ProtobufDecoder(files(name), f".{name}", framed=False), list(messages))
    for message, row, error in zip(messages, rows, errors, strict=True):
        assert error is None
        assert same(row, expected(message_class(name).FromString(message)))


def hurt(rng: random.Random, name: str, count: int) -> None:
    sound = [fill(rng, message_class(name)()).SerializeToString() for _ in range(20)]
    messages = sound + [mutated(rng, rng.choice(sound), sound) for _ in range(count)]
    rng.shuffle(messages)
    decoder = ProtobufDecoder(files(name), name, framed=False)
    rows, errors = rows_of(decoder, list(messages))
    for message, row, error in zip(messages, rows, errors, strict=True):
        if error is not None:
            assert error.startswith(PREFIX)
            assert message not in sound
            assert all(value is None for value in row.values())
            continue
        try:
            parsed = message_class(name).FromString(message)
        except DecodeError:
            pytest.fail(f"{message!r} is no message")
        assert same(row, expected(parsed)), message
    for i in rng.sample(range(len(messages)), 5):
        assert rows_of(decoder, [messages[i]]) == ([rows[i]], [errors[i]])


@settings(max_examples=40)
@given(SEEDS, NAMES)
def test_broken_messages(seed: int, name: str) -> None:
    hurt(random.Random(seed), name, 50)


@pytest.mark.chaos
def test_many_broken_messages() -> None:
    for seed in range(500):
        hurt(random.Random(seed), "shop.Order" if seed % 3 else "old.Old", 200)
