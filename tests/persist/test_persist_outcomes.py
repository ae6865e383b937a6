"""The four outcomes of a commit: done, lost the race, failed, unknown; and that an unknown one is never
repeated into a double."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.flaky import Fault, FlakyBlobs
from support.shards import DESC, Model, append, check_contents, check_files, contents, memory_folder, updates
from tidemill import failpoints
from tidemill.persist import committer, local, s3
from tidemill.persist.blob import BlobFailed, Blobs, BlobUnknown, open_blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.outcome import CommitFailed, CommitUnknown, UpperMismatch
from tidemill.persist.shard import Shard

ONE = ((1, "x"), 0, 1)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "RESOLVE_DELAYS", (0.0, 0.0))


@pytest.fixture
def flaky(folder: Blobs) -> FlakyBlobs:
    return FlakyBlobs(folder)


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.LATE, Fault.ECHO])
def test_an_unknown_outcome_is_resolved(flaky: FlakyBlobs, fault: Fault) -> None:
    shard = Shard.create(flaky, "u1", DESC, epoch=1)
    flaky.faults = [fault]
    append(shard, [ONE], 1)
    flaky.arrive()
    shard.refresh()
    assert (shard.version, shard.upper) == (1, 1)
    assert contents(shard, 0) == {(1, "x"): 1}
    check_files(flaky, "u1")


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.LOST_REQUEST, Fault.ECHO])
def test_a_new_epoch_whose_answer_is_lost_is_our_own(flaky: FlakyBlobs, fault: Fault) -> None:
    shard = Shard.create(flaky, "u1", DESC, epoch=1)
    flaky.faults = [fault]
    shard.fence(2, new=True)
    append(shard, [ONE], 1)
    assert (shard.epoch, shard.upper) == (2, 1)


def test_failed_means_nothing_happened(flaky: FlakyBlobs) -> None:
    shard = Shard.create(flaky, "u1", DESC, epoch=1)
    flaky.faults = [Fault.FAILED]
    with pytest.raises(CommitFailed) as failed:
        append(shard, [ONE], 1)
    assert failed.value.hint == "try later"
    assert Shard.open(flaky, "u1", epoch=1).version == 0
    append(shard, [ONE], 1)
    assert contents(shard, 0) == {(1, "x"): 1}


@pytest.mark.parametrize("arrives", [False, True])
def test_unknown_for_good_and_after(flaky: FlakyBlobs, arrives: bool) -> None:
    """The store goes away in the middle; the caller hears that it does not know. When the store is back,
    one look tells."""
    shard = Shard.create(flaky, "u1", DESC, epoch=1)
    flaky.faults = [Fault.LATE, Fault.LOST_REQUEST, Fault.LOST_REQUEST]
    part = shard.write_part(updates([ONE]), job="j")
    with pytest.raises(CommitUnknown):
        shard.compare_and_append([part], 0, 1)
    if arrives:
        flaky.arrive()
        with pytest.raises(UpperMismatch) as there:
            shard.compare_and_append([part], 0, 1)
        assert there.value.actual == 1
        assert part in shard.parts
    else:
        shard.compare_and_append([part], 0, 1)
        flaky.arrive()  # too late: the version is taken, by the same append
    assert contents(shard, 0) == {(1, "x"): 1}
    assert Shard.open(flaky, "u1", epoch=1).version == 1


def test_refused_and_nobody_can_say_by_whom(flaky: FlakyBlobs) -> None:
    """An echo of our own success, while reads fail: that is unknown too, not lost."""
    shard = Shard.create(flaky, "u1", DESC, epoch=1)
    flaky.faults = [Fault.ECHO]
    flaky.away = True
    with pytest.raises(CommitUnknown):
        append(shard, [ONE], 1)
    flaky.away = False
    assert shard.refresh()
    assert shard.upper == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(Fault), max_size=4), min_size=1, max_size=8))
def test_any_faults(plan: list[list[Fault]]) -> None:
    """Whatever goes wrong, a writer that looks before it repeats appends everything exactly once."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        append_through(FlakyBlobs(open_blobs(folder)), plan)


