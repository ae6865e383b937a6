"""Transactions: atomic, serializable, group-committed; and every way in which a commit can go wrong."""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill import failpoints
from tidemill.errors import (
    DatatypeMismatch,
    Internal,
    SerializationFailure,
    TidemillError,
    Unavailable,
    UndefinedObject,
)
from tidemill.persist import settle
from tidemill.persist.blob import BlobUnknown
from tidemill.persist.environment import Environment
from tidemill.persist.local import LocalBlobs
from tidemill.persist.outcome import CommitFailed, CommitUnknown
from tidemill.persist.shard import Shard
from tidemill.persist.txns.record import TXNS_SHARD, unapplied
from tidemill.persist.txns.request import ShardConflict, conflict
from tidemill.types.model import INT4, TEXT, Column, RelationDesc

DESC = RelationDesc((Column("k", INT4), Column("v", TEXT)))


@pytest.fixture
def env(tmp_path: Path) -> Iterator[Environment]:
    env = Environment.open(str(tmp_path / "data"))
    for shard_id in ("a-1", "b-1"):
        env.create_shard(shard_id, DESC)
    yield env
    failpoints.arm("")
    env.close()


def rows(*values: tuple[int, str, int]) -> pa.Table:
    return pa.table(
        {
            "k": pa.array([k for k, _, _ in values], pa.int32()),
            "v": pa.array([v for _, v, _ in values], pa.string()),
            "mz_diff": pa.array([d for _, _, d in values], pa.int64()),
        }
    )


def read(env: Environment, shard_id: str, at: int | None = None) -> Counter[tuple[int, str]]:
    at = env.oracle.read_ts() if at is None else at
    env.txns.apply_until(shard_id, at)
    with env.open_shard(shard_id).snapshot(at, readable=at + 1) as snapshot:
        table = snapshot.read()
    found: Counter[tuple[int, str]] = Counter()
    for k, v, d in zip(*(table.column(c).to_pylist() for c in ("k", "v", "mz_diff")), strict=True):
        found[(k, v)] += d
    return Counter({r: n for r, n in found.items() if n})


def ok(future: Future[int]) -> int:
    return future.result(timeout=120)


@contextmanager
def one_group(env: Environment) -> Generator[None]:
    """What is committed inside ends up in one group: the committer is kept busy with an empty transaction
    meanwhile."""
    with env.txns.paused():
        busy = env.txns.commit({})
        while not busy.running():
            time.sleep(0.001)
        yield


def test_a_commit_is_visible_at_its_time_and_not_before(env: Environment) -> None:
    first = ok(env.txns.commit({"a-1": rows((1, "x", 1)), "b-1": rows((1, "y", 1))}))
    second = ok(env.txns.commit({"a-1": rows((1, "x", -1), (2, "z", 1))}))
    assert second > first
    assert env.oracle.read_ts() >= second
    assert read(env, "a-1", first - 1) == Counter() == read(env, "b-1", first - 1)
    assert read(env, "a-1", first) == {(1, "x"): 1} and read(env, "b-1", first) == {(1, "y"): 1}
    assert read(env, "a-1", second) == {(2, "z"): 1} and read(env, "b-1", second) == {(1, "y"): 1}
    assert env.txns.last_write("a-1") == second and env.txns.last_write("b-1") == first
    assert env.txns.readable_upper("b-1") > second  # idle, readable by the lease


def test_an_empty_transaction_commits(env: Environment) -> None:
    assert ok(env.txns.commit({})) < ok(env.txns.commit({"a-1": rows()}))
    # What cancels out within a group leaves no part.
    before = env.open_shard("a-1").parts
    ok(env.txns.commit({"a-1": rows((1, "x", 1), (1, "x", -1))}))
    env.txns.maintain()
    assert env.open_shard("a-1").parts == before


