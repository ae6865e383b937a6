"""Disks that fail, digests that cannot be had, limits where something else is wrong too: nothing is lost, and
nothing wrong is released."""

from __future__ import annotations

import errno
import os
import pickle
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from cdcv2_oracle import stream

from tidemill.cdcv2 import (
    ColumnRecovery,
    Contradiction,
    InvalidMessage,
    Message,
    Progress,
    Recovery,
    SpillFailed,
    UpdateColumns,
    Updates,
    column_stash,
    recover,
    sealed,
)
from tidemill.cdcv2 import spill_file as spill_module
from tidemill.cdcv2.spill_file import SpillFile
from tidemill.errors import LimitExceeded

SCHEMA = pa.schema([pa.field("x", pa.string())])


class Disk:
    """Writes and reads of spilled updates, which fail while it is bad."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.full = self.broken = False
        write, read = os.pwrite, os.pread

        def pwrite(handle: int, data: Any, at: int) -> int:
            if self.full:
                write(handle, data[: len(data) // 2], at)  # as much as there is room for
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(handle, data, at)

        def pread(handle: int, size: int, at: int) -> bytes:
            if self.broken:
                raise OSError(errno.EIO, "Input/output error")
            return read(handle, size, at)

        patch.setattr(os, "pwrite", pwrite)
        patch.setattr(os, "pread", pread)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def pushed(recovery: Recovery, message: Message) -> list[Any]:
    """What a push gives that may fail."""
    try:
        return recovery.push(message)
    except SpillFailed:
        return recovery.drain()


def test_a_disk_that_is_full_loses_nothing(disk: Disk) -> None:
    recovery = Recovery(max_stashed=4)
    disk.full = True
    with pytest.raises(SpillFailed, match="cannot be kept on disk") as caught:
        recovery.push(Updates([(n, n, 1) for n in range(6)]))
    assert caught.value.sqlstate == "53100" and "Make room" in str(caught.value.hint)
    assert recovery.stashed == 6
    # It stays so until there is room; what has come is known all the same.
    with pytest.raises(SpillFailed):
        recovery.push(Updates([(5, 5, 1)]))
    disk.full = False
    assert recovery.push(Updates([(0, 0, 1)])) == [] and recovery.stashed == 6
    every = [(n, 1) for n in range(6)]
    assert recovery.push(Progress([0], [], every)) == [([(n, n, 1) for n in range(6)], [])]


def test_a_folder_that_is_gone_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    recovery = Recovery(max_stashed=2, spill_folder=str(folder))
    with pytest.raises(SpillFailed, match="cannot be kept on disk") as caught:
        recovery.push(Updates([("a", 1, 1), ("b", 2, 1), ("c", 3, 1)]))
    assert caught.value.sqlstate == "58030"
    folder.mkdir()
    (released, _), *_ = recovery.push(Progress([0], [], [(1, 1), (2, 1), (3, 1)]))
    assert [data for data, _, _ in released] == ["a", "b", "c"]


def test_data_that_cannot_be_written_down_is_not_lost() -> None:
    recovery = Recovery(max_stashed=2)
    rows = [(lambda: 1, t, 1) for t in range(3)]
    with pytest.raises(SpillFailed, match="cannot be kept on disk"):
        recovery.push(Updates(rows))
    assert recovery.push(Progress([0], [], [(t, 1) for t in range(3)])) == [(rows, [])]


def test_what_cannot_be_read_back_is_not_released(disk: Disk) -> None:
    recovery = Recovery(max_stashed=2)
    recovery.push(Updates([("a", 1, 1), ("b", 2, 1), ("c", 3, 1)]))
    recovery.push(Progress([0], [1]))
    disk.broken = True
    for said in (Progress([1], [3], [(1, 1), (2, 1)]), Updates([])):
        with pytest.raises(SpillFailed):
            recovery.push(said)
        assert recovery.frontier == [1] and recovery.drain() == []
    disk.broken = False
    assert recovery.push(Updates([])) == [([("a", 1, 1), ("b", 2, 1)], [3])]
    assert recovery.frontier == [3]


def test_what_came_behind_the_disk_is_compared_when_it_can_be_read(disk: Disk) -> None:
    recovery = Recovery(max_stashed=2)
    recovery.push(Updates([("a", 1, 1), ("b", 2, 1), ("c", 3, 1)]))
    recovery.push(Updates([("c", 3, 1)]))
    recovery.push(Updates([("d", 3, 1)]))
    disk.broken = True
    with pytest.raises(SpillFailed):
        recovery.push(Progress([0], [], [(1, 1), (2, 1), (3, 2)]))
    disk.broken = False
    released = [u for updates, _ in recovery.push(Updates([])) for u in updates]
    assert released == [("a", 1, 1), ("b", 2, 1), ("c", 3, 1), ("d", 3, 1)] and recovery.frontier == []


@pytest.mark.parametrize(("kind", "rounds"), [(0, 60), (2, 20)])
def test_a_disk_that_comes_and_goes_changes_nothing(kind: int, rounds: int, disk: Disk) -> None:
    for n in range(rounds):
        rng = Random(f"faults {kind} {n}")
        plain, spilling = Recovery(), Recovery(max_stashed=4)
        expected: list[Any] = []
        found: list[Any] = []
        for message in stream(rng, kind, 7 if kind == 0 else 4, size=12):
            disk.full, disk.broken = rng.random() < 0.5, rng.random() < 0.5
            expected += plain.push(message)
            found += pushed(spilling, message)
            assert {u for us, _ in found for u in us} <= {u for us, _ in expected for u in us}
        disk.full = disk.broken = False
        found += spilling.push(Updates([]))
        updates = [u for us, _ in found for u in us]
        assert sorted(map(str, updates)) == sorted(str(u) for us, _ in expected for u in us)
        assert spilling.frontier == [] and spilling.stashed == 0


def test_columns_lose_nothing_where_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_stash, "_SMALL", 0)
    folder = tmp_path / "gone"
    recovery = ColumnRecovery(SCHEMA, memory_bytes=10, spill_folder=str(folder))

    def updates(text: str, time: int) -> UpdateColumns:
        return UpdateColumns.of(pa.record_batch({"x": [text * 20]}, SCHEMA), [time])

    for n, text in enumerate("abc"):
        with pytest.raises(SpillFailed):
            recovery.push(updates(text, n))
    # Also where rows are moved because others were released.
    with pytest.raises(SpillFailed):
        recovery.push(Progress([0], [2], [(0, 1), (1, 1)]))
    ((first, frontier),) = recovery.drain()
    assert [row[0] for row, _, _ in first.rows()] == ["a" * 20, "b" * 20] and frontier == [2]
    folder.mkdir()
    recovery.push(updates("c", 2))
    assert recovery.stashed == 1 and recovery.spilled_bytes > 0
    ((last, _),) = recovery.push(Progress([2], [], [(2, 1)]))
    assert [row[0] for row, _, _ in last.rows()] == ["c" * 20]


def test_too_much_on_disk_loses_nothing() -> None:
    recovery = ColumnRecovery(SCHEMA, memory_bytes=10, spill_bytes=10)
    data = pa.record_batch({"x": ["a" * 20]}, SCHEMA)
    with pytest.raises(LimitExceeded, match="more than 10 bytes"):
        recovery.push(UpdateColumns.of(data, [1]))
    with pytest.raises(LimitExceeded, match="more than 10 bytes"):
        recovery.push(UpdateColumns.of(data, [1]))
    ((released, _),) = recovery.push(Progress([0], [], [(1, 1)]))
    assert len(released) == 1


# -- on disk


def test_one_file_is_open_however_much_is_on_disk() -> None:
    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = files()
    recovery = Recovery(max_stashed=10)
    for n in range(500):
        recovery.push(Updates([("a", n, 1)]))
    assert recovery.stashed == 500 and files() <= before + 1
    ((released, _),) = recovery.push(Progress([0], [], [(n, 1) for n in range(500)]))
    assert len(released) == 500 and files() <= before


def test_a_file_does_not_keep_what_nobody_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_module, "MAX_DEAD_BYTES", 100)
    sizes: list[int] = []
    write = os.pwrite

    def pwrite(handle: int, data: Any, at: int) -> int:
        sizes.append(at + len(data))
        return write(handle, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    file = SpillFile(None)
    held = {file.put(b"%03d" % n * 10): n for n in range(3)}
    for n in range(3, 500):
        number = next(iter(held))
        assert file.get(number) == b"%03d" % held.pop(number) * 10
        file.free(number)
        held[file.put(b"%03d" % n * 10)] = n
    assert max(sizes) <= 100 + 4 * 30 + 30
    for number, n in held.items():
        assert file.get(number) == b"%03d" % n * 10


@pytest.mark.parametrize(
    "nan", [float("nan"), (1, float("nan")), Decimal("NaN"), frozenset([float("nan")]), ((Decimal("NaN"),),)]
)
def test_nan_is_one_value_on_disk_too(nan: Any) -> None:
    recovery = Recovery(max_stashed=2)
    recovery.push(Updates([("a", 1, 1), ("b", 2, 1), (nan, 9, 1)]))
    again = pickle.loads(pickle.dumps(nan))
    recovery.push(Updates([(again, 9, 1)]))
    recovery.push(Updates([("x", 9, 1)]))
    released = recovery.push(Progress([0], [], [(1, 1), (2, 1), (9, 2)]))
    assert len(released[-1][0]) == 4


# -- contradictions where something else is going on


def test_a_spilled_time_may_be_contradictory() -> None:
    recovery = Recovery(max_stashed=2)
    recovery.push(Updates([("a", 1, 1), ("b", 2, 1), ("c", 3, 1)]))
    with pytest.raises(Contradiction, match="two different diffs"):
        recovery.push(Updates([("d", 3, 1), ("d", 3, 2)]))
    assert recovery.push(Progress([0], [9], [(1, 1), (2, 1), (3, 2)])) == [([("a", 1, 1), ("b", 2, 1)], [3])]
    assert recovery.push(Updates([("c", 3, 1)])) == [] and recovery.frontier == [3]


def test_a_digest_that_cannot_be_worked_out_withholds_its_time() -> None:
    class Odd:
        pass

    recovery = Recovery()
    odd = Odd()
    recovery.push(Updates([(odd, 2, 1), ("b", 5, 1)]))
    said = sealed(Progress([0], [3], [(2, 1)]), [7])
    with pytest.raises(Contradiction, match="the digest of the updates cannot be worked out") as caught:
        recovery.push(said)
    assert caught.value.time == 2 and "no digest of a Odd" in str(caught.value.second)
    assert recovery.drain() == [([], [2])]
    for again in (Updates([]), said, Updates([(odd, 2, 1)]), Progress([3], [9], [(5, 1)])):
        assert recovery.push(again) == [] and recovery.frontier == [2]


def test_whatever_a_hash_of_ones_own_raises_withholds_the_time() -> None:
    def broken(data: Any, time: Any, diff: int) -> int:
        raise ZeroDivisionError("no")

    recovery = Recovery(update_hash=broken)
    recovery.push(Updates([("a", 2, 1)]))
    with pytest.raises(Contradiction, match="cannot be worked out") as caught:
        recovery.push(sealed(Progress([0], [3], [(2, 1)]), [7]))
    assert "ZeroDivisionError: no" in str(caught.value.second)
    assert recovery.drain() == [([], [2])]
    assert recovery.push(Updates([("a", 2, 1)])) == [] and recovery.frontier == [2]


def test_limits_are_looked_at_where_a_push_is_refused() -> None:
    recovery = Recovery(max_times=3)
    with pytest.raises(LimitExceeded, match="more than 3 unreported times") as caught:
        for n in range(9):
            with pytest.raises(Contradiction):
                recovery.push(Updates([("a", n, 0)]))
    assert isinstance(caught.value.__cause__, Contradiction)
    columns = ColumnRecovery(SCHEMA, max_stashed=2)
    data = pa.record_batch({"x": ["a", "b", "c", "d"]}, SCHEMA)
    with pytest.raises(LimitExceeded, match="more than 2 stashed updates"):
        columns.push(UpdateColumns.of(data, [1, 2, 3, 4], [1, 1, 1, 0]))


def test_who_goes_on_over_a_limit_of_times_is_held_to_those_of_the_stash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits still goes to the disk, and no more than that may hold."""
    recovery = Recovery(max_stashed=10, max_spilled=50, max_times=3)
    for n in range(12):
        with pytest.raises(LimitExceeded, match="more than 3 unreported times"):
            recovery.push(Updates([(f"r{n}-{i}", 5 * n + i, 1) for i in range(5)]))
    with pytest.raises(LimitExceeded, match="more than 50 stashed updates on disk"):
        recovery.push(Updates([(f"last{i}", 99, 1) for i in range(5)]))
    monkeypatch.setattr(column_stash, "_SMALL", 0)
    columns = ColumnRecovery(SCHEMA, memory_bytes=10, max_times=3)
    data = pa.record_batch({"x": ["a" * 20] * 5}, SCHEMA)
    with pytest.raises(LimitExceeded, match="more than 3 unreported times"):
        columns.push(UpdateColumns.of(data, range(5)))
    assert columns.spilled_bytes > 0


