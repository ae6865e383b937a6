"""JSON by columns against the text that storage has for jsonb, one document at a time."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.decode import json as module
from tidemill.decode.json import CHUNK, MAX_DEPTH, JsonDecoder
from tidemill.errors import TidemillError
from tidemill.types.json import canonical_json

SEEDS = st.integers(0, 2**48)
NUMBERS = [
    "0",
    "-0",
    "1",
    "-1",
    "7.5",
    "-0.5",
    "0.0",
    "-0.0",
    "5.0",
    "120.50",
    "100",
    "12345678",
    "-1234567",
    "123456789",
    "1700000000000",
    "-170000000000000",
    "0.1234567890123456",
    "1e5",
    "1E-7",
    "12.5e3",
    "9" * 30,
    "1." + "3" * 30,
    "10.10",
    "-10.010",
    "0.10",
    "99999999",
    "9999.999",
    "0.000001",
]
WORDS = ["true", "false", "null"]
STRINGS = [
    '"\\\\"',
    '"a\\\\\\"b\\\\"',
    '"\\n\\t\\r\\b\\f"',
    '"\\/"',
    '"[\\"1\\",\\"2\\"]"',
    '""',
    '"a"',
    '"some text"',
    '"ö 日本 𝄞"',
    '"with \\"quotes\\""',
    '"\\u00e9\\n"',
    '"a,b:{}[]"',
    '"\x7f"',
]
# What looks like JSON and is none, or is another value than it seems.
WRONG = [
    '"\\x"',
    '"a\\"',
    '"\\\\\\"',
    "\\",
    "\\n",
    "01",
    "-",
    "+1",
    ".5",
    "5.",
    "1.2.3",
    "--1",
    "1-",
    "tru",
    "TRUE",
    "nan",
    "Infinity",
    "1e",
    "0x1",
    "- 1",
    '"open',
    '"a" "b"',
    "'a'",
    "{",
    "}",
    "[1,]",
    '{"a":1,}',
    "",
    "1 2",
    '"\t"',
    "００",
    "١",
]


def random_document(rng: random.Random, keys: list[str], depth: int, style: int) -> str:
    comma, colon = [(",", ":"), (", ", ": "), (" , ", " : "), (",\n", ":\t")][style]
    if depth == 0 or rng.random() < 0.6:
        chance = rng.random()
        if chance < 0.03:
            return rng.choice(WRONG)
        if chance < 0.45:
            return rng.choice(NUMBERS)
        return rng.choice(WORDS) if chance < 0.6 else rng.choice(STRINGS)
    if rng.random() < 0.3:
        items = [random_document(rng, keys, depth - 1, style) for _ in range(rng.randint(0, 3))]
        return "[" + comma.join(items) + "]"
    chosen = keys if rng.random() < 0.8 else rng.choices(keys, k=rng.randint(0, 4))
    members = [f'"{key}"{colon}{random_document(rng, keys, depth - 1, style)}' for key in chosen]
    return "{" + comma.join(members) + "}"


def varied(rng: random.Random, document: str) -> str:
    """The same, with other values in places; or hurt."""
    for _ in range(rng.randint(0, 3)):
        spelling = rng.choice(NUMBERS + WORDS + STRINGS)
        document = document.replace(spelling, rng.choice(NUMBERS + WORDS + STRINGS), 1)
    if rng.random() < 0.1 and document:
        at = rng.randrange(len(document))
        document = document[:at] + rng.choice(['"', ",", " ", "", "\\", "0", ".", "\n"]) + document[at + 1 :]
    return document


def check(documents: Sequence[str | None]) -> None:
    decoder = JsonDecoder()
    messages = [None if d is None else d.encode() for d in documents]
    for _ in range(2):  # the second time with what it has learned
        decoded = decoder.decode(pa.array(messages, pa.binary()))
        (values,) = decoded.columns
        values.validate(full=True)
        assert values.type == pa.string()
        errors = decoded.errors.to_pylist() if decoded.errors is not None else [None] * len(documents)
        for document, value, error in zip(documents, values.to_pylist(), errors, strict=True):
            expected: Any = None
            if document is not None:
                try:
                    expected = canonical_json(document)
                except TidemillError as failure:
                    assert error is not None
                    assert error.startswith(f"json deserialization error: {failure.primary}")
                else:
                    assert error is None, document
            assert value == expected, document


@settings(max_examples=200)
@given(SEEDS)
def test_texts_are_those_of_storage(seed: int) -> None:
    rng = random.Random(seed)
    keys = rng.sample(["a", "b", "id", "a key", "ö", "name", "after", "é", "zz", ""], rng.randint(1, 5))
    style = rng.randrange(4)
    first = [random_document(rng, keys, rng.randint(0, 3), style) for _ in range(rng.randint(1, 3))]
    check([None if rng.random() < 0.05 else varied(rng, rng.choice(first)) for _ in range(60)])


def test_every_number_at_every_place() -> None:
    for document in (
        "{}",
        '{{"a":{}}}',
        '{{"b":{},"a":"x"}}',
        "[{},{}]",
        '[{},"s",{}]',
        '{{"a":[{}, 1],"b":2}}',
    ):
        holes = document.count("{}")
        spellings = NUMBERS + WORDS + WRONG + STRINGS
        check([document.format(*[s] * holes) for s in spellings if "{" not in s] * 2)


def test_a_batch_larger_than_a_chunk_with_an_error_in_each() -> None:
    documents = [json.dumps({"n": i, "b": "x" * (i % 5)}) for i in range(2 * CHUNK + 10)]
    for at in (0, CHUNK - 1, CHUNK, 2 * CHUNK + 9):
        documents[at] = "garbage"
    check(documents)


def test_no_text_is_an_error_of_its_row() -> None:
    good = [b'{"a":1}'] * 20
    decoded = JsonDecoder().decode(pa.array([*good, b'{"a":"\xff"}', b'{"a":"\0"}', None], pa.binary()))
    assert decoded.errors is not None
    assert decoded.errors.to_pylist()[20:] == [
        'json deserialization error: invalid byte sequence for encoding "UTF8": 0xff',
        'json deserialization error: invalid byte sequence for encoding "UTF8": 0x00',
        None,
    ]
    assert decoded.columns[0].to_pylist() == ['{"a": 1}'] * 20 + [None] * 3


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_depth_is_bounded_whoever_calls(opening: str) -> None:
    closing = {"[": "]", '{"a":': "}", '[{"a":': "}]"}[opening]
    levels = len(closing)

    def document(depth: int) -> bytes:
        return (opening * (depth // levels) + "1.50" + closing * (depth // levels)).encode()

    decoded = JsonDecoder().decode(pa.array([document(MAX_DEPTH), document(MAX_DEPTH + levels)], pa.binary()))
    assert decoded.errors is not None
    assert decoded.errors.to_pylist() == [
        None,
        f"json deserialization error: objects and arrays are nested more than {MAX_DEPTH} deep",
    ]


def test_documents_that_look_alike_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debezium's and others': nested, with nulls, escapes, zeros behind the point, arrays of one length."""

    def document(i: int) -> bytes:
        after = {
            "id": i,
            "n": i / 4,
            "note": None if i % 3 else 'say "hi"\n',
            "at": [i, -i],
            "ok": i % 2 == 0,
        }
        source = {"lsn": 10**9 + i, "sequence": json.dumps([str(i), "ö"], ensure_ascii=False)}
        return json.dumps({"before": None, "after": after, "source": source}, ensure_ascii=False).encode()

    documents = [document(i) for i in range(1000)]
    expected = [canonical_json(d.decode()) for d in documents]

    def never(text: str) -> str:
        raise AssertionError(text)

    monkeypatch.setattr(module, "canonical_value", never)
    decoded = JsonDecoder().decode(pa.array(documents, pa.binary()))
    assert decoded.errors is None
    assert decoded.columns[0].to_pylist() == expected


@pytest.mark.chaos
def test_many_documents() -> None:
    for seed in range(1700):
        rng = random.Random(seed)
        keys = rng.sample(["a", "b", "id", "a key", "ö", "name", "after", "é", "zz", ""], rng.randint(1, 5))
        style = rng.randrange(4)
        first = [random_document(rng, keys, rng.randint(0, 3), style) for _ in range(rng.randint(1, 3))]
        check([varied(rng, rng.choice(first)) for _ in range(60)])
