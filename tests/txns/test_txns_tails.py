"""A log whose newest entries were deleted: the shard says so, or nothing is lost; never a silently shorter
history."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill import failpoints
from tidemill.catalog.ops import AddColumnOp, CreateTableOp, DropOp
from tidemill.catalog.store import CATALOG_SHARD, Catalog
from tidemill.errors import DataCorrupted, TidemillError
from tidemill.persist import environment
from tidemill.persist.blob import open_blobs
from tidemill.persist.environment import Environment
from tidemill.persist.lease import CLOCK_SHARD
from tidemill.persist.log import ShardMissing, entry_path, list_log, log_folder
from tidemill.persist.shard import Shard
from tidemill.persist.txns.marks import Marks
from tidemill.persist.txns.record import TXNS_SHARD, TxnMark, Unapplied, marks, rows, unapplied
from tidemill.types.model import INT4, Column, RelationDesc

DESC = RelationDesc((Column("k", INT4),))
A, B = "a-1", "b-1"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def keys(*of: int) -> pa.Table:
    return pa.table({"k": pa.array(of, pa.int32()), "mz_diff": pa.array([1] * len(of), pa.int64())})


def read(env: Environment, shard_id: str) -> list[int]:
    at = env.oracle.read_ts()
    env.txns.apply_until(shard_id, at)
    with env.open_shard(shard_id).snapshot(at, readable=at + 1) as snapshot:
        return sorted(snapshot.read().column("k").to_pylist())


def newest(url: str, shard_id: str) -> Path:
    blobs = open_blobs(url)
    return Path(url) / entry_path(shard_id, max(list_log(blobs, shard_id).entries))


def killed(life: Callable[[], None]) -> None:
    """Run it in a process of its own that ends by kill -9, at the latest when it is done."""
    child = os.fork()
    if child == 0:
        try:
            life()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def write(url: str, *, close: bool) -> None:
    env = Environment.open(url)
    for shard_id in (A, B):
        try:
            env.open_shard(shard_id)
        except ShardMissing:
            env.create_shard(shard_id, DESC)
    for n in range(3):
        env.txns.commit({A: keys(n), B: keys(n)}).result()
        env.txns.apply_until(A, env.oracle.read_ts())
    if close:
        env.close()


def refused(env: Environment, shard_id: str, file: Path) -> DataCorrupted:
    with pytest.raises(DataCorrupted) as caught:
        env.open_shard(shard_id)
    assert file.name in caught.value.primary and "missing" in caught.value.primary
    assert caught.value.sqlstate == "XX001" and caught.value.hint
    return caught.value


@pytest.mark.parametrize("entries", [1, 2, 99])
def test_after_a_clean_stop(url: str, entries: int) -> None:
    write(url, close=True)
    kept: list[tuple[Path, bytes]] = []
    for _ in range(min(entries, len(list_log(open_blobs(url), A).entries))):
        file = newest(url, A)
        kept.append((file, file.read_bytes()))
        file.unlink()
    for _ in range(2):  # refusing changes nothing
        env = Environment.open(url)
        refused(env, A, kept[-1][0])
        with pytest.raises(DataCorrupted):
            env.txns.readable_upper(A)
        # The damage has the scope of its shard.
        assert read(env, B) == [0, 1, 2]
        env.close()
    for file, data in kept:
        file.write_bytes(data)
    env = Environment.open(url)
    assert read(env, A) == [0, 1, 2]
    env.close()


def test_after_kill_9(url: str) -> None:
    """A part is covered by its row or by the mark, whatever had become of it: an error, or all rows."""
    killed(lambda: write(url, close=False))
    found: set[str] = set()
    for entries in range(1, len(list_log(open_blobs(url), A).entries) + 1):
        copy = f"{url}-{entries}"
        shutil.copytree(url, copy)
        for _ in range(entries):
            newest(copy, A).unlink()
        first_missing = Path(copy) / entry_path(A, len(list_log(open_blobs(copy), A).entries))
        env = Environment.open(copy)
        try:
            assert read(env, A) == [0, 1, 2]
            found.add("whole")
        except DataCorrupted:
            refused(env, A, first_missing)
            found.add("refused")
        assert read(env, B) == [0, 1, 2]
        env.close()
    assert "refused" in found


@pytest.mark.parametrize("where", ["txns.apply.after", "txns.retract.before", "txns.entry.put"])
def test_a_death_is_never_taken_for_a_loss(url: str, where: str) -> None:
    """What was not written is not missing: dying everywhere around the mark leaves a directory that opens."""
    for nth in range(1, 5):

        def life(nth: int = nth) -> None:
            failpoints.arm(f"{where}=kill@{nth}")
            write(url, close=True)

        killed(life)
        env = Environment.open(url)
        there = [read(env, s) for s in (A, B)] if os.path.isdir(f"{url}/{log_folder(B)}") else []
        for shard_id in (A, B)[: len(there)]:
            expected = env.txns.marks.expected(shard_id)
            assert expected is None or env.open_shard(shard_id).version >= expected
        env.close()


def test_a_dropped_shard_is_not_expected(url: str) -> None:
    write(url, close=True)
    env = Environment.open(url)
    assert env.txns.marks.expected(A) is not None
    env.open_shard(A)
    env.drop_shard(A)
    with pytest.raises(ShardMissing):
        env.open_shard(A)
    env.maintain()
    assert env.txns.marks.shards() == [B]
    env.close()
    env = Environment.open(url)
    with pytest.raises(ShardMissing):
        env.open_shard(A)
    assert env.txns.marks.shards() == [B]
    env.close()


def test_a_damaged_shard_can_be_dropped(url: str) -> None:
    write(url, close=True)
    newest(url, A).unlink()
    env = Environment.open(url)
    with pytest.raises(DataCorrupted):
        env.open_shard(A)
    env.drop_shard(A)
    assert not os.path.exists(f"{url}/shards/{A}")
    env.close()


def test_maintenance_and_idleness_write_no_marks_of_their_own(url: str) -> None:
    env = Environment.open(url)
    env.create_shard(A, DESC)
    env.txns.commit({A: keys(1)}).result()
    env.maintain()
    txns = env._txns_shard  # pyright: ignore[reportPrivateUsage]
    version = txns.version
    for _ in range(3):
        env.maintain()
    assert txns.version == version
    env.close()


def test_what_ticks_write_is_marked_now_and_then_and_at_the_end(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = Environment.open(url)
    env.create_shard(A, DESC)
    env.close()
    env = Environment.open(url)
    shard = env.open_ingested(A)
    for upper in (1, 2):
        shard.compare_and_append([], shard.upper, (shard.upper or 0) + upper)
    env.maintain()
    assert (env.txns.marks.expected(A) or 0) < shard.version
    monkeypatch.setattr(environment, "MARK_SECONDS", 0.0)
    env.maintain()
    assert env.txns.marks.expected(A) == shard.version
    shard.compare_and_append([], shard.upper, (shard.upper or 0) + 1)
    env.close()
    file = newest(url, A)
    file.unlink()
    env = Environment.open(url)
    with pytest.raises(DataCorrupted, match=file.name):
        env.open_ingested(A)
    env.close()


@pytest.mark.parametrize("shard_id", [TXNS_SHARD, CLOCK_SHARD, CATALOG_SHARD])
@pytest.mark.parametrize("entries", [1, 2, 4, 99])
def test_system_shards_after_a_clean_stop(url: str, shard_id: str, entries: int) -> None:
    env = Environment.open(url)
    catalog = Catalog.open(env)
    public = catalog.state.resolve_schema(["public"], "materialize").id
    catalog.transact([CreateTableOp(public, "t", DESC)])
    (table,) = catalog.state.tables()
    for n in range(3):
        env.oracle.advance_to(env.oracle.leased)  # so that each commit needs a lease of its own
        env.txns.commit({table.shard: keys(n)}).result()
    env.close()
    kept: list[tuple[Path, bytes]] = []
    for _ in range(min(entries, len(list_log(open_blobs(url), shard_id).entries))):
        file = newest(url, shard_id)
        kept.append((file, file.read_bytes()))
        file.unlink()

    def opened() -> list[int]:
        env = Environment.open(url)
        try:
            Catalog.open(env)
            return read(env, table.shard)
        finally:
            env.close()

    if (shard_id, entries) == (CLOCK_SHARD, 1):
        # It only said that the directory was released: nothing is lost with it.
        assert opened() == [0, 1, 2]
        return
    for _ in range(2):
        with pytest.raises(DataCorrupted, match=kept[-1][0].name):
            opened()
    for file, data in kept:
        file.write_bytes(data)
    assert opened() == [0, 1, 2]


def test_every_acknowledged_change_of_the_catalog_is_covered(url: str) -> None:
    def life() -> None:
        catalog = Catalog.open(Environment.open(url))
        public = catalog.state.resolve_schema(["public"], "materialize").id
        catalog.transact([CreateTableOp(public, "t", DESC)])
        (table,) = catalog.state.tables()
        catalog.transact([AddColumnOp(table.id, Column("c", INT4))])
        catalog.transact([CreateTableOp(public, "u", DESC)])
        catalog.transact([DropOp(table.id)])

    killed(life)
    file = newest(url, CATALOG_SHARD)
    whole = file.read_bytes()
    file.unlink()
    env = Environment.open(url)
    with pytest.raises(DataCorrupted, match=file.name):
        Catalog.open(env)
    env.close()
    file.write_bytes(whole)
    env = Environment.open(url)
    assert [t.name for t in Catalog.open(env).state.tables()] == ["u"]
    env.close()


def test_a_note_that_fails_does_not_fail_the_fact(url: str) -> None:
    env = Environment.open(url)
    catalog = Catalog.open(env)
    public = catalog.state.resolve_schema(["public"], "materialize").id
    failpoints.arm("txns.part.written=error@1")
    catalog.transact([CreateTableOp(public, "t", DESC)])
    failpoints.arm("")
    (table,) = catalog.state.tables()
    assert env.txns.marks.expected(table.shard) is None
    env.maintain()
    assert env.txns.marks.expected(table.shard) == 0
    env.close()


def test_a_directory_of_format_1(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without marks and notes: it opens, and gets them."""
    with monkeypatch.context() as m:
        m.setattr(Marks, "reach", lambda self, shard_id, version: None)
        m.setattr(environment.formats, "FORMAT", 1)
        m.setattr(environment.formats, "PROPERTIES", {"format": "1"})
        write(url, close=True)
    env = Environment.open(url)
    assert env.txns.marks.shards() == []
    assert read(env, A) == [0, 1, 2]
    env.close()
    clock = Shard.open(open_blobs(url), CLOCK_SHARD, epoch=None)
    assert environment.formats.format_of(clock) == 2
    file = newest(url, A)
    file.unlink()
    env = Environment.open(url)
    refused(env, A, file)
    # It was not used, and has no mark yet.
    assert env.txns.marks.expected(B) is None
    env.close()


