"""CDCv2 in several tasks, and a program's micro-batches, without Spark: the steps are the same, what carries
data between them is pretended."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from random import Random
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdcv2.cdcv2_oracle import Oracle, stream
from ingest.pretended import PretendedFrame, PretendedRunner, PretendedSession
from ingest.streamed import StreamHouse, StreamSource
from ingest.test_stream_recovery import check
from support.shards import memory_folder
from tidemill import failpoints
from tidemill.cdcv2 import Message, Progress, Updates
from tidemill.errors import InvalidValue
from tidemill.ingest.recovery.batches import MicroBatches
from tidemill.ingest.recovery.values import FoundUpdates
from tidemill.ingest.recovery.verdict import settle
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.sources.contract import StreamSpec


def opened(folder: Path, kind: int = 0) -> MicroBatches:
    session = cast("Any", PretendedSession())
    form: dict[str, Any] = {"format": "json", **({"components": kind} if kind else {})}
    return MicroBatches.open(session, str(folder / "data"), "orders", form)


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.sampled_from([(0, 4), (2, 3), (3, 2)]))
def test_any_number_of_tasks_gives_the_history(seed: int, shape: tuple[int, int]) -> None:
    rng, (kind, side) = Random(seed), shape
    messages = stream(rng, kind, side, size=8)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        runner = PretendedRunner(f"{folder}/state")
        house = StreamHouse(Path(folder) / "data", StreamSource(kind), runner)
        oracle = Oracle(kind, side)
        while messages:
            size = rng.randint(3, 10)
            chunk, messages = messages[:size], messages[size:]
            for message in chunk:
                house.source.produce([message], rng.randint(0, 2))
                oracle.take(message)
            house.tick(rng.choice([1, 2, 8]))
            check(house, oracle)
            if rng.random() < 0.3:
                house.again()
        assert house.frontier == [] and house.stashed() == []
        house.close()


def as_json(message: Message) -> bytes:
    if isinstance(message, Updates):
        return json.dumps([{"data": d, "time": t, "diff": n} for d, t, n in message.updates]).encode()
    counts = [{"time": t, "count": n} for t, n in message.counts]
    return json.dumps({"lower": message.lower, "upper": message.upper, "counts": counts}).encode()


def told(batches: MicroBatches) -> list[tuple[str, int]]:
    table = batches.updates()
    if not table.num_rows:
        return []
    pairs = zip(table.column("data").to_pylist(), table.column("mz_diff").to_pylist(), strict=True)
    return sorted((json.loads(str(data)), int(diff or 0)) for data, diff in pairs)


def frame(messages: list[Message], slices: int) -> Any:
    rows = [{"value": as_json(m), "partition": n % 3, "offset": n} for n, m in enumerate(messages)]
    return PretendedFrame(rows, slices)


STEPS = ["", "tick.recovery.stashed=error", "tick.recovery.tallied=error", "tick.task.written=error"]


@settings(max_examples=8)
@given(st.integers(0, 2**32), st.sampled_from([(0, 4), (2, 3)]))
def test_a_batch_may_fail_and_come_again_otherwise(seed: int, shape: tuple[int, int]) -> None:
    rng, (kind, side) = Random(seed), shape
    messages = stream(rng, kind, side, size=9)
    oracle = Oracle(kind, side)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        batches = opened(Path(folder), kind)
        while messages:
            size = rng.randint(3, 9)
            chunk, messages = messages[:size], messages[size:]
            failpoints.arm(rng.choice(STEPS))
            try:
                batches.push(frame(chunk, 2))
            except Exception as e:
                assert "tick." in str(e)
                # The same object goes on, or another.
                if rng.random() < 0.5:
                    batches.close()
                    batches = opened(Path(folder), kind)
            finally:
                failpoints.arm("")
            rng.shuffle(chunk)
            found = batches.push(frame(chunk, 3))
            for message in chunk:
                oracle.take(message)
            assert found.frontier is not None and tuple(found.frontier) == oracle.frontier()
            assert told(batches) == sorted((d, n) for d, _, n in oracle.released(oracle.frontier()))
        assert batches.frontier == [] and batches.stalls() == []
        batches.close()


@pytest.mark.parametrize("step", STEPS[1:])
def test_an_object_whose_push_failed_may_be_used_again(step: str, tmp_path: Path) -> None:
    batches = opened(tmp_path)
    said: list[Message] = [Updates([("a", 1, 1), ("b", 2, 1)]), Progress([0], [2], [(1, 1)])]
    for _ in range(2):
        failpoints.arm(step)
        try:
            with pytest.raises(Exception, match="tick"):
                batches.push(frame(said, 2))
        finally:
            failpoints.arm("")
    # Only a part of it comes again before the rest.
    assert batches.push(frame(said[1:], 1)).frontier == [1] and told(batches) == []
    assert batches.push(frame(said, 2)).frontier == [2] and told(batches) == [("a", 1)]
    stash = batches._state.stash  # pyright: ignore[reportPrivateUsage]
    assert held(stash) == {"b": 1}
    assert batches.push(frame([Progress([2], [], [(2, 1)])], 1)).frontier == []
    assert told(batches) == [("a", 1), ("b", 1)] and held(stash) == {}
    batches.close()


def held(stash: Shard) -> dict[str, int]:
    """The rows of a stash, each with how often it is there."""
    sums: dict[str, int] = {}
    with stash.snapshot(upper_of(stash) - 1, readable=upper_of(stash)) as snapshot:
        for part in snapshot.parts:
            for row in snapshot.read_part(part).to_pylist():
                data = str(json.loads(str(row["d0"])))
                sums[data] = sums.get(data, 0) + int(str(row["mz_diff"]))
    return {data: count for data, count in sums.items() if count}


def test_a_program_may_begin_in_the_middle(tmp_path: Path) -> None:
    """With a snapshot at 5; the stream says nothing of its beginning, and a statement reaches across."""
    batches = opened(tmp_path)
    before = pa.table({"data": ['"a"', '{"y": 1,  "x":2}', '"b"'], "mz_diff": [2, 1, 1]})
    for wrong in (pa.table({"date": ['"a"']}), pa.table({"data": ['"a"'], "mz_diff": ["many"]})):
        with pytest.raises(InvalidValue, match="the snapshot"):
            batches.begin([5], wrong)
    failpoints.arm("tick.recovery.tallied=error")
    with pytest.raises(failpoints.FailpointError):
        batches.begin([5], before)
    failpoints.arm("")
    assert batches.frontier is None and batches.begin([5], before) and not batches.begin([7], before)
    said: list[Message] = [
        Updates([("b", 3, 1), ("b", 6, -1), ({"x": 2, "y": 1}, 7, 1)]),
        Progress([2], [9], [(3, 4), (6, 1), (7, 1)]),
        Progress([9], []),
    ]
    for _ in range(2):
        assert batches.push(frame(said, 2)).frontier == []
    assert batches.stalls() == []
    table = batches.updates()
    sums: dict[str, int] = {}
    for data, diff in zip(table.column("data").to_pylist(), table.column("mz_diff").to_pylist(), strict=True):
        sums[str(data)] = sums.get(str(data), 0) + int(diff or 0)
    assert sums == {'"a"': 2, '{"x": 2, "y": 1}': 2, '"b"': 0}
    batches.close()


def test_what_a_program_sends_wrong_is_told(tmp_path: Path) -> None:
    batches = opened(tmp_path)
    found = batches.push(cast("Any", PretendedFrame([{"value": b"nonsense"}], 1)))
    assert found.updates == 0 and "not a CDCv2 message in JSON" in found.errors[0]
    found = batches.push(frame([Updates([("a", 1, 1)]), Progress([0], [2], [(1, 2)])], 1))
    assert found.frontier == [1]
    assert "MISSING 1 of 2" in batches.stalls()[0].describe()
    batches.close()


def test_half_a_batch_is_taken_back(tmp_path: Path) -> None:
    batches = opened(tmp_path)
    state, environment = batches._state, batches._environment  # pyright: ignore[reportPrivateUsage]
    found = FoundUpdates(counts={5: 1}, stated=[(("0", 0), Progress([0], [5]))])
    settled = settle(state.recover(StreamSpec()), found)
    assert settled.after == (5,)
    at, job = environment.oracle.write_ts(), environment.begin_job()
    rows = {
        "d0": pa.array(['"x"']),
        "t0": pa.array([5]),
        "diff": pa.array([1]),
        "partition": pa.array(["0"]),
        "offset": pa.array([0]),
        "mz_timestamp": pa.array([at]),
        "mz_diff": pa.array([1]),
    }
    state.append([state.stash.write_part(pa.table(rows), job=job)], settled, at, job)
    environment.oracle.complete(at)
    batches.close()
    # Once, and again: the second finds nothing to do.
    uppers: list[int] = []
    for _ in range(2):
        batches = opened(tmp_path)
        state = batches._state  # pyright: ignore[reportPrivateUsage]
        assert batches.frontier is None and batches.updates().num_rows == 0
        uppers.append(upper_of(state.stash))
        assert upper_of(state.stash) == upper_of(state.tally) > at
        total = 0
        with state.stash.snapshot(uppers[-1] - 1, readable=uppers[-1]) as snapshot:
            for part in snapshot.parts:
                total += sum(snapshot.read_part(part).column("mz_diff").to_pylist())  # pyright: ignore
        assert total == 0
        batches.close()
    assert uppers[0] == uppers[1]
