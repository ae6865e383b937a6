"""The spool beside a model: transactions of any sizes, cut off and sent again, read by any range or share."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postgres.pgoutput_model import insert, sent
from tidemill.sources.contract import Forgotten
from tidemill.sources.postgres import segment as segment_module
from tidemill.sources.postgres import spool as spool_module
from tidemill.sources.postgres.segment import SpoolUnreachable, read_chunks, read_relations, read_state
from tidemill.sources.postgres.spool import Spool, TransactionTooLarge


@contextmanager
def small() -> Generator[None]:
    """Limits that some messages reach."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool_module, "BLOCK_MESSAGES", 5)
        patch.setattr(spool_module, "BLOCK_BYTES", 400)
        patch.setattr(spool_module, "SEGMENT_BYTES", 600)
        patch.setattr(segment_module, "CHUNK_MESSAGES", 12)
        yield


@contextmanager
def spool(floor: int = 100) -> Generator[Spool]:
    made = Spool()
    try:
        made.begin(floor)
        yield made
    finally:
        made.close()


def message(number: int, size: int = 10) -> bytes:
    return insert(1, [str(number), "x" * size])


def found(folder: Path, lower: int, upper: int, numbers: tuple[int, int] | None = None) -> list[bytes]:
    return [
        chunk.message(n) for chunk in read_chunks(folder, lower, upper, numbers) for n in range(len(chunk.at))
    ]


SIZES = st.lists(st.sampled_from([0, 10, 10, 300]), max_size=14)
# Sizes of messages, then what happens: a commit, a lost connection, or a commit that is flushed.
STEPS = st.lists(st.tuples(SIZES, st.sampled_from(["commit", "flush", "cut", "idle"])), max_size=25)


@given(STEPS, st.data())
def test_any_range_and_any_share(steps: list[tuple[list[int], str]], data: st.DataObject) -> None:
    with small(), spool() as made:
        wanted: list[tuple[int, list[bytes]]] = []
        lsn, number = 100, 0
        for sizes, then in steps:
            if then == "idle":
                lsn += 8
                made.advance(lsn)
                continue
            messages = [message(number := number + 1, size) for size in sizes]
            for one in messages:
                made.add(sent(one))
            if then == "cut":
                made.cut_off()
                continue
            lsn += 8
            made.commit(lsn)
            wanted.append((lsn, messages))
            if then == "flush":
                made.flush()
        made.flush()
        assert made.frontier == lsn and not made.open and not made.stale
        assert read_state(made.folder) == (100, lsn)
        lower = data.draw(st.integers(100, lsn))
        upper = data.draw(st.integers(lower, lsn))
        expected = [m for end, messages in wanted if lower < end <= upper for m in messages]
        assert found(made.folder, lower, upper) == expected
        # Shares of the numbers.
        blocks = made.blocks(lower, upper)
        if len(blocks):
            begin, end = int(blocks["number"][0]), int(blocks["number"][-1] + blocks["messages"][-1])
            cut = data.draw(st.integers(begin, end))
            shares = [found(made.folder, lower, upper, pair) for pair in ((begin, cut), (cut, end))]
            assert shares[0] + shares[1] == expected
        # What is durable may go, in whole segments; the rest stays.
        durable = data.draw(st.integers(100, lsn))
        made.discard(durable)
        assert made.floor is not None and made.floor <= durable
        assert found(made.folder, durable, lsn) == [m for end, ms in wanted if end > durable for m in ms]
        if made.floor > 100:
            with pytest.raises(Forgotten, match="no longer has transactions"):
                found(made.folder, made.floor - 1, lsn)


def test_a_transaction_is_visible_with_its_commit() -> None:
    with small(), spool() as made:
        for n in range(50):
            made.add(sent(message(n)))
        assert made.open and made.frontier == 100
        made.flush()
        assert not len(made.blocks(0, 1 << 60))
        assert read_state(made.folder) == (100, 100)
        made.commit(200)
        made.flush()
        assert read_state(made.folder) == (100, 200)
        assert len(found(made.folder, 100, 200)) == 50


def test_files_of_an_open_transaction_stay() -> None:
    with small(), spool() as made:
        for end in range(200, 300, 10):
            for n in range(4):
                made.add(sent(message(n, 100)))
            made.commit(end)
        made.flush()
        for n in range(30):
            made.add(sent(message(n, 100)))
        made.discard(290)
        for n in range(30):
            made.add(sent(message(n, 100)))
        made.commit(400)
        made.flush()
        assert len(found(made.folder, 290, 400)) == 60


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MAX_BYTES", 2000)
    monkeypatch.setattr(spool_module, "MAX_TRANSACTION_BYTES", 5000)
    with small(), spool() as made:
        for _ in range(30):
            made.add(sent(message(1, 100)))
        # Of an open transaction nothing can be used: it does not count.
        assert made.size > 2000 and not made.full
        made.commit(200)
        assert made.full
        with pytest.raises(TransactionTooLarge, match="too large"):
            for _ in range(60):
                made.add(sent(message(1, 100)))


def test_descriptions_have_the_numbers_of_their_messages() -> None:
    with small(), spool() as made:
        assert made.describe(1, b"first")
        for n in range(7):
            made.add(sent(message(n)))
        assert not made.describe(1, b"first")
        assert made.describe(1, b"second")
        assert made.describe(2, b"other")
        assert read_relations(made.folder) == [(0, b"first"), (7, b"second"), (7, b"other")]


def test_another_machine_has_no_spool(tmp_path: Path) -> None:
    with pytest.raises(SpoolUnreachable):
        found(tmp_path / "none", 0, 1)
    assert read_state(tmp_path) is None
