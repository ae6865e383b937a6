"""The rows of the txns shard survive the way there and back, and are retracted as they were spelt."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tidemill.errors import DataCorrupted
from tidemill.persist.part import Part
from tidemill.persist.txns.record import Unapplied, rows, unapplied

PART = Part(
    path="parts/txns-e1/x.parquet",
    rows=3,
    bytes=100,
    crc=5,
    min_time=7,
    max_time=7,
    min_diff=-1,
    max_diff=1,
    retractions=1,
    errors=0,
)


def snapshot(texts: list[str], diffs: list[int]) -> pa.Table:
    return pa.table({"shard": ["s"] * len(texts), "part": texts, "mz_diff": pa.array(diffs, pa.int64())})


def test_there_and_back() -> None:
    written = rows([Unapplied.of("s", PART)], [Unapplied.of("t", PART)], 9)
    assert written.column("mz_diff").to_pylist() == [1, -1]
    assert written.column("mz_timestamp").to_pylist() == [9, 9]
    assert unapplied(written.slice(0, 1)) == [Unapplied.of("s", PART)]


def test_another_spelling_is_retracted_as_it_is() -> None:
    body = json.loads(Unapplied.of("s", PART).text)
    other = json.dumps(dict(reversed(body.items())), indent=1)
    (found,) = unapplied(snapshot([other], [1]))
    assert found.part == PART
    assert rows([], [found], 9).column("part").to_pylist() == [other]


@pytest.mark.parametrize(
    ("text", "diff"),
    [
        ("", 1),
        ("{}", 1),
        ('{"path": 1', 1),
        (Unapplied.of("s", PART).text, 2),
        (Unapplied.of("s", PART).text, -1),
    ],
)
def test_what_cannot_be_read_is_said(text: str, diff: int) -> None:
    with pytest.raises(DataCorrupted, match="txns shard"):
        unapplied(snapshot([text], [diff]))
