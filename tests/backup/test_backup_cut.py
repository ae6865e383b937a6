"""Backups of a directory that is being written: each is of one moment, and equal to the original at every
time that both have."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tidemill.backup.manifest import names, prune, read_manifest
from tidemill.backup.restore import find, restore
from tidemill.backup.take import take
from tidemill.catalog.store import Catalog
from tidemill.errors import TidemillError
from tidemill.persist import committer
from tidemill.persist.blob import BlobInfo, Blobs, open_blobs
from tidemill.persist.environment import Environment
from tidemill.persist.log import cleaned_past, list_log
from tidemill.persist.settings import Settings
from tidemill.persist.shard import Shard
from tidemill.types.model import INT8, Column, RelationDesc

DESC = RelationDesc((Column("n", INT8),))
# Both in every transaction.
PAIR = ("left", "right")
# A row of the second is only written when the first has it, by two appends: as bindings and their data.
BOUND = ("bindings", "data")
SETTINGS = Settings(checkpoint_every=8, clean_after_seconds=0)


def table(*values: int) -> pa.Table:
    rows = pa.array(values, pa.int64())
    return pa.table({"n": rows, "mz_diff": pa.array([1] * len(values), pa.int64())})


class Load:
    """Writers of a directory, until they are stopped. `done` is the last transaction that was acknowledged,
    `bound` the last row of BOUND's data."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.done = self.bound = 0
        self.failed: list[BaseException] = []
        self._stop = threading.Event()
        for shard_id in PAIR:
            environment.create_shard(shard_id, DESC)
        for shard_id in BOUND:
            environment.create_foreign(shard_id, DESC)
        self._threads = [threading.Thread(target=self._run, args=(w,)) for w in self._writers()]
        for thread in self._threads:
            thread.start()

    def _writers(self) -> tuple[Any, ...]:
        return self._commit, self._append, lambda: self.environment.maintain()

    def _run(self, step: Any) -> None:
        try:
            while not self._stop.is_set():
                step()
        except BaseException as e:
            self.failed.append(e)
            raise

    def _commit(self) -> None:
        number = self.done + 1
        self.environment.txns.commit({shard_id: table(number) for shard_id in PAIR}).result(60)
        self.done = number

    def _append(self) -> None:
        number = self.bound + 1
        for shard_id in BOUND:
            shard = self.environment.open_ingested(shard_id)
            at = shard.upper or 0
            rows = table(number).add_column(1, "mz_timestamp", pa.array([at], pa.int64()))
            shard.compare_and_append([shard.write_part(rows, job="ingest-e1-1")], at, at + 1)
        self.bound = number

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not self.failed


@contextmanager
def opened(folder: Path) -> Generator[Environment]:
    environment = Environment.open(str(folder), settings=SETTINGS)
    try:
        Catalog.open(environment)
        yield environment
    finally:
        environment.close()


def contents(shard: Shard, at: int) -> Counter[int]:
    with shard.snapshot(at) as snapshot:
        found = snapshot.read().to_pydict()
    return Counter({n: d for n, d in zip(found["n"], found["mz_diff"], strict=True) if d})


def backups(tmp_path: Path) -> Blobs:
    return open_blobs(str(tmp_path / "backups"))


