"""Kills a writer of shards at a named failpoint, over and over, and checks what it left behind.

Run as a program: `python -m support.crash FOLDER ROUNDS SEED`, prints one JSON line. It imports everything
once and forks for each round, so a round costs tens of milliseconds; it must never use delta-rs itself (its
threads would not survive the fork), only its children do. The child writes a ledger: an intent before each
append, an acknowledgement after it. After the kill the shard must hold every acknowledged append once, an
unacknowledged one whole or not at all, and at every old time what it held before.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections import Counter

from support.lines import whole_lines
from support.shards import DESC, Row, Update, append, check_files, contents
from tidemill import failpoints

# Imported for the failpoints that it declares, wherever this runs first.
from tidemill.persist import local as local
from tidemill.persist.blob import Blobs, open_blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.log import ShardMissing
from tidemill.persist.settings import Ages, Settings
from tidemill.persist.shard import Shard

# Everything happens within a few appends.
EAGER = Settings(checkpoint_every=4, clean_after_seconds=0, orphan_grace_seconds=0, orphan_every_seconds=0)
NOTHING_KEPT = Ages(log_keep_seconds=0, removed_keep_seconds=0)
MAIN = "main"
# Appends of a child that is not killed before; enough for every failpoint to be met a few times.
STEPS = 60
HISTORY = 20


def names() -> list[str]:
    return sorted(name for name in failpoints.NAMES if name.startswith("persist."))


class Ledger:
    """Lines in a file, written with one system call each: a kill loses at most the one it comes upon."""

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, kind: str, lower: int, upper: int, updates: list[Update]) -> None:
        line = json.dumps([kind, lower, upper, updates]).encode() + b"\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, line)
        os.close(descriptor)

    def read(self) -> list[tuple[str, int, int, list[Update]]]:
        lines = [json.loads(line) for line in whole_lines(self.path)]
        return [(k, lo, up, [((r[0], r[1]), t, d) for r, t, d in updates]) for k, lo, up, updates in lines]


def open_or_create(blobs: Blobs, shard_id: str, epoch: int) -> Shard:
    cache = PartCache()
    try:
        shard = Shard.open(blobs, shard_id, epoch=epoch, settings=EAGER, cache=cache)
    except ShardMissing:
        return Shard.create(
            blobs, shard_id, DESC, epoch=epoch, ages=NOTHING_KEPT, settings=EAGER, cache=cache
        )
    shard.fence(epoch)
    return shard


def work(blobs: Blobs, ledger: Ledger, epoch: int, seed: int) -> None:
    """The child: appends, and looks after the shard, until it is killed."""
    dice = random.Random(seed)
    shard = open_or_create(blobs, MAIN, epoch)
    open_or_create(blobs, f"side-{epoch}", epoch)
    for _ in range(STEPS):
        lower = shard.upper
        assert lower is not None
        rows: list[Row] = [(dice.randrange(5), "x") for _ in range(dice.randrange(1, 4))]
        of: list[Update] = [(row, lower, dice.choice([1, 1, -1])) for row in rows]
        ledger.write("intent", lower, lower + 1, of)
        append(shard, of, lower + 1)
        ledger.write("ack", lower, lower + 1, [])
        shard.downgrade_since(max(0, lower - HISTORY))
        if dice.random() < 0.5:
            shard.maintain(lambda job: True)


def fold(history: list[Update], time: int) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for row, at, diff in history:
        if at <= time:
            found[row] += diff
    return Counter({row: count for row, count in found.items() if count})


def check(blobs: Blobs, ledger: Ledger) -> None:
    """Fold the ledger and compare; raises AssertionError with what is wrong."""
    entries = ledger.read()
    try:
        shard = Shard.open(blobs, MAIN, epoch=None, cache=PartCache())
    except ShardMissing:
        assert not entries, "the shard is gone, with what was appended to it"
        return
    check_files(blobs, MAIN)
    assert shard.upper is not None
    # A later intent for the same time says that the earlier one never happened: its writer saw the old upper.
    intents = {lower: (upper, of) for kind, lower, upper, of in entries if kind == "intent"}
    for kind, lower, upper, _ in entries:
        assert kind != "ack" or upper <= shard.upper, f"the acknowledged append [{lower}, {upper}) is lost"
    history = [update for upper, of in intents.values() if upper <= shard.upper for update in of]
    for time in range(shard.since, shard.upper):
        assert contents(shard, time) == fold(history, time), f"at {time}"


def run(folder: str, rounds: int, seed: int) -> dict[str, object]:
    dice = random.Random(seed)
    kills: Counter[str] = Counter()
    for number in range(rounds):
        name = names()[number % len(names())]
        # A fresh folder now and then: some failpoints are only met early in a shard's life, others late.
        home = f"{folder}/{number // (3 * len(names()))}"
        blobs = open_blobs(home)
        ledger = Ledger(f"{home}-ledger")
        nth = 1 if name in ("persist.create.after_entry0", "persist.fence.written") else dice.randrange(1, 4)
        if name == "persist.fence.written" and not ledger.read():
            name = "persist.entry.linked"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                failpoints.arm(f"{name}=kill@{nth}")
                work(blobs, ledger, number + 1, dice.randrange(2**30))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            raise AssertionError(f"round {number}: {name}@{nth} did not kill, status {status}")
        kills[name] += 1
        check(blobs, ledger)
    return {"rounds": rounds, "kills": kills}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
