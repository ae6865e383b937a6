"""Random transactions over several shards against a pure-Python model: history, conflicts, reads at any time,
restarts."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter

import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tidemill.errors import SerializationFailure
from tidemill.persist.environment import Environment
from tidemill.types.model import INT4, Column, RelationDesc

SHARDS = ("a-1", "b-1", "c-1")
DESC = RelationDesc((Column("k", INT4),))

Writes = dict[str, list[tuple[int, int]]]

_writes = st.dictionaries(
    st.sampled_from(SHARDS), st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 1, -1])), max_size=3)
)


def _table(updates: list[tuple[int, int]]) -> pa.Table:
    return pa.table(
        {
            "k": pa.array([k for k, _ in updates], pa.int32()),
            "mz_diff": pa.array([d for _, d in updates], pa.int64()),
        }
    )


class TxnsMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.env = Environment.open(self.folder)
        for shard_id in SHARDS:
            self.env.create_shard(shard_id, DESC)
        # What is committed: (time, writes), in order.
        self.history: list[tuple[int, Writes]] = []
        # Times that were handed out for reading: a transaction may depend on what it saw there.
        self.read_times: list[int] = [self.env.oracle.read_ts()]
        self.seen: dict[tuple[str, int], Counter[int]] = {}
        # Read times of an earlier process may not carry a write over a restart.
        self.floor = self.read_times[0]

    def expected(self, shard_id: str, at: int) -> Counter[int]:
        found: Counter[int] = Counter()
        for ts, writes in self.history:
            if ts <= at:
                for k, d in writes.get(shard_id, []):
                    found[k] += d
        return Counter({k: n for k, n in found.items() if n})

    def changed_after(self, shard_id: str, at: int) -> bool:
        return any(ts > at and writes.get(shard_id) for ts, writes in self.history)

    @rule(
        group=st.lists(st.tuples(_writes, st.sets(st.sampled_from(SHARDS))), min_size=1, max_size=4),
        data=st.data(),
    )
    def commit(self, group: list[tuple[Writes, set[str]]], data: st.DataObject) -> None:
        times = [t for t in self.read_times if t >= self.floor]
        requests = [(w, {s: data.draw(st.sampled_from(times[-4:])) for s in sorted(r)}) for w, r in group]
        with self.env.txns.paused():
            futures = [
                self.env.txns.commit({s: _table(u) for s, u in writes.items()}, reads)
                for writes, reads in requests
            ]
        for (writes, reads), future in zip(requests, futures, strict=True):
            # Groups keep the order of the queue, so one after the other is what must have happened.
            refused = any(self.changed_after(s, at) for s, at in reads.items())
            error = future.exception(timeout=120)
            assert isinstance(error, SerializationFailure) if refused else error is None
            if not refused:
                ts = future.result()
                assert not self.history or ts >= self.history[-1][0]
                assert ts > max(t for t in self.read_times)
                self.history.append((ts, writes))

    @rule()
    def read_now(self) -> None:
        at = self.env.oracle.read_ts()
        assert at >= self.read_times[-1]
        assert not self.history or at >= self.history[-1][0]
        self.read_times.append(at)

    @rule(shard_id=st.sampled_from(SHARDS), data=st.data())
    def read_at(self, shard_id: str, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(self.read_times))
        self.env.txns.apply_until(shard_id, at)
        with self.env.open_shard(shard_id).snapshot(at, readable=at + 1) as snapshot:
            table = snapshot.read()
        found: Counter[int] = Counter()
        for k, d in zip(table.column("k").to_pylist(), table.column("mz_diff").to_pylist(), strict=True):
            found[k] += d
        found = Counter({k: n for k, n in found.items() if n})
        assert found == self.expected(shard_id, at)
        # Definite: whatever happened since, the same as the first time.
        assert self.seen.setdefault((shard_id, at), found) == found

    @rule()
    def maintain(self) -> None:
        self.env.maintain()
        self.env.txns.maintain()

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        if crash:
            # As a process that was killed: it stops, and its lock is free.
            old = self.env
            old._lock_file.release()  # pyright: ignore[reportPrivateUsage]
            self.env = Environment.open(self.folder)
            old.close()
        else:
            self.env.close()
            self.env = Environment.open(self.folder)
        for shard_id in SHARDS:
            self.env.open_shard(shard_id)
        at = self.env.oracle.read_ts()
        assert at > self.read_times[-1] or at >= self.env.start - 1
        self.read_times.append(at)
        self.floor = at

    @invariant()
    def times_go_forward(self) -> None:
        if hasattr(self, "read_times"):
            assert self.read_times == sorted(self.read_times)

    def teardown(self) -> None:
        if hasattr(self, "env"):
            self.env.close()
            shutil.rmtree(self.folder)


TestTxnsModel = TxnsMachine.TestCase
TestTxnsModel.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
