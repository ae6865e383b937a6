"""One server at a time: who holds the directory, take-over, fencing, formats, the LOCK file and the
heartbeat."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill import failpoints
from tidemill.errors import TidemillError, Unavailable, Unsupported
from tidemill.persist import committer, environment, formats, shard
from tidemill.persist.blob import open_blobs
from tidemill.persist.environment import DirectoryHeld, Environment
from tidemill.persist.lease import CLOCK_DESC, CLOCK_SHARD, ClockShard, Holder
from tidemill.persist.lock import DirectoryLock
from tidemill.persist.outcome import Fenced
from tidemill.persist.shard import Shard
from tidemill.time import oracle
from tidemill.time.oracle import LeaseLost
from tidemill.types.model import INT4, Column, RelationDesc

DESC = RelationDesc((Column("k", INT4),))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def rows(*keys: int) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int32()), "mz_diff": pa.array([1] * len(keys), pa.int64())})


def read(env: Environment, at: int | None = None) -> list[int]:
    at = env.oracle.read_ts() if at is None else at
    env.txns.apply_until("a-1", at)
    with env.open_shard("a-1").snapshot(at, readable=at + 1) as snapshot:
        return sorted(snapshot.read().column("k").to_pylist())


def test_a_second_server_is_told_who_holds_the_directory(url: str) -> None:
    first = Environment.open(url, holder=Holder.this_process({"SQL": "127.0.0.1:6875"}))
    with pytest.raises(DirectoryHeld) as caught:
        Environment.open(url)
    host = os.uname().nodename
    text = f"data directory is held by pid {os.getpid()} on host {host} (SQL on 127.0.0.1:6875) since 20"
    assert caught.value.primary.startswith(text)
    assert caught.value.hint == "Stop that server, or start this one with --take-over."
    first.announce({"SQL": "127.0.0.1:7000", "HTTP": "127.0.0.1:7001"})
    with pytest.raises(DirectoryHeld, match=r"SQL on 127\.0\.0\.1:7000, HTTP on"):
        Environment.open(url)
    first.close()
    first.close()
    second = Environment.open(url)
    assert second.epoch == first.epoch + 1
    second.close()
    holder = ClockShard(Shard.open(open_blobs(url), CLOCK_SHARD, epoch=None), 0).holder()
    assert holder is not None and holder.epoch == second.epoch and holder.released is not None


def test_take_over(url: str) -> None:
    lost: list[TidemillError] = []
    noticed = threading.Event()

    def on_lost(error: TidemillError) -> None:
        lost.append(error)
        noticed.set()

    first = Environment.open(url, on_lost=on_lost)
    first.create_shard("a-1", DESC)
    before = first.txns.commit({"a-1": rows(1)}).result()
    idle_read = first.oracle.read_ts()
    second = Environment.open(url, take_over=True)
    assert noticed.wait(60) and len(lost) == 1
    assert lost[0].sqlstate == "57P01"
    for call in (first.oracle.write_ts, first.oracle.read_ts):
        with pytest.raises((Fenced, LeaseLost)):
            call()
    with pytest.raises(TidemillError):
        first.txns.commit({"a-1": rows(2)}).result()
    assert second.oracle.read_ts() > idle_read
    after = second.txns.commit({"a-1": rows(3)}) if second.open_shard("a-1") else None
    assert after is not None and after.result() > max(before, idle_read)
    assert read(second) == [1, 3]
    assert read(second, idle_read) == [1]
    first.close()
    second.close()


def zombie(url: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A first server that does not notice by itself that it was taken over goes on writing; returns what it
    got away with."""
    monkeypatch.setattr(environment, "WATCH_SECONDS", 3600.0)
    monkeypatch.setattr(environment, "TAKE_OVER_WAIT_SECONDS", 0.0)
    first = Environment.open(url)
    first.create_shard("a-1", DESC)
    first.txns.commit({"a-1": rows(1)}).result()
    first.txns.maintain()
    old_shard = first.open_shard("a-1")
    second = Environment.open(url, take_over=True)
    second.open_shard("a-1")
    at = second.oracle.read_ts()
    seen = read(second, at)
    got_away: list[str] = []

    def attempt(what: str, call: Callable[[], object]) -> None:
        try:
            call()
            got_away.append(what)
        except (TidemillError, OSError):
            pass

    attempt("commit", lambda: first.txns.commit({"a-1": rows(2)}).result(timeout=30))
    part = old_shard.write_part(
        pa.table({"k": pa.array([9], pa.int32()), "mz_timestamp": [at], "mz_diff": [1]}), job="zombie"
    )

    def append() -> None:
        upper = old_shard.upper or 0
        old_shard.compare_and_append([part], min(upper, at), at + 1)

    attempt("append", append)
    attempt("lease", lambda: first._clock.extend(first._clock.leased + 10_000))  # pyright: ignore[reportPrivateUsage]
    attempt("evolve", lambda: old_shard.evolve(RelationDesc((*DESC.columns, Column("x", INT4)))))
    second.open_shard("a-1").refresh()
    if read(second, at) != seen:
        got_away.append("changed a read")
    second.close()
    first.close()
    return got_away


