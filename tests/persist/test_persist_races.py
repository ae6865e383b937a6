"""Two writers and a compaction against each other: one winner each, no row doubled, no row lost."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from support.shards import DESC, Row, append, check_files, contents, memory_folder
from tidemill.persist.blob import Blobs, open_blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.outcome import UpperMismatch
from tidemill.persist.settings import Settings
from tidemill.persist.shard import Shard

WRITERS = 2


def race(blobs: Blobs, rounds: int) -> None:
    """Every writer has its own handle and tries every time; compaction and maintenance run on two more
    handles all the while."""
    first = Shard.create(blobs, "u1", DESC, epoch=1)
    handles = [Shard.open(blobs, "u1", epoch=1, cache=PartCache()) for _ in range(WRITERS)]
    start = threading.Barrier(WRITERS)
    over = threading.Event()
    won: list[list[int]] = [[] for _ in range(WRITERS)]
    failures: list[BaseException] = []

    def guarded(of: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                of()
            except BaseException as error:
                failures.append(error)
                over.set()
                start.abort()

        return run

    def write(who: int) -> None:
        for time in range(rounds):
            start.wait()
            try:
                append(handles[who], [((time, str(who)), time, 1)], time + 1, lower=time)
                won[who].append(time)
            except UpperMismatch as lost:
                assert lost.actual == time + 1

    def compact(settings: Settings) -> None:
        handle = Shard.open(blobs, "u1", epoch=1, cache=PartCache(), settings=settings)
        while not over.is_set():
            handle.refresh()
            handle.compact(everything=True)
            handle.maintain()
            # Every merge rewrites the shard, so at full speed the rounds would crawl.
            over.wait(0.01)

    threads = [threading.Thread(target=guarded(lambda who=who: write(who))) for who in range(WRITERS)]
    keepers = [
        threading.Thread(target=guarded(lambda: compact(Settings(checkpoint_every=20)))) for _ in range(2)
    ]
    for thread in (*threads, *keepers):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    for thread in keepers:
        thread.join()
    assert not failures, failures[0]
    expected: Counter[Row] = Counter({(time, str(who)): 1 for who in range(WRITERS) for time in won[who]})
    assert sorted(time for who in won for time in who) == list(range(rounds))  # one winner each
    first.refresh()
    assert contents(first, rounds - 1) == expected
    check_files(blobs, "u1")
    again = Shard.open(blobs, "u1", epoch=1, cache=PartCache())
    for time in range(0, rounds, max(1, rounds // 20)):
        assert contents(again, time) == {row: n for row, n in expected.items() if (row[0] or 0) <= time}


@pytest.mark.timeout(600)
def test_races() -> None:
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        race(open_blobs(folder), 400)


@pytest.mark.s3
def test_races_on_s3(request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue("s3_server")
    race(open_blobs(server.fresh_url(), server.options), 15)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_ten_thousand_races() -> None:
    for _ in range(20):
        with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
            race(open_blobs(folder), 500)


# The same between processes: as many as they like append, each tells what it got through.
WRITER = """
import json, sys
from support.shards import append
from tidemill.persist.blob import open_blobs
from tidemill.persist.outcome import UpperMismatch
from tidemill.persist.shard import Shard
folder, who, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
shard = Shard.open(open_blobs(folder), "u1", epoch=1)
won, lost = [], 0
while len(won) < rounds:
    time = shard.upper
    try:
        append(shard, [((time, str(who)), time, 1)], time + 1)
        won.append(time)
    except UpperMismatch:
        lost += 1
    if time % 10 == who:
        shard.compact(everything=True)
print(json.dumps([won, lost]))
"""


@pytest.mark.timeout(600)
def test_races_between_processes() -> None:
    rounds = 60
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        shard = Shard.create(open_blobs(folder), "u1", DESC, epoch=1)
        tests = Path(__file__).parents[1]
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, folder, str(who), str(rounds)],
                cwd=tests,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for who in range(WRITERS)
        ]
        expected: Counter[Row] = Counter()
        for who, writer in enumerate(writers):
            out, err = writer.communicate(timeout=500)
            assert writer.returncode == 0, err[-2000:]
            won, _ = json.loads(out)
            expected.update((time, str(who)) for time in won)
        shard.refresh()
        assert shard.upper == WRITERS * rounds
        assert contents(shard, WRITERS * rounds - 1) == expected
        assert max(expected.values()) == 1
        check_files(open_blobs(folder), "u1")