def test_what_was_released_before_a_limit_is_handed_out() -> None:
    found: list[Any] = []
    with pytest.raises(LimitExceeded):
        for updates, _ in recover(
            [Progress([0], [2], [(1, 1)]), Updates([("a", 1, 1), *((n, 5, 1) for n in range(9))])],
            max_stashed=3,
        ):
            found += updates
    assert found == [("a", 1, 1)]


# -- what is no message


@pytest.mark.parametrize(
    "message",
    [
        None,
        "text",
        [("a", 1, 1)],
        Updates(None),  # pyright: ignore[reportArgumentType]
        Updates(7),  # pyright: ignore[reportArgumentType]
        Updates("abc"),  # pyright: ignore[reportArgumentType]
        Updates([None]),  # pyright: ignore[reportArgumentType]
        Updates([("a", None, 1)]),  # pyright: ignore[reportArgumentType]
        Updates([("a", "1", 1)]),  # pyright: ignore[reportArgumentType]
        Updates([("a", {}, 1)]),  # pyright: ignore[reportArgumentType]
        Updates([("a", ((1,), 1), 1)]),  # pyright: ignore[reportArgumentType]
        Updates([("a", 1, float("nan"))]),  # pyright: ignore[reportArgumentType]
        Updates([("a", 1, "1")]),  # pyright: ignore[reportArgumentType]
        Updates([((1, []), 1, 1)]),
        Updates([({}, 1, 1)]),
        Updates([(Decimal("sNaN"), 1, 1)]),
        Progress(None, [1]),  # pyright: ignore[reportArgumentType]
        Progress([0], None),  # pyright: ignore[reportArgumentType]
        Progress(0, [1]),  # pyright: ignore[reportArgumentType]
        Progress("0", [1]),  # pyright: ignore[reportArgumentType]
        Progress([0], ["9"]),  # pyright: ignore[reportArgumentType]
        Progress([False], [9]),
        Progress([0], [9], None),  # pyright: ignore[reportArgumentType]
        Progress([0], [9], [3]),  # pyright: ignore[reportArgumentType]
        Progress([0], [9], [(1, 1, 1)]),  # pyright: ignore[reportArgumentType]
        Progress([0], [9], [(1, float("nan"))]),  # pyright: ignore[reportArgumentType]
        Progress([0], [9], [(1, "1")]),  # pyright: ignore[reportArgumentType]
        Progress([0], [9], [(1, 2**63)]),
        Progress([0], [9], [([], 1)]),  # pyright: ignore[reportArgumentType]
        Progress([(0, 0)], [(1, 1, 1)]),
        Progress([0], [9], [(1, 1)], contents=["x"], seal=0),  # pyright: ignore[reportArgumentType]
        Progress([0], [9], [(1, 1)], contents=[1], seal="x"),  # pyright: ignore[reportArgumentType]
        Progress([0], [9], [(1, 1)], contents=7, seal=0),  # pyright: ignore[reportArgumentType]
    ],
    ids=lambda m: str(m)[:60],
)
def test_odd_messages_are_refused_by_name(message: Any) -> None:
    plain, columns = Recovery(), ColumnRecovery(SCHEMA)
    for recovery in (plain, columns):
        with pytest.raises(InvalidMessage, match="message 0"):
            recovery.push(message)
        assert recovery.stashed == 0 and recovery.frontier == [0] and not recovery.stalls()