def append_through(flaky: FlakyBlobs, plan: list[list[Fault]]) -> None:
    shard = Shard.create(flaky, "u1", DESC, epoch=1, cache=PartCache())
    model = Model()
    for time, faults in enumerate(plan):
        update = ((time, "x"), time, 1)
        part = shard.write_part(updates([update]), job="j")
        flaky.faults = list(faults)
        while True:
            try:
                shard.compare_and_append([part], time, time + 1)
                break
            except (CommitFailed, CommitUnknown):
                flaky.arrive()
            except UpperMismatch as ahead:
                assert ahead.actual == time + 1
                assert part in shard.parts
                break
        model.append([update], time + 1)
    flaky.faults = []
    flaky.arrive()
    shard.refresh()
    check_contents(shard, model)
    check_contents(Shard.open(flaky, "u1", epoch=1, cache=PartCache()), model)


# A folder's own ways to go wrong.


@pytest.mark.parametrize("action", ["enospc", "eio"])
@pytest.mark.parametrize("name", [local.FP_PART_BEFORE_FSYNC, local.FP_ENTRY_TEMP_WRITTEN])
def test_full_or_broken_disk(folder: Blobs, name: str, action: str) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    failpoints.arm(f"{name}={action}")
    with pytest.raises(CommitFailed) as failed:
        append(shard, [ONE], 1)
    assert failed.value.hint
    assert failed.value.sqlstate == ("53100" if action == "enospc" else "58030")
    assert shard.version == Shard.open(folder, "u1", epoch=1).version == 0
    append(shard, [ONE], 1)
    assert contents(shard, 0) == {(1, "x"): 1}
    check_files(folder, "u1")


def test_a_directory_that_does_not_sync(folder: Blobs) -> None:
    """The entry has its name but may not survive a power cut: synced again before anybody is told."""
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    failpoints.arm(f"{local.FP_ENTRY_LINKED}=eio")
    append(shard, [ONE], 1)
    assert shard.version == Shard.open(folder, "u1", epoch=1).version == 1


def test_a_directory_that_never_syncs(folder: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    part = shard.write_part(updates([ONE]), job="j")

    def broken(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    with monkeypatch.context() as patch:
        patch.setattr(local, "_sync_directory", broken)
        with pytest.raises(CommitUnknown):
            shard.compare_and_append([part], 0, 1)
    shard.refresh()
    assert shard.upper == 1


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_read_only_directory(folder: Blobs, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """By the system call: the superuser, as whom tests may run, is refused nothing."""
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    part = shard.write_part(updates([ONE]), job="j")

    def refuse(source: str, target: str) -> None:
        raise OSError(code, os.strerror(code), target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        with pytest.raises(CommitFailed) as failed:
            shard.compare_and_append([part], 0, 1)
        assert failed.value.hint
    shard.compare_and_append([part], 0, 1)
    assert contents(shard, 0) == {(1, "x"): 1}


def test_no_temporary_file_stays(folder: Blobs, tmp_path: Path) -> None:
    shard = Shard.create(folder, "u1", DESC, epoch=1)
    failpoints.arm(f"{local.FP_ENTRY_TEMP_WRITTEN}=eio")
    with pytest.raises(CommitFailed):
        append(shard, [ONE], 1)
    assert [p for p in tmp_path.rglob("*") if p.name.startswith(".tmp-")] == []


def test_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens there. A write's outcome is unknown (a repeated request may have got through), a
    read's is not."""
    monkeypatch.setattr(s3, "RETRY_SECONDS", 1)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        options = {"endpoint": endpoint, "region": "us-east-1", "allow_http": "true"}
        options |= {"access_key_id": "k", "secret_access_key": "s"}
        away = open_blobs("s3://bucket/prefix", options)
        with pytest.raises(BlobUnknown) as unknown:
            away.put_if_absent("x", b"x")
        assert unknown.value.hint
        assert unknown.value.transient
        for read in (lambda: away.get("x"), lambda: away.size("x"), lambda: away.list("x")):
            with pytest.raises(BlobFailed):
                read()