def test_a_read_that_changed_is_refused(env: Environment) -> None:
    at = env.oracle.read_ts()
    ok(env.txns.commit({"a-1": rows((1, "x", 1))}, {"a-1": at, "b-1": at}))
    with pytest.raises(SerializationFailure, match="concurrent update") as caught:
        ok(env.txns.commit({"b-1": rows((1, "y", 1))}, {"a-1": at}))
    assert caught.value.sqlstate == "40001"
    assert read(env, "b-1") == Counter()
    ok(env.txns.commit({"b-1": rows((1, "y", 1))}, {"b-1": at}))
    ok(env.txns.commit({"b-1": rows((2, "y", 1))}, {"a-1": env.oracle.read_ts()}))


def test_a_conflict_can_name_the_relation() -> None:
    found = conflict("u1-7", 3, 5)
    assert found.detail == "Shard u1-7 was read at 3 and changed at 5."
    named = pickle.loads(pickle.dumps(found)).named("odd {name}")
    assert named.detail == 'Relation "odd {name}" was read at 3 and changed at 5.'
    assert (named.sqlstate, named.primary, named.hint) == ("40001", found.primary, found.hint)


def test_conflicts_within_a_group(env: Environment) -> None:
    """Ten transactions that read and write the same shard at one time, in one group: one wins."""
    at = env.oracle.read_ts()
    with one_group(env):
        futures = [env.txns.commit({"a-1": rows((i, "x", 1))}, {"a-1": at}) for i in range(10)]
        blind = env.txns.commit({"b-1": rows((0, "y", 1))})
        assert not wait(futures, timeout=0.05).done
    wait([*futures, blind])
    assert [f.exception() is None for f in futures] == [True] + [False] * 9
    assert all(isinstance(f.exception(), SerializationFailure) for f in futures[1:])
    assert ok(blind) == ok(futures[0])  # one group, one time
    assert read(env, "a-1") == {(0, "x"): 1}


def test_many_writers_share_groups(env: Environment) -> None:
    times: list[int] = []

    def work(number: int) -> None:
        for i in range(10):
            times.append(ok(env.txns.commit({"a-1": rows((number, str(i), 1))})))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(times) == 200 and len(set(times)) < 200
    assert read(env, "a-1") == {(n, str(i)): 1 for n in range(20) for i in range(10)}


def test_a_bad_request_fails_alone(env: Environment) -> None:
    def refuse() -> None:
        raise UndefinedObject("the guard said no")

    with one_group(env):
        good = env.txns.commit({"a-1": rows((1, "x", 1))})
        bad = [
            env.txns.commit({"a-1": pa.table({"k": pa.array([1], pa.int32())})}),
            env.txns.commit({"a-1": rows((1, "x", 0))}),
            env.txns.commit({"a-1": rows((1, "x", 1)).set_column(0, "k", pa.array([1], pa.int64()))}),
            env.txns.commit({"nowhere": rows((1, "x", 1))}),
            env.txns.commit({"a-1": rows((2, "x", 1))}, guard=refuse),
        ]
    ok(good)
    kinds = [type(f.exception(timeout=120)) for f in bad]
    assert kinds == [ShardConflict, Internal, DatatypeMismatch, Internal, UndefinedObject]
    assert read(env, "a-1") == {(1, "x"): 1}


def test_a_dropped_shard(env: Environment) -> None:
    ok(env.txns.commit({"a-1": rows((1, "x", 1)), "b-1": rows((1, "x", 1))}))
    with env.txns.paused():
        late = env.txns.commit({"a-1": rows((2, "x", 1)), "b-1": rows((2, "x", 1))})
        env.txns.forget("a-1", UndefinedObject('relation "a" does not exist', sqlstate="42P01"))
    with pytest.raises(UndefinedObject, match='relation "a" does not exist'):
        ok(late)
    with pytest.raises(UndefinedObject):
        ok(env.txns.commit({"a-1": rows((3, "x", 1))}))
    assert read(env, "b-1") == {(1, "x"): 1}
    env.txns.maintain()
    env.drop_shard("a-1")
    env.drop_shard("a-1")


