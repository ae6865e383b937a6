"""Log entries as bytes: what is encoded comes back, and nothing else is accepted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import DataCorrupted
from tidemill.persist.entry import CLOSED, Entry, Metadata, Operation, decode, encode
from tidemill.persist.part import Part
from tidemill.types.model import FLOAT8, INT8, TEXT, TIMESTAMP, Column, RelationDesc, array, numeric

_times = st.integers(0, 2**63 - 1)
_diffs = st.integers(-(2**63), 2**63 - 1)
_parts = st.builds(
    lambda n, rows, size, t, d, r, e: Part(
        f"parts/job-{n}/{n}.parquet",
        rows,
        size,
        min(t),
        max(t),
        min(d),
        max(d),
        min(r, rows),
        min(e, rows),
        r,
    ),
    st.integers(0, 10**9),
    st.integers(1, 10**9),
    st.integers(1, 10**12),
    st.tuples(_times, _times),
    st.tuples(_diffs, _diffs),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
)
_descs = st.lists(
    st.builds(
        Column,
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
        st.sampled_from([INT8, TEXT, FLOAT8, TIMESTAMP, numeric(12, 3), array(TEXT)]),
        st.booleans(),
    ),
    max_size=4,
    unique_by=lambda column: column.name,
).map(lambda columns: RelationDesc(tuple(columns)))
_entries = st.builds(
    Entry,
    operation=st.sampled_from(Operation),
    writer=st.uuids().map(lambda u: u.hex),
    nonce=st.uuids().map(lambda u: u.hex),
    timestamp=st.integers(0, 2**53),
    adds=st.lists(_parts, max_size=3, unique_by=lambda p: p.path).map(tuple),
    removes=st.lists(st.sampled_from(["parts/a/1.parquet", "parts/b/2.parquet"]), unique=True).map(tuple),
    upper=st.none() | st.just(CLOSED) | _times,
    since=st.none() | _times,
    epoch=st.integers(0, 2**40),
    metadata=st.none()
    | st.builds(
        Metadata,
        st.just("id"),
        _descs,
        st.integers(0, 2**50),
        st.dictionaries(st.text(max_size=5), st.text()),
    ),
)

ENTRY = Entry(
    Operation.APPEND,
    "writer",
    "nonce",
    1_700_000_000_000,
    adds=(Part("parts/j/1.parquet", 10, 999, 3, 4, -1, 2, 5, 1, 77),),
    removes=("parts/j/0.parquet",),
    upper=5,
    since=2,
    epoch=7,
)


@given(_entries, st.integers(0, 10**12))
def test_round_trip(entry: Entry, version: int) -> None:
    assert decode(encode(entry, version), version, "e") == entry


def test_golden() -> None:
    """The bytes are a format: a change of this text needs a new data format number."""
    lines = [json.loads(line) for line in encode(ENTRY, 41).splitlines()]
    assert lines[:3] == [
        {"txn": {"appId": "tidemill.upper", "version": 5}},
        {"txn": {"appId": "tidemill.since", "version": 2}},
        {"txn": {"appId": "tidemill.epoch", "version": 7}},
    ]
    assert lines[3]["add"]["path"] == "parts/j/1.parquet"
    assert json.loads(lines[3]["add"]["stats"]) == {
        "numRecords": 10,
        "minValues": {"mz_timestamp": 3, "mz_diff": -1},
        "maxValues": {"mz_timestamp": 4, "mz_diff": 2},
        "nullCount": {"mz_timestamp": 0, "mz_diff": 0, "mz_error": 9},
    }
    assert lines[4]["remove"]["path"] == "parts/j/0.parquet"
    assert lines[5]["commitInfo"]["tidemillVersion"] == 41


def test_every_truncation_is_found() -> None:
    data = encode(ENTRY, 41)
    for length in range(len(data)):
        with pytest.raises(DataCorrupted) as found:
            decode(data[:length], 41, "00041.json")
        assert "00041.json" in found.value.primary


@given(st.integers(0, len(encode(ENTRY, 41)) * 8 - 1))
def test_a_flipped_bit_is_found_or_harmless(bit: int) -> None:
    """The checksum covers all actions; in the commitInfo itself a flip may change what is for people only."""
    data = bytearray(encode(ENTRY, 41))
    data[bit // 8] ^= 1 << (bit % 8)
    try:
        found = decode(bytes(data), 41, "e")
    except DataCorrupted:
        return
    assert (found.adds, found.removes, found.upper) == (ENTRY.adds, ENTRY.removes, ENTRY.upper)
    assert (found.since, found.epoch) == (ENTRY.since, ENTRY.epoch)


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(DataCorrupted):
        decode(data, 0, "e")


def test_a_misnamed_or_foreign_entry_is_refused() -> None:
    with pytest.raises(DataCorrupted, match="version 41"):
        decode(encode(ENTRY, 41), 42, "e")
    foreign = b'{"commitInfo":{"timestamp":1,"operation":"WRITE"}}\n'
    with pytest.raises(DataCorrupted, match="another program"):
        decode(foreign, 0, "e")
    unknown = b'{"cdc":{"path":"x"}}\n' + foreign
    with pytest.raises(DataCorrupted, match="kind cdc"):
        decode(unknown, 0, "e")
