"""TEXT, BYTES, CSV and REGEX: what a message gives, what is wrong with it."""

from __future__ import annotations

import csv
import io
import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.decode.contract import Decoder
from tidemill.decode.csv import CsvMessageDecoder, split
from tidemill.decode.reader import Unreadable
from tidemill.decode.regex import PatternError, RegexDecoder
from tidemill.decode.text import BytesDecoder, TextMessageDecoder
from tidemill.types.arrow import arrow_type


def rows(decoder: Decoder, messages: list[bytes | None]) -> list[str | tuple[object, ...]]:
    """Per message its error or its values."""
    decoded = decoder.decode(pa.array(messages, pa.binary()))
    for column, array in zip(decoder.columns, decoded.columns, strict=True):
        assert array.type == arrow_type(column.type)
        array.validate(full=True)
    errors = decoded.errors.to_pylist() if decoded.errors is not None else [None] * len(messages)
    values = list(zip(*(array.to_pylist() for array in decoded.columns), strict=True))
    assert all(set(v) == {None} for v, e in zip(values, errors, strict=True) if e is not None)
    return [error or value for error, value in zip(errors, values, strict=True)]


def test_text() -> None:
    assert rows(TextMessageDecoder(), [b"a", b"", None, "日本".encode(), b"\xc3(", b"a\0b", b"\xe6\x97"]) == [
        ("a",),
        ("",),
        (None,),
        ("日本",),
        'text deserialization error: invalid byte sequence for encoding "UTF8": 0xc3 0x28',
        'text deserialization error: invalid byte sequence for encoding "UTF8": 0x00',
        'text deserialization error: invalid byte sequence for encoding "UTF8": 0xe6 0x97',
    ]
    assert [c.name for c in TextMessageDecoder.columns] == ["text"]


def test_bytes() -> None:
    assert rows(BytesDecoder(), [b"\0\xff", b"", None]) == [(b"\0\xff",), (b"",), (None,)]


CSV = "csv deserialization error: "


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (b"a,b", ("a", "b")),
        (b",", ("", "")),
        (b"a,b\n", ("a", "b")),
        (b"a,b\r\n", ("a", "b")),
        (b'"a","b"', ("a", "b")),
        (b'"a,1",b', ("a,1", "b")),
        (b'"a\nb","c"\n', ("a\nb", "c")),
        (b'"say ""hi""",b', ('say "hi"', "b")),
        (b'a"b,c"d', ('a"b', 'c"d')),
        (b'"",""', ("", "")),
        (b'a""b,c', ('a""b', "c")),
        (None, (None, None)),
        (b"a", f"{CSV}expected 2 columns, got 1"),
        (b"", f"{CSV}expected 2 columns, got 1"),
        (b"a,b,c", f"{CSV}expected 2 columns, got 3"),
        (b"a,b\nc,d", f"{CSV}more than one record in the message"),
        (b"a,b\n\n", f"{CSV}more than one record in the message"),
        (b'"a,b', f"{CSV}a quoted field has no end"),
        (b'"a"b,c', f"{CSV}'b' behind a quoted field"),
        (b"\xff,b", f'{CSV}invalid byte sequence for encoding "UTF8": 0xff'),
    ],
)
def test_csv(message: bytes | None, found: object) -> None:
    neighbours: list[bytes | None] = [b"x,y", message, b'"q","r"', None, b"z,"]
    decoder = CsvMessageDecoder(["one", "two"])
    assert rows(decoder, neighbours) == [("x", "y"), found, ("q", "r"), (None, None), ("z", "")]
    assert rows(decoder, [message]) == [found]


@settings(max_examples=150)
@given(st.integers(0, 2**48))
def test_csv_is_that_of_python(seed: int) -> None:
    rng = random.Random(seed)
    delimiter = rng.choice(",;|\t")
    width = rng.randint(1, 5)
    written: list[bytes | None] = []
    expected: list[object] = []
    for _ in range(40):
        fields = ["".join(rng.choices('ab",;|\t\n ö', k=rng.choice([0, 1, 3, 9]))) for _ in range(width)]
        out = io.StringIO()
        quoting = csv.QUOTE_ALL if rng.random() < 0.5 else csv.QUOTE_MINIMAL
        csv.writer(out, delimiter=delimiter, quoting=quoting).writerow(fields)
        record = out.getvalue().removesuffix("\r\n")
        written.append((record + rng.choice(["", "\n", "\r\n"])).encode())
        expected.append(tuple(fields))
    assert rows(CsvMessageDecoder([f"c{i}" for i in range(width)], delimiter), written) == expected


def soup(rng: random.Random, count: int) -> None:
    """Characters that mean something, in any order: by columns as one by one."""
    width = rng.randint(1, 4)
    decoder = CsvMessageDecoder([f"c{i}" for i in range(width)])
    messages: list[bytes | None] = [
        "".join(rng.choices('a"",,\n\rö', k=rng.choice([0, 1, 2, 4, 9]))).encode() for _ in range(count)
    ]
    found = rows(decoder, messages)
    for message, row in zip(messages, found, strict=True):
        assert message is not None
        try:
            fields = split(message.decode().removesuffix("\n").removesuffix("\r"), ",")
        except Unreadable as error:
            assert row == f"{CSV}{error}"
        else:
            told = f"{CSV}expected {width} columns, got {len(fields)}"
            assert row == (tuple(fields) if len(fields) == width else told)
    assert rows(decoder, messages[:1]) == found[:1]


@settings(max_examples=60)
@given(st.integers(0, 2**48))
def test_csv_soup(seed: int) -> None:
    soup(random.Random(seed), 50)


@pytest.mark.chaos
def test_much_csv_soup() -> None:
    for seed in range(100):
        soup(random.Random(seed), 1000)


def test_regex_groups_are_columns() -> None:
    decoder = RegexDecoder(r"^(?P<method>[A-Z]+) (\S+)(?: (?P<rest>.*))?$")
    assert [c.name for c in decoder.columns] == ["method", "column2", "rest"]
    assert rows(decoder, [b"GET /a b c", b"PUT /x", b"get", None, b"\xff"]) == [
        ("GET", "/a", "b c"),
        ("PUT", "/x", None),
        "regex deserialization error: message does not match",
        (None, None, None),
        'regex deserialization error: invalid byte sequence for encoding "UTF8": 0xff',
    ]


def test_regex_in_linear_time() -> None:
    """What takes a backtracking engine longer than anybody waits."""
    assert rows(RegexDecoder(r"^((a+)+)$"), [b"a" * 5000 + b"b"]) == [
        "regex deserialization error: message does not match"
    ]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("(a", "invalid regular expression"),
        ("abc", "regular expression has no groups"),
        ("(a)(?P<column1>b)", 'regular expression has two groups called "column1"'),
        (r"(a)\1", "invalid regular expression"),
    ],
)
def test_regex_refused(pattern: str, text: str) -> None:
    with pytest.raises(PatternError) as refused:
        RegexDecoder(pattern)
    assert refused.value.primary == text