def test_take_over_beside_a_living_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The living one goes on leasing, committing and marking while the other looks: nothing seems missing."""
    monkeypatch.setattr(environment, "TAKE_OVER_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(environment, "MARK_SECONDS", 0.0)
    write(url, close=True)
    first = Environment.open(url)
    first.open_shard(A)
    committed = 3
    for _ in range(5):
        try:
            for n in range(20):
                first.oracle.advance_to(first.oracle.leased)
                first.txns.commit({A: keys(100 + n)}).result()
                committed += 1
                if n == 10:
                    first.maintain()
        except TidemillError as e:
            pytest.fail(f"{e}")
        second = Environment.open(url, take_over=True)
        assert len(read(second, A)) == committed
        first.close()
        first = second
    first.close()


def test_marks_in_rows() -> None:
    mark = TxnMark.of("s", 17)
    written = rows([mark], [TxnMark.of("s", 16)], 9)
    assert marks(written.slice(0, 1)) == {"s": mark}
    assert unapplied(written.slice(0, 1)) == list[Unapplied]()
    for text in ('{"reached":-1}', '{"reached":x}', '{"reached":'):
        with pytest.raises(DataCorrupted, match="mark"):
            marks(pa.table({"shard": ["s"], "part": [text], "mz_diff": [1]}))


def test_moves_of_marks() -> None:
    known = Marks()
    known.recover({"a": TxnMark.of("a", 3), "b": TxnMark.of("b", 4)})
    assert not known.moves()
    known.reach("a", 3)
    assert not known.moves()
    known.reach("a", 5)
    known.reach("c", 0)
    first = known.moves()
    assert first.added == [TxnMark.of("a", 5), TxnMark.of("c", 0)] and first.retracted == [TxnMark.of("a", 3)]
    # The entry failed: it comes again; and what is reached meanwhile with the next.
    known.reach("a", 6)
    second = known.moves()
    assert second.added == [TxnMark.of("a", 6), TxnMark.of("c", 0)]
    known.reach("a", 7)
    known.forget("c")
    known.wrote(second)
    assert known.expected("a") == 6 and known.expected("c") is None
    third = known.moves()
    assert third.added == [TxnMark.of("a", 7)] and third.retracted == [TxnMark.of("a", 6), TxnMark.of("c", 0)]
    known.wrote(third)
    known.reach("c", 9)
    assert not known.moves()
    assert sorted(known.shards()) == ["a", "b"]