def test_old_epochs_never_write_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert zombie(url, monkeypatch) == []


def test_the_test_of_fencing_finds_a_break(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I2, broken on purpose: the epoch is not looked at."""
    for module in (committer, shard):
        monkeypatch.setattr(module, "check_epoch", lambda _id, state, _ours: state.epoch)
    assert zombie(url, monkeypatch) != []


def test_a_shard_is_fenced_on_first_use_past_everything_leased(url: str) -> None:
    first = Environment.open(url)
    first.create_shard("a-1", DESC)
    first.txns.commit({"a-1": rows(1)}).result()
    idle_until = first.oracle.leased
    first.close()
    second = Environment.open(url)
    assert second.start >= idle_until
    lazy = Shard.open(second.blobs, "a-1", epoch=None)
    assert lazy.epoch == first.epoch
    opened: list[Shard] = []
    threads = [threading.Thread(target=lambda: opened.append(second.open_shard("a-1"))) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(opened) == 8 and len({id(s) for s in opened}) == 1
    assert opened[0].epoch == second.epoch and (opened[0].upper or 0) >= idle_until
    second.close()


@pytest.mark.parametrize("where", ["epoch.before_fence", "epoch.fenced", "lease.before_put", "lease.put"])
def test_an_opening_that_fails_can_be_repeated(url: str, where: str) -> None:
    Environment.open(url).close()
    failpoints.arm(f"{where}=error")
    with pytest.raises(failpoints.FailpointError):
        Environment.open(url)
    failpoints.arm("")
    env = Environment.open(url)
    env.create_shard("a-1", DESC)
    env.txns.commit({"a-1": rows(1)}).result()
    assert read(env) == [1]
    env.close()


def test_formats(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A directory of format 0, as the house never gave away: no number.
    Shard.create(open_blobs(url), CLOCK_SHARD, CLOCK_DESC, epoch=0)
    migrated: list[int] = []
    monkeypatch.setitem(formats.MIGRATIONS, 0, lambda blobs, clock: migrated.append(clock.epoch))
    env = Environment.open(url)
    assert migrated == [1]
    env.close()
    clock = Shard.open(open_blobs(url), CLOCK_SHARD, epoch=None)
    assert formats.format_of(clock) == formats.FORMAT
    Environment.open(url).close()
    assert migrated == [1]
    # A newer one is refused and not touched.
    clock.refresh()
    clock.fence(clock.epoch + 1)
    clock.set_properties({"format": "7"})
    version = clock.version
    message = f"format 7, this version of tidemill reads up to format {formats.FORMAT}"
    with pytest.raises(Unsupported, match=message):
        Environment.open(url)
    clock.refresh()
    assert clock.version == version


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot open the data directory"):
        Environment.open(str(tmp_path / "file"))


class NoLock(DirectoryLock):
    """As on a store without locks."""

    def __init__(self, blobs: object) -> None:
        self._path = None
        self._descriptor = None


def test_heartbeat_instead_of_a_lock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "DirectoryLock", NoLock)
    for module in (environment, oracle):
        monkeypatch.setattr(module, "LEASE_MS", 5000)
    monkeypatch.setattr(oracle, "LEASE_AHEAD_MS", 4500)
    monkeypatch.setattr(environment, "_HEARTBEAT_POLL_SECONDS", 0.05)
    first = Environment.open(url)
    with pytest.raises(DirectoryHeld, match=f"held by pid {os.getpid()}"):
        Environment.open(url)
    # It dies without a word: the next waits out the lease.
    first.oracle.close()
    first._closed.set()  # pyright: ignore[reportPrivateUsage]
    began = time.monotonic()
    second = Environment.open(url)
    assert time.monotonic() - began > 4.5
    # In order: the next need not wait.
    second.close()
    monkeypatch.setattr(environment, "_HEARTBEAT_POLL_SECONDS", 3600.0)
    third = Environment.open(url)
    third.close()
    first.txns.close()


def test_the_clock_shard_keeps_to_itself(url: str) -> None:
    """Renewals and holders leave one row and few parts behind."""
    for _ in range(5):
        env = Environment.open(url)
        env.announce({"SQL": "here"})
        env.maintain()
        env.close()
    clock = ClockShard(Shard.open(open_blobs(url), CLOCK_SHARD, epoch=None), 0)
    assert [d for _, d in clock.holders()] == [1]
    assert len(clock.shard.parts) <= 16