def restored(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / f"restored-{name}"
    place = backups(tmp_path)
    restore(place, find(place, name), open_blobs(str(folder)), None)
    return folder


class Busy:
    """A store in which something happens whenever a log was listed."""

    def __init__(self, load: Load) -> None:
        self._blobs = load.environment.blobs
        self._load = load

    def __getattr__(self, name: str) -> Any:
        return getattr(self._blobs, name)

    def list(self, prefix: str) -> list[BlobInfo]:
        found = self._blobs.list(prefix)
        _wait(self._load, 1)
        return found


def _wait(load: Load, number: int) -> None:
    """Until so many more transactions and appends are there."""
    done, bound = load.done + number, load.bound + number
    while (load.done < done or load.bound < bound) and not load.failed:
        threading.Event().wait(0.005)


def test_backups_under_load(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as environment:
        load = Load(environment)
        acknowledged: dict[str, tuple[int, int]] = {}
        try:
            for _ in range(2):
                _wait(load, 15)
                before = load.done, load.bound
                taken = take(cast("Blobs", Busy(load)), backups(tmp_path), None)
                acknowledged[taken.manifest.name] = before
        finally:
            load.stop()
        for name, (done, bound) in acknowledged.items():
            with opened(restored(tmp_path, name)) as copy:
                assert copy.id == environment.id and copy.history != environment.history
                _check(environment, copy, done, bound)


def _check(original: Environment, copy: Environment, done: int, bound: int) -> None:
    ours, theirs = ([e.open_shard(s) for s in PAIR] for e in (copy, original))
    rows = [contents(shard, copy.start - 1) for shard in ours]
    for shard in ours:
        uri, _ = copy.blobs.table_uri(f"shards/{shard.id}")
        assert DeltaTable(uri).version() == shard.version, "others read the restored table"
        checkpoints = list_log(copy.blobs, shard.id).checkpoints
        assert cleaned_past(copy.blobs, shard.id, 0) == bool(checkpoints)
    assert rows[0] == rows[1], "a part of a transaction is in the backup"
    assert rows[0] == Counter(range(1, len(rows[0]) + 1)) and len(rows[0]) >= done
    for shard, other in zip(ours, theirs, strict=True):
        original.txns.apply_until(other.id, original.oracle.read_ts())
        with shard.snapshot(copy.start - 1) as snapshot:
            times = {t for p in snapshot.parts for t in (p.min_time, p.max_time)}
        first = max(shard.since, other.since)
        for at in [at for time in sorted(times)[::5] for at in (time - 1, time) if at >= first]:
            assert contents(shard, at) == contents(other, at)
    binding, data = (copy.open_ingested(s) for s in BOUND)
    assert (binding.upper or 0) >= (data.upper or 0) >= bound, "data without its binding"
    for at in range(max(data.since, original.open_ingested(data.id).since), data.upper or 0, 5):
        assert (
            contents(data, at) == contents(original.open_ingested(data.id), at) == Counter(range(1, at + 2))
        )


def test_the_order_of_cause_and_effect_does_not_need_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's clock stands still, and then goes back."""
    now = committer.wall_ms() + 60_000
    monkeypatch.setattr(committer, "wall_ms", lambda: now)
    with opened(tmp_path / "data") as environment:
        load = Load(environment)
        _wait(load, 5)
        now -= 3_600_000
        _wait(load, 5)
        done, bound = load.done, load.bound
        taken = take(cast("Blobs", Busy(load)), backups(tmp_path), None)
        load.stop()
        with opened(restored(tmp_path, taken.manifest.name)) as copy:
            _check(environment, copy, done, bound)


def test_what_has_not_changed_is_not_copied_again(tmp_path: Path) -> None:
    with opened(tmp_path / "data") as environment:
        environment.create_shard(PAIR[0], DESC)
        time = environment.txns.commit({PAIR[0]: table(*range(1000))}).result(60)
        environment.txns.apply_until(PAIR[0], time)
        place = backups(tmp_path)
        first = take(environment.blobs, place, None)
        files = {info.path: info.modified for info in place.list("shards")}
        told: list[tuple[int, int]] = []
        time = environment.txns.commit({PAIR[0]: table(5000)}).result(60)
        environment.txns.apply_until(PAIR[0], time)
        second = take(environment.blobs, place, None, lambda done, total: told.append((done, total)))
        assert first.manifest.name < second.manifest.name
        assert {i.path: i.modified for i in place.list("shards") if i.path in files} == files
        shared = first.manifest.parts.keys() & second.manifest.parts.keys()
        assert any(path.startswith(f"shards/{PAIR[0]}/") for path in shared)
        new = sum(s.bytes for path, s in second.manifest.parts.items() if path not in files)
        assert second.copied == new + second.manifest.archive.bytes
        assert told[0][0] > 0 and told[-1][0] == told[-1][1]
        # What was lost of the folder is copied again.
        lost = next(path for path in shared if path.startswith(f"shards/{PAIR[0]}/"))
        place.delete([lost])
        third = take(environment.blobs, place, None).manifest
        assert place.size(lost) == third.parts[lost].bytes
        # Only what the last one needs is left, and it is whole.
        assert prune(place, 1) == [first.manifest.name, second.manifest.name]
        assert names(place) == [third.name]
        assert {i.path for i in place.list("shards")} == set(third.parts)
        with opened(restored(tmp_path, third.name)) as copy:
            shard = copy.open_shard(PAIR[0])
            assert contents(shard, copy.start - 1) == Counter([*range(1000), 5000])


@pytest.mark.parametrize("harm", ["removed", "cut", "changed"])
def test_damage_is_refused(tmp_path: Path, harm: str) -> None:
    """Whichever file it is; then nothing is restored."""
    with opened(tmp_path / "data") as environment:
        environment.create_shard(PAIR[0], DESC)
        environment.txns.apply_until(
            PAIR[0], environment.txns.commit({PAIR[0]: table(*range(50))}).result(60)
        )
        place = backups(tmp_path)
        manifest = take(environment.blobs, place, None).manifest
    for info in [*place.list("backups"), *place.list("shards")]:
        path = tmp_path / "backups" / info.path
        data = path.read_bytes()
        if harm == "removed":
            path.unlink()
        else:
            middle = len(data) // 2
            path.write_bytes(
                data[:middle]
                if harm == "cut"
                else data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            )
        with pytest.raises(TidemillError) as raised:
            restored(tmp_path, manifest.name)
        if harm == "removed" and path.name.endswith(".json"):
            assert raised.value.primary == f'there is no backup "{manifest.name}" in "{place.url}"'
        else:
            assert raised.value.primary == f'file "{info.path}" of the backup is damaged'
        assert not (tmp_path / f"restored-{manifest.name}").exists()
        path.write_bytes(data)
    restored(tmp_path, manifest.name)
    with pytest.raises(TidemillError, match="is not empty"):
        restored(tmp_path, manifest.name)
    assert read_manifest(place, manifest.name) == manifest
