"""Large results by a portal with row limits: all rows come in order whatever the limits, and the next ones
are encoded while the client is busy with the last, if it was ever seen to come back."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Sequence

import pgframes as f
import pyarrow as pa
import pytest
from tablets import Tablets, numbers
from wireserver import Raw, Served

from tidemill.server import limits
from tidemill.server.pgwire.rows import RowEncoder
from tidemill.types import model
from tidemill.types.model import Column

ROWS = 50_000
PIECE = limits.CHUNK_ROWS


@pytest.fixture
def served() -> Iterator[Served]:
    engine = Tablets()
    batches = [numbers(0, 40_000), numbers(40_000, 40_003), numbers(40_003, 49_000), numbers(49_000, ROWS)]
    engine.tables["t"] = ((Column("n", model.INT8),), batches)
    with Served(engine) as served:
        yield served


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each piece that was encoded."""
    seen: list[int] = []
    encode = RowEncoder.messages

    def messages(self: RowEncoder, batch: pa.RecordBatch) -> pa.Array:
        seen.append(batch.num_rows)
        return encode(self, batch)

    monkeypatch.setattr(RowEncoder, "messages", messages)
    return seen


def opened(c: Raw) -> None:
    c.ask(f.query("begin"))
    c.ask(f.parse("select * from t"), f.bind(portal="p", result_formats=[1]), f.SYNC)


def fetched(c: Raw, max_rows: int) -> list[int]:
    got = c.ask(f.execute("p", max_rows), f.SYNC)
    return [struct.unpack("!q", body[6:])[0] for tag, body in got if tag == "D"]


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


@pytest.mark.parametrize(
    "steps",
    [[0], [PIECE], [10_000], [9_999, 1, 0], [1, 1, 20_000], [16, 40_001], [40_000, 2, 1, 5_000], [49_999]],
)
def test_rows_come_in_order_whatever_the_limits(served: Served, steps: Sequence[int]) -> None:
    with served.raw() as c:
        opened(c)
        rows: list[int] = []
        at = 0
        while len(rows) < ROWS:
            limit = steps[at % len(steps)]
            got = fetched(c, limit)
            assert len(got) == min(limit or ROWS, ROWS - len(rows))
            rows += got
            at += 1
        assert rows == list(range(ROWS))
        assert fetched(c, 5) == []


def test_who_wants_one_row_has_one_encoded(served: Served, encoded: list[int]) -> None:
    with served.raw() as c:
        opened(c)
        assert fetched(c, 1) == [0]
        assert encoded == [1]


def test_the_next_rows_are_encoded_before_they_are_asked_for(served: Served, encoded: list[int]) -> None:
    with served.raw() as c:
        opened(c)
        assert fetched(c, 10) == list(range(10))
        assert fetched(c, 10) == list(range(10, 20))
        # All of this piece is not needed yet, and so there is no other.
        assert encoded == [10, PIECE]
        assert fetched(c, PIECE - 10) == list(range(20, PIECE + 10))
        eventually(lambda: encoded == [10, PIECE, PIECE])
        assert fetched(c, 3) == list(range(PIECE + 10, PIECE + 13))
        assert encoded == [10, PIECE, PIECE]
        # What was made ahead and what is left of it goes with the portal.
        assert c.ask(f.query("commit"))[-1] == ("Z", b"I")
        assert served.engine.sessions[-1].open_streams == 0