def test_a_shard_dropped_while_it_is_being_applied(env: Environment) -> None:
    """The rows of txns are retracted once, by whichever comes first."""
    failpoints.arm("txns.apply.before=sleep:0.3")
    ts = ok(env.txns.commit({"a-1": rows((1, "x", 1)), "b-1": rows((1, "x", 1))}))
    applying = threading.Thread(target=env.txns.apply_until, args=("a-1", ts))
    applying.start()
    time.sleep(0.1)
    env.txns.forget("a-1")
    applying.join()
    env.txns.maintain()
    with env.txns._shard.snapshot((env.txns._shard.upper or 0) - 1) as snapshot:  # pyright: ignore[reportPrivateUsage]
        assert unapplied(snapshot.read()) == []


def test_a_column_added_meanwhile(env: Environment) -> None:
    with env.txns.paused():
        late = env.txns.commit({"a-1": rows((1, "x", 1))})
        env.open_shard("a-1").evolve(RelationDesc((*DESC.columns, Column("w", TEXT))))
    with pytest.raises(SerializationFailure, match="concurrent change of the table"):
        ok(late)
    with pytest.raises(SerializationFailure):
        ok(env.txns.commit({"a-1": rows((1, "x", 1))}))


def test_a_cancelled_request_is_skipped(env: Environment) -> None:
    with one_group(env):
        first = env.txns.commit({"a-1": rows((1, "x", 1))})
        second = env.txns.commit({"a-1": rows((2, "x", 1))})
        assert second.cancel()
    ok(first)
    assert not first.cancel()
    assert read(env, "a-1") == {(1, "x"): 1}


@pytest.mark.parametrize("where", ["persist.part.before_fsync", "txns.part.written", "txns.entry.before_put"])
def test_a_full_disk(env: Environment, where: str) -> None:
    """All of the group learn of it, nothing is visible, the next works."""
    ok(env.txns.commit({"a-1": rows((0, "x", 1))}))
    env.txns.maintain()
    failpoints.arm(f"{where}=enospc")
    with one_group(env):
        futures = [env.txns.commit({"a-1": rows((i, "x", 1)), "b-1": rows((i, "y", 1))}) for i in (1, 2)]
    for future in futures:
        error = future.exception(timeout=120)
        assert isinstance(error, TidemillError) and not isinstance(error, CommitUnknown)
        assert error.sqlstate in ("53100", "58030")
    assert read(env, "a-1") == {(0, "x"): 1} and read(env, "b-1") == Counter()
    ok(env.txns.commit({"a-1": rows((3, "x", 1))}))
    assert read(env, "a-1") == {(0, "x"): 1, (3, "x"): 1}


def test_a_failing_apply_is_tried_again(env: Environment) -> None:
    failpoints.arm("txns.apply.before=enospc;txns.apply.after=eio")
    ts = ok(env.txns.commit({"a-1": rows((1, "x", 1))}))
    for _ in range(3):
        try:
            env.txns.apply_until("a-1", ts)
        except OSError:
            continue
    assert read(env, "a-1", ts) == {(1, "x"): 1}


