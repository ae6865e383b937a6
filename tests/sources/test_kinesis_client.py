"""Requests of Kinesis without a server: signatures, answers as columns, and the largest numbers."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.sources.aws_request import address_of
from tidemill.sources.aws_role import frozen
from tidemill.sources.aws_signature import AwsKeys, signed_headers
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kinesis.answers import ARRIVED, DATA, KEY, SCHEMA, SEQUENCE, last_sequence, parse
from tidemill.sources.kinesis.client import SERVICE
from tidemill.sources.kinesis.places import START, Place, Places
from tidemill.sources.kinesis.shards import ancestors, is_behind
from tidemill.sources.kinesis.spool import Spool
from tidemill.sources.offsets import Offsets

# The largest sequence number that 186 bits hold, and one of the usual size.
LARGEST = str(2**186 - 1)
USUAL = "49680374391577843267894583761125163545923789478466420738"
WHEN = datetime(2026, 11, 19, 18, 30, 1, tzinfo=UTC)
KEY_ID, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize(
    ("keys", "region", "host", "operation", "body", "signature"),
    [
        (
            AwsKeys(KEY_ID, SECRET),
            "eu-west-1",
            "kinesis.eu-west-1.amazonaws.com",
            "ListShards",
            b'{"StreamName": "clicks"}',
            "ef7ca45405494c342170350f4adc4e93654717aed64c377c29ed04a4d8fa31db",
        ),
        (
            AwsKeys(KEY_ID, SECRET, "a token  with spaces"),
            "us-east-1",
            "127.0.0.1:4568",
            "GetRecords",
            '{"ShardIterator": "Aé=="}'.encode(),
            "6e5c7724279c99f19d228468530df4d3b7e83bf4f019d48e036ebea3031583a8",
        ),
        (
            AwsKeys("a", "b"),
            "cn-north-1",
            "kinesis.cn-north-1.amazonaws.com.cn",
            "GetShardIterator",
            b"",
            "a7df86ce9a1bd2785172b805162f29e665433b60bf02a52d4d5fdedcce26cbe1",
        ),
    ],
)
def test_signatures_are_those_of_botocore(
    keys: AwsKeys, region: str, host: str, operation: str, body: bytes, signature: str
) -> None:
    """Made with SigV4Auth of botocore 1.44.5."""
    headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": f"Kinesis_20131202.{operation}"}
    found = signed_headers(keys, region, SERVICE, host, headers, body, WHEN)
    assert found["Authorization"].endswith(f"Signature={signature}")
    assert found.get("X-Amz-Security-Token") == keys.token
    assert SECRET not in repr(keys)


def test_endpoints() -> None:
    assert address_of(SERVICE, {"region": "eu-west-1"}) == "https://kinesis.eu-west-1.amazonaws.com"
    assert address_of(SERVICE, {"region": "cn-north-1"}) == "https://kinesis.cn-north-1.amazonaws.com.cn"
    assert address_of(SERVICE, {"region": "x", "endpoint": "http://here:1"}) == "http://here:1"
    assert frozen({"b": 1, "a": "x"}) == (("a", "x"), ("b", "1"))


def answer(records: list[tuple[str, str, bytes, float]], **more: Any) -> bytes:
    entries = [
        {
            "SequenceNumber": number,
            "PartitionKey": key,
            "Data": b64encode(data).decode(),
            "ApproximateArrivalTimestamp": at,
            "EncryptionType": "NONE",
        }
        for number, key, data, at in records
    ]
    return json.dumps({"Records": entries, **more}).encode()


@given(
    st.lists(
        st.tuples(
            st.integers(2**180, 2**186 - 1).map(str), st.text(min_size=1, max_size=9), st.binary(max_size=40)
        ),
        max_size=20,
    ),
    st.none() | st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1),
)
def test_answers_become_columns(found: list[tuple[str, str, bytes]], following: str | None) -> None:
    records = [(number, key, data, 1795111213.687 + n) for n, (number, key, data) in enumerate(found)]
    read = parse(answer(records, NextShardIterator=following, MillisBehindLatest=7, ChildShards=None))
    assert read.records.schema == SCHEMA and (read.next, read.behind_ms) == (following, 7)
    assert read.records.column(SEQUENCE).to_pylist() == [number for number, _, _ in found]
    assert read.records.column(KEY).to_pylist() == [key.encode() for _, key, _ in found]
    assert read.records.column(DATA).to_pylist() == [data for _, _, data in found]
    assert read.records.column(ARRIVED).to_pylist() == [1795111213687 + 1000 * n for n in range(len(found))]


def test_answers_that_are_none_are_errors() -> None:
    for raw in (b"", b"<html>", b"[]", b'{"Records": 5}'):
        with pytest.raises(UpstreamError, match="an answer of Kinesis cannot be read"):
            parse(raw)


def test_numbers_are_compared_as_integers() -> None:
    assert is_behind(LARGEST, USUAL) and not is_behind(USUAL, LARGEST) and not is_behind(USUAL, USUAL)
    # As text, a shorter one would be behind.
    assert is_behind(USUAL, "9223372036854775807")


def test_places_and_the_spool_have_the_largest_numbers() -> None:
    places = Places()
    places.note("a", 5, USUAL)
    places.recall({"a": [(9, LARGEST)]})
    assert places.at("a", 9) == LARGEST and places.at("a", 8) is None
    assert places.before("a", 8) == Place(5, USUAL) and places.before("a", 4) == START
    assert places.before("b", 4) == START
    places.forget(Offsets({"a": 8}))
    assert places.before("a", 8) == Place(5, USUAL)
    places.forget(Offsets({"a": 9}))
    assert places.before("a", 8) == START and places.before("a", 9) == Place(9, LARGEST)
    spool = Spool()
    try:
        numbers = [str(2**186 - 4 + n) for n in range(4)]
        lot = parse(answer([(number, "k", b"x", 1.0) for number in numbers]))
        spool.add("a", 0, lot.records.slice(0, 2))
        spool.add("a", 2, lot.records.slice(2, 2))
        assert [spool.sequence("a", count) for count in (1, 2, 3, 4, 5)] == [*numbers, None]
        found = spool.files("a", 1, 3)
        assert found is not None and [(file.first, file.end) for file in found] == [(0, 2), (2, 4)]
        assert spool.files("a", 1, 5) is None and spool.files("b", 0, 1) is None
        assert spool.behind("a", 2)[1] == 1000 and spool.behind("a", 4) == (0, None)
        spool.discard(Offsets({"a": 3}))
        assert spool.files("a", 1, 3) is None and spool.files("a", 3, 4) is not None
        assert last_sequence(lot.records) == LARGEST
    finally:
        spool.close()


def test_ancestors() -> None:
    parents = {"d": ("b", "c"), "b": ("a",), "c": ("a",), "a": ("gone",)}
    assert ancestors("d", parents) == {"b", "c", "a", "gone"}
    assert ancestors("x", parents) == set()
    assert isinstance(SCHEMA, pa.Schema)