@pytest.mark.parametrize(
    "resume_from",
    [5, "5", [True], ["x"], [-1], [2**63], [1, (1, 1)], [()]],
)
def test_odd_frontiers_are_refused_by_name(resume_from: Any) -> None:
    with pytest.raises(InvalidMessage, match="resume_from"):
        Recovery(resume_from)
    with pytest.raises(InvalidMessage, match="resume_from"):
        ColumnRecovery(SCHEMA, resume_from)


@pytest.mark.parametrize(
    ("times", "diffs"),
    [
        ([2**63], [1]),
        ([2**64], [1]),
        ([1.5], [1]),
        ([True], [1]),
        (["1"], [1]),
        ([None], [1]),
        ([float("nan")], [1]),
        ([[[1]]], [1]),
        ([1, 2], [1]),
        (1, [1]),
        ([1], [1.0]),
        ([1], [True]),
        ([1], [2**63]),
        ([1], None),
    ],
)
def test_odd_columns_are_refused_by_name(times: Any, diffs: Any) -> None:
    data = pa.record_batch({"x": ["a"]}, SCHEMA)
    if diffs is None:
        data, diffs = pa.record_batch({"x": ["a", "b"]}, SCHEMA), [[1], [1, 2]]
        times = [1, 2]
    with pytest.raises(InvalidMessage, match="the updates"):
        UpdateColumns.of(data, times, diffs)


def test_columns_with_pairs_of_unequal_length_are_refused_by_name() -> None:
    data = pa.record_batch({"x": ["a", "b"]}, SCHEMA)
    with pytest.raises(InvalidMessage, match="not times"):
        UpdateColumns.of(data, [(1, 2), (3,)])