def test_a_shard_that_cannot_be_applied_hurts_nobody_else(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.persist.txns.txns.MAX_UNAPPLIED", 3)
    broken = env.open_shard("a-1")

    def fail(*_: object) -> None:
        raise CommitFailed("the shard is broken")

    monkeypatch.setattr(broken, "compare_and_append", fail)
    for i in range(3):
        ok(env.txns.commit({"a-1": rows((i, "x", 1))}))
    with pytest.raises(Unavailable, match="too many transactions wait to be applied to shard a-1"):
        ok(env.txns.commit({"a-1": rows((3, "x", 1)), "b-1": rows((3, "y", 1))}))
    with pytest.raises(CommitFailed):
        read(env, "a-1")
    ok(env.txns.commit({"b-1": rows((4, "y", 1))}))
    assert read(env, "b-1") == {(4, "y"): 1}
    monkeypatch.undo()
    assert read(env, "a-1") == {(i, "x"): 1 for i in range(3)}


class Flaky(LocalBlobs):
    """A store whose put of the txns shard's next entry has no answer: it happened, or not."""

    happened = False
    silent = 0

    def put_if_absent(self, path: str, data: bytes) -> None:
        if f"/{TXNS_SHARD}/_delta_log" in path and Flaky.silent:
            Flaky.silent -= 1
            if Flaky.happened:
                super().put_if_absent(path, data)
                Flaky.happened = False
            raise BlobUnknown("no answer")
        super().put_if_absent(path, data)


@pytest.mark.parametrize("happened", [True, False])
@pytest.mark.parametrize("silent", [1, 20])
def test_an_unknown_outcome_is_settled(
    env: Environment, monkeypatch: pytest.MonkeyPatch, happened: bool, silent: int
) -> None:
    """One lost answer is settled by the shard itself; a store that stays silent is asked until it answers.
    Never is a commit reported as failed that may have happened, and nothing else commits meanwhile."""
    monkeypatch.setattr("tidemill.persist.committer.RESOLVE_DELAYS", (0.0, 0.01))
    monkeypatch.setattr(settle, "RETRY_SECONDS", 0.02)
    monkeypatch.setattr(settle, "REPORT_UNKNOWN_SECONDS", 0.05)
    ok(env.txns.commit({"a-1": rows((0, "x", 1))}))
    shard: Shard = env.txns._shard  # pyright: ignore[reportPrivateUsage]
    flaky = Flaky(str(shard.blobs.url))
    shard._committer.blobs = flaky  # pyright: ignore[reportPrivateUsage]
    Flaky.happened, Flaky.silent = happened, silent
    first = env.txns.commit({"a-1": rows((1, "x", 1))})
    if happened or silent == 1:
        ok(first)  # found by looking, or by trying again
    else:
        error = first.exception(timeout=120)
        assert isinstance(error, CommitUnknown) and error.sqlstate == "08007"
        assert env.oracle.read_ts() < env.oracle.now() or Flaky.silent == 0
    Flaky.silent = min(Flaky.silent, 3)
    ok(env.txns.commit({"a-1": rows((2, "x", 1))}))
    assert Flaky.silent == 0
    assert read(env, "a-1") == {(0, "x"): 1, (1, "x"): 1, (2, "x"): 1}


def test_an_error_behind_the_commit_point_is_no_failure(env: Environment) -> None:
    for action in ("error", "eio"):
        failpoints.arm(f"txns.entry.put={action}")
        ok(env.txns.commit({"a-1": rows((1, action, 1))}))
    assert read(env, "a-1") == {(1, "error"): 1, (1, "eio"): 1}


def test_recovery_applies_what_was_committed(tmp_path: Path) -> None:
    url = str(tmp_path / "data")
    env = Environment.open(url)
    env.create_shard("a-1", DESC)
    # The applier cannot, so what is committed stays in txns alone.
    failpoints.arm("txns.apply.before=sleep:5")
    times = [ok(env.txns.commit({"a-1": rows((i, "x", 1))})) for i in range(5)]
    assert env.open_shard("a-1").parts == ()
    successor = Environment.open(url, take_over=True)
    failpoints.arm("")
    assert read(successor, "a-1") == {(i, "x"): 1 for i in range(5)}
    assert read(successor, "a-1", times[2]) == {(i, "x"): 1 for i in range(3)}
    assert successor.open_shard("a-1") is successor.open_shard("a-1")
    successor.txns.maintain()
    assert len(successor.txns.pending) == 0
    successor.close()
    env.close()


def test_the_txns_shard_stays_small(env: Environment) -> None:
    for i in range(40):
        ok(env.txns.commit({"a-1": rows((i, "x", 1))}))
        if i % 10 == 9:
            env.maintain()
    env.maintain()
    assert len(env.txns._shard.parts) <= 16  # pyright: ignore[reportPrivateUsage]
    assert env.txns.pending.applied_count() == 0
    assert sum(read(env, "a-1").values()) == 40


def test_after_close(env: Environment) -> None:
    env.close()
    with pytest.raises(Unavailable, match="shutting down"):
        ok(env.txns.commit({"a-1": rows((1, "x", 1))}))


def test_a_failed_commit_does_not_count_as_a_change(env: Environment) -> None:
    at = env.oracle.read_ts()
    failpoints.arm("txns.entry.before_put=enospc")
    with pytest.raises(CommitFailed):
        ok(env.txns.commit({"a-1": rows((1, "x", 1))}))
    ok(env.txns.commit({"a-1": rows((2, "x", 1))}, {"a-1": at}))
