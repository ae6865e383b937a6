"""Writers: what they put into a log, whenever they die and however many they are, recovers to the
collection."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cdcv2_oracle import history

from tidemill.cdcv2 import (
    ColumnRecovery,
    Progress,
    Recovery,
    UpdateColumns,
    Updates,
    Writer,
    column_hash,
    consolidate,
    recover_columns,
    resume_from,
)
from tidemill.cdcv2.times import Time
from tidemill.errors import Internal

SCHEMA = pa.schema([("name", pa.string())])


def _columns(updates: list[Any]) -> UpdateColumns:
    data = pa.record_batch([pa.array([d for d, _, _ in updates], pa.string())], schema=SCHEMA)
    times = np.array([t for _, t, _ in updates], np.int64)
    return UpdateColumns(data, times, np.array([n for _, _, n in updates], np.int64))


def _rows(releases: Any) -> list[Any]:
    return sorted((d[0], t, n) for updates, _ in releases for d, t, n in updates.rows())


class _Died(Exception):
    pass


class Log:
    """A durable log; a writer dies at any of its steps, before or after something became durable."""

    def __init__(self, rng: Random, deaths: int) -> None:
        self.messages: list[Any] = []
        self.rng = rng
        self.deaths = deaths

    def step(self) -> None:
        if self.deaths and self.rng.random() < 0.15:
            self.deaths -= 1
            raise _Died

    def put(self, message: Any) -> None:
        self.step()
        self.messages.append(message)
        self.step()


def _write(log: Log, updates: list[Any], bounds: list[list[Time]], share: tuple[int, int] | None) -> None:
    """One life of a writer: it knows the collection and its own statements in the log, nothing else."""
    mine = [m for m in log.messages if isinstance(m, Progress) and m.origin == str(share)]
    lower = resume_from(mine, bounds[0])
    writer = Writer(SCHEMA, lower, digests=True, share=share)
    while writer.lower:
        log.step()
        upper = bounds[bounds.index(writer.lower) + 1]
        low: Any = writer.lower[0]
        batch = [u for u in updates if u[1] >= low and (not upper or u[1] < upper[0])]
        half = len(batch) // 2
        for part in (batch[:half], batch[half:]):
            sent = writer.add(_columns(part))
            if sent is not None:
                log.put(sent)
                writer.acknowledged()
        statement = writer.state(upper)
        named = Progress(
            statement.lower, statement.upper, statement.counts, statement.contents, statement.seal, str(share)
        )
        log.put(named)
        writer.stated()


@pytest.mark.parametrize("shares", [[None], [None, None], [(0, 3), (1, 3), (2, 3)]], ids=str)
def test_writers_that_die(shares: list[tuple[int, int] | None]) -> None:
    for seed in range(20):
        rng = Random(f"{shares} {seed}")
        updates = history(rng, 0, 9, 20)
        messages: list[Any] = []
        for share in shares:
            cuts = sorted(rng.sample(range(1, 9), 3))
            bounds: list[list[Time]] = [[0], *([c] for c in cuts), []]
            log = Log(rng, 6)
            while True:
                try:
                    _write(log, updates, bounds, share)
                    break
                except _Died:
                    continue
            messages += log.messages
        rng.shuffle(messages)
        assert _rows(recover_columns(messages, SCHEMA)) == sorted(updates)


def test_what_is_stated_is_durable() -> None:
    """In the log's order, a lone writer's statements never wait for anything."""
    for seed in range(15):
        rng = Random(seed)
        updates = history(rng, 0, 9, 20)
        log = Log(rng, 5)
        while True:
            try:
                _write(log, updates, [[0], [3], [6], []], None)
                break
            except _Died:
                continue
        recovery = ColumnRecovery(SCHEMA)
        for message in log.messages:
            recovery.push(message)
            if isinstance(message, Progress):
                assert all(s.waits.value != "missing" for s in recovery.stalls())


def test_pairs() -> None:
    updates = history(Random(1), 2, 4, 12)
    writer = Writer(SCHEMA, [(0, 0)])
    first = [u for u in updates if u[1][0] < 2]  # pyright: ignore[reportIndexIssue]
    rest = [u for u in updates if u not in first]
    messages: list[Any] = []
    for part, upper in ((first, [(2, 0)]), (rest, [])):
        messages.append(writer.add(_columns(part)))
        writer.acknowledged()
        messages.append(writer.state(upper))
        writer.stated()
    assert writer.lower == []
    assert _rows(recover_columns(messages, SCHEMA)) == sorted(updates)


@pytest.mark.parametrize("kind", [0, 2])
def test_digests_of_columns_checked_row_by_row(kind: int) -> None:
    updates = history(Random(3), kind, 4, 12)
    writer = Writer(SCHEMA, [0 if kind == 0 else (0, 0)], digests=True)
    batch = _columns(updates)
    assert writer.add(batch) is not None
    writer.acknowledged()
    recovery = Recovery(update_hash=column_hash(SCHEMA), require_digests=True)
    assert recovery.push(Updates(batch.rows())) == []
    [(released, _)] = recovery.push(writer.state([]))
    assert sorted((d, t, n) for (d,), t, n in released) == sorted(updates)  # pyright: ignore


def test_idle_progress_and_a_start_in_the_middle() -> None:
    writer = Writer(SCHEMA, [7])
    assert writer.state([9]) == Progress([7], [9], [])
    writer.stated()
    assert writer.state([12]) == Progress([9], [12], [])


def test_the_order_is_kept() -> None:
    writer = Writer(SCHEMA, [0])
    batch = _columns([("a", 1, 1)])
    assert writer.add(batch) is not None
    with pytest.raises(Internal, match="before what it counts is durable"):
        writer.state([5])
    with pytest.raises(Internal, match="2 batches acknowledged of 1"):
        writer.acknowledged(2)
    writer.acknowledged()
    with pytest.raises(Internal, match="an update at 1 was written for a statement up to"):
        writer.state([1])
    writer.state([5])
    with pytest.raises(Internal, match="while a statement is on its way"):
        writer.add(batch)
    writer.stated()
    with pytest.raises(Internal, match="an update at 1 was to be written, after"):
        writer.add(batch)
    with pytest.raises(Internal, match="changes nothing"):
        writer.add(_columns([("a", 6, 0)]))
    with pytest.raises(Internal, match="a statement from"):
        writer.state([4])


def test_consolidate() -> None:
    updates = [("a", 1, 1), ("b", 1, 1), ("a", 1, -1), ("b", 2, 1), ("b", 1, 2), ("b", 2, -3)]
    found = consolidate(_columns(updates))
    assert sorted((d[0], t, n) for d, t, n in found.rows()) == [("b", 1, 3), ("b", 2, -2)]
    assert len(consolidate(_columns([]))) == 0


def test_resuming_needs_no_order_and_no_other_writers() -> None:
    said = [Progress([0], [3]), Progress([3], [5]), Progress([7], [9])]
    assert resume_from(reversed(said), [0]) == [5]
    assert resume_from([], [4]) == [4]
    assert resume_from([*said, Progress([5], [])], [0]) == []
