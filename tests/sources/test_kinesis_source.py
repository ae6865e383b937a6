"""The records of a stream as rows, over kinesis-local: the contract, resharding, and what goes wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from sources.conformance import CHECKS, Subject
from support.kinesis import Kinesis
from tidemill.sources.contract import UpstreamSource
from tidemill.sources.definition import open_source
from tidemill.sources.offsets import Offsets

TEXT: dict[str, Any] = {"format": "text"}
WAIT_SECONDS = 60.0


def definition(kinesis: Kinesis, stream: str, **more: Any) -> dict[str, Any]:
    output = {"name": "o", "key": more.pop("key", None), "value": more.pop("value", TEXT)}
    output["include"] = more.pop("include", [])
    output["envelope"] = more.pop("envelope", {"kind": "none"})
    found = {"kind": "kinesis", "connection": kinesis.options, "stream": stream, "start_ms": None}
    return {**found, "outputs": [output], "started": 0, **more}


class Opened:
    """A source that is closed at the end of a test, driven as a machine does."""

    def __init__(self, source: UpstreamSource) -> None:
        self.source = source
        self.at = source.start

    def until(self, done: Callable[[Offsets], bool]) -> Offsets:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            found = self.source.frontier(0)
            if done(found):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.02)

    def received(self, records: int) -> Offsets:
        return self.until(lambda found: found.records_since(Offsets()) >= records)

    def rows(self, lower: Offsets, upper: Offsets, ways: int = 2) -> list[tuple[Any, ...]]:
        self.source.stamps(lower, upper)
        reader, pieces = self.source.plan(lower, upper, ways, frozenset({0}))
        found: list[tuple[Any, ...]] = []
        for piece in pieces:
            for batch in reader.read(piece):
                found += zip(*(column.to_pylist() for column in batch.rows.columns), strict=True)
        return found


@pytest.fixture(scope="module")
def subject(kinesis: Kinesis) -> Subject:
    stream = kinesis.stream(2)
    kinesis.put(stream, [(f"k{n}", b"value %d" % n) for n in range(12)])
    include = [{"what": what, "as": None} for what in ("key", "shard_id", "sequence_number", "timestamp")]
    made = definition(kinesis, stream, key=TEXT, include=include)
    return Subject("kinesis", lambda: open_source(made), (0, 1), remote=True, examples=4)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_a_stream_conforms(check: Callable[[Subject], None], subject: Subject) -> None:
    check(subject)
