"""Kills a process that writes transactions, over and over, and checks a ledger after every death.

A script, run by `test_txns_crash.py`: it stays free of threads and forks one child per round, so that a round
costs tens of milliseconds and not an interpreter's start. A child opens the data directory, checks everything
that the ledger knows, writes transactions from several threads, looks after the shards, and dies at an armed
failpoint or closes in order. The ledger is a file beside the directory with one JSON line per intent, outcome
and read; a line is written before and after the deed, so a death leaves exactly the intents without outcome
open.

Checked after every death: every acknowledged transaction is there once; one without outcome is there whole or
not at all; one that failed is not there; what was read at a time reads the same; times only go forward.

    python -m txns.txns_driver FOLDER --rounds 100 --seed 1 [--plant BREAK]

`--plant` breaks the product on purpose; the driver must then find it (exit status 3), which tests the driver.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from typing import Any

import pyarrow as pa

from support.lines import whole_lines
from tidemill import failpoints
from tidemill.catalog.ops import AddColumnOp, CreateTableOp, DropOp
from tidemill.catalog.store import Catalog
from tidemill.errors import TidemillError
from tidemill.persist import environment
from tidemill.persist.environment import Environment
from tidemill.persist.outcome import CommitUnknown
from tidemill.persist.settings import Settings
from tidemill.persist.txns import pending
from tidemill.persist.txns import txns as txns_module
from tidemill.time.clock import Clock, SystemClock
from tidemill.time.oracle import LeaseStore, Oracle
from tidemill.time.steering import Steering
from tidemill.types.model import INT4, INT8, TEXT, Column, RelationDesc

TABLES = ("a", "b", "c")
DESC = RelationDesc((Column("txn", INT8), Column("n", INT4)))
WRITERS = 3
TXNS_PER_WRITER = 4
# Everything is due all the time: checkpoints, cleaning and sweeping are part of what is killed. The grace
# period must outlast the longest stall of a put: its temporary file would be swept from under it.
SETTINGS = Settings(checkpoint_every=8, clean_after_seconds=0, orphan_grace_seconds=5, orphan_every_seconds=0)

Rows = Counter[tuple[int, int]]


class Found(Exception):
    """A promise is broken."""


class Ledger:
    """Append-only; each line is written by one write, and only a kill can cut it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in whole_lines(path)]

    def write(self, **line: object) -> None:
        os.write(self._file, (json.dumps(line) + "\n").encode())


class Fold:
    """What the ledger says the tables hold."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.certain: dict[str, Rows] = {t: Counter() for t in TABLES}
        # Transactions that may or may not have happened: id -> table -> rows.
        self.open: dict[int, dict[str, list[list[int]]]] = {}
        self.reads: list[dict[str, Any]] = []
        self.tables: dict[str, str] = {}
        self.last_time = -1
        outcomes = {line["id"]: line for line in lines if line["what"] in ("ack", "failed")}
        self.last_id = max((line["id"] for line in lines if line["what"] == "intent"), default=0)
        round_first = -1
        for line in lines:
            if line["what"] == "intent":
                outcome = outcomes.get(line["id"])
                if outcome is None:
                    self.open[line["id"]] = line["writes"]
                elif outcome["what"] == "ack":
                    self.add(line["writes"])
            elif line["what"] == "read":
                self.reads.append(line)
            if line["what"] == "round":
                round_first = self.last_time
            time_ = line.get("ts")
            if time_ is not None:
                if time_ <= round_first:
                    raise Found(f"time went back over a restart: {time_} after {round_first}")
                self.last_time = max(self.last_time, time_)

    def add(self, writes: dict[str, list[list[int]]]) -> None:
        for table, rows in writes.items():
            for txn, n, diff in rows:
                self.certain[table][(txn, n)] += diff


def updates(rows: list[list[int]]) -> pa.Table:
    return pa.table(
        {
            "txn": pa.array([r[0] for r in rows], pa.int64()),
            "n": pa.array([r[1] for r in rows], pa.int32()),
            "mz_diff": pa.array([r[2] for r in rows], pa.int64()),
        }
    )


def shard_of(catalog: Catalog, table: str) -> str:
    item = catalog.state.resolve([table], "materialize", ["public"])
    return getattr(item, "shard")  # noqa: B009 (a view has none)


def read(env: Environment, shard_id: str, at: int) -> Rows:
    env.txns.apply_until(shard_id, at)
    with env.open_shard(shard_id).snapshot(at, readable=at + 1) as snapshot:
        table = snapshot.read(["txn", "n"])
    rows: Rows = Counter()
    for txn, n, diff in zip(*(table.column(c).to_pylist() for c in ("txn", "n", "mz_diff")), strict=True):
        rows[(txn, n)] += diff
    return Counter({k: v for k, v in rows.items() if v})


def digest(rows: Rows) -> str:
    return str(sorted(rows.items()))


def check(env: Environment, catalog: Catalog, ledger: Ledger, fold: Fold) -> None:
    """The promises, against what is there. Closes open transactions in the ledger: what is decided stays
    decided."""
    at = env.oracle.read_ts()
    if at <= fold.last_time:
        raise Found(f"read time {at} after {fold.last_time}")
    there = {t: read(env, shard_of(catalog, t), at) for t in TABLES}
    for txn, writes in fold.open.items():
        # Its own rows are its alone: they tell whether it happened.
        own = [(t, (r[0], r[1])) for t, rows in writes.items() for r in rows if r[0] == txn]
        present = [there[t][row] == 1 for t, row in own]
        if any(present) != all(present):
            raise Found(f"transaction {txn} is there in part: {own} {present}")
        if all(present):
            fold.add(writes)
            ledger.write(what="ack", id=txn)
        else:
            ledger.write(what="failed", id=txn)
    for table in TABLES:
        expected = Counter({k: v for k, v in fold.certain[table].items() if v})
        if there[table] != expected:
            lost, extra = expected - there[table], there[table] - expected
            raise Found(f"table {table} at {at}: lost {dict(lost)}, too many {dict(extra)}")
    for line in random.sample(fold.reads, min(5, len(fold.reads))):
        now = digest(read(env, shard_of(catalog, line["table"]), line["ts"]))
        if now != line["digest"]:
            raise Found(f"a read of {line['table']} at {line['ts']} was {line['digest']}, is {now}")
    ledger.write(what="checked", ts=at)


def write(env: Environment, catalog: Catalog, ledger: Ledger, rng: random.Random, ids: list[int]) -> None:
    mine: list[tuple[str, int, int]] = []
    for txn in ids:
        tables = rng.sample(TABLES, rng.randint(1, 3))
        writes = {t: [[txn, n, 1] for n in range(rng.randint(1, 2))] for t in tables}
        if mine and rng.random() < 0.4:
            # Delete a row of an earlier transaction of this thread, in the same transaction.
            table, old, n = mine.pop()
            writes.setdefault(table, []).append([old, n, -1])
        ledger.write(what="intent", id=txn, writes=writes)
        try:
            tables_ = {shard_of(catalog, t): updates(rows) for t, rows in writes.items()}
            ts = env.txns.commit(tables_).result()
        except CommitUnknown:
            continue
        except TidemillError as e:
            ledger.write(what="failed", id=txn, error=e.primary)
            continue
        ledger.write(what="ack", id=txn, ts=ts)
        mine += [(t, r[0], r[1]) for t, rows in writes.items() for r in rows if r[0] == txn]
        if rng.random() < 0.3:
            table = rng.choice(TABLES)
            at = env.oracle.read_ts()
            rows = read(env, shard_of(catalog, table), at)
            if at < ts or any(rows[(r[0], r[1])] != 1 for r in writes.get(table, []) if r[0] == txn):
                raise Found(f"transaction {txn} at {ts} is not seen by a later read at {at}")
            ledger.write(what="read", table=table, ts=at, digest=digest(rows))


def change_catalog(catalog: Catalog, rng: random.Random) -> None:
    public = catalog.state.resolve_schema(["public"], "materialize").id
    extra = [t for t in catalog.state.tables() if t.name.startswith("x")]
    if extra and rng.random() < 0.5:
        catalog.transact([DropOp(rng.choice(extra).id)])
    elif extra and rng.random() < 0.5:
        table = rng.choice(extra)
        catalog.transact([AddColumnOp(table.id, Column(f"c{len(table.desc.columns)}", TEXT))])
    else:
        catalog.transact([CreateTableOp(public, f"x{catalog.state.next_id}", DESC)])


def live(folder: str, spec: str, rng: random.Random) -> None:
    """One life of the process."""
    failpoints.arm(spec)
    ledger = Ledger(os.path.join(folder, "ledger"))
    ledger.write(what="round")
    fold = Fold(ledger.lines)
    env = Environment.open(os.path.join(folder, "data"), settings=SETTINGS)
    catalog = Catalog.open(env)
    missing = [t for t in TABLES if not any(i.name == t for i in catalog.state.tables())]
    if missing:
        public = catalog.state.resolve_schema(["public"], "materialize").id
        catalog.transact([CreateTableOp(public, t, DESC) for t in missing])
    check(env, catalog, ledger, fold)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            first = fold.last_id + 1 + number * TXNS_PER_WRITER
            write(env, catalog, ledger, random.Random(first), list(range(first, first + TXNS_PER_WRITER)))
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(WRITERS)]
    for t in threads:
        t.start()
    if rng.random() < 0.7:
        change_catalog(catalog, rng)
    if "persist." in spec or rng.random() < 0.3:
        env.maintain()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    if "persist." in spec or "txns.retract" in spec or rng.random() < 0.3:
        env.maintain()
    catalog.sweep()
    env.oracle.advance_to(env.oracle.leased)  # a renewal, whatever the wall clock says
    env.close()


# -- breaks on purpose


class WallClockSetBack(SystemClock):
    """An hour less in every life."""

    lives = 0

    def wall_us(self) -> int:
        return super().wall_us() - self.lives * 3_600_000_000


class ForgetfulOracle(Oracle):
    def __init__(self, store: LeaseStore, clock: Clock, **callbacks: Any) -> None:
        super().__init__(store, WallClockSetBack(), **callbacks)
        self._steering = Steering(WallClockSetBack())
        self._last_read = self._last_write = self._completed = -1


def plant(name: str) -> None:
    if name == "forget-unapplied":  # recovery takes for applied what is only committed
        pending.PendingParts.add = lambda self, committed: None
    elif name == "apply-twice":  # a crash between apply and retraction repeats the append
        real = pending.PendingParts.apply_to

        def twice(
            self: pending.PendingParts, shard: Any, until: int | None = None, upper: int | None = None
        ) -> None:
            taken = list(self._queues[shard.id].parts) if shard.id in self._queues else []  # pyright: ignore[reportPrivateUsage]
            real(self, shard, until, upper)
            for u in taken:
                table = shard.reader.read(u.part, shard.desc)
                at = shard.upper
                index = table.schema.get_field_index("mz_timestamp")
                moved = table.set_column(index, table.schema.field(index), pa.array([at] * table.num_rows))
                shard.compare_and_append([shard.write_part(moved, job="twice")], at, at + 1)

        pending.PendingParts.apply_to = twice
    elif name == "forget-lease":  # a successor believes the wall clock alone, which somebody sets back
        environment.Oracle = ForgetfulOracle  # pyright: ignore[reportPrivateImportUsage]
    elif name == "ack-early":  # callers hear of the commit before it is durable
        put = txns_module.Txns._put  # pyright: ignore[reportPrivateUsage]

        def early(self: Any, unapplied: Any, retracting: Any, moves: Any, ts: int, futures: Any) -> None:
            for future in futures:
                future.set_result(ts)
            time.sleep(0.002)
            put(self, unapplied, retracting, moves, ts, futures)

        txns_module.Txns._put = early  # pyright: ignore[reportPrivateUsage]
    elif name == "half":  # one entry per table instead of one for all
        put = txns_module.Txns._put  # pyright: ignore[reportPrivateUsage]

        def halves(self: Any, unapplied: Any, retracting: Any, moves: Any, ts: int, futures: Any) -> None:
            for one in unapplied[:-1]:
                extra = self._oracle.write_ts()
                self._oracle.complete(extra)
                shard = self._open_shard(one.shard_id)
                table = shard.reader.read(one.part, shard.desc)
                index = table.schema.get_field_index("mz_timestamp")
                at = max(shard.upper, ts)
                moved = table.set_column(index, table.schema.field(index), pa.array([at] * table.num_rows))
                shard.compare_and_append([shard.write_part(moved, job="half")], shard.upper, at + 1)
            put(self, unapplied[-1:], retracting, moves, ts, futures)

        txns_module.Txns._put = halves  # pyright: ignore[reportPrivateUsage]
    else:
        raise SystemExit(f"no such break: {name}")


# Beyond the rounds that were asked for, to meet failpoints that a life reaches only now and then.
MORE_ROUNDS = 400


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant")
    parser.add_argument("--unreachable", action="append", default=[])
    options = parser.parse_args()
    if options.plant:
        plant(options.plant)
    rng = random.Random(options.seed)
    names = sorted(failpoints.NAMES)
    killed: Counter[str] = Counter()
    turns: Counter[str] = Counter()
    began = time.monotonic()
    number = -1
    while (number := number + 1) < options.rounds + MORE_ROUNDS:
        # Every name in turn, at a hit that lies somewhere in a life; now and then a life without a death.
        name = names[number % len(names)]
        if number >= options.rounds:
            # Then those that were not met, by the luck of what a life does.
            unmet = sorted(set(names) - set(killed) - {str(n) for n in options.unreachable})
            if not unmet:
                break
            name = unmet[number % len(unmet)]
        turns[name] += 1
        # A name that was not reached at its last turn comes up at its first hit.
        reached = killed[name] >= turns[name] - 1
        nth = rng.choice((1, 2, 3, 5, 8, 13)) if reached else 1
        spec = "" if number % 10 == 9 else f"{name}=kill@{nth}"
        seed = rng.random()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            # Whatever goes wrong counts as found: a promise that does not hold, or an invariant that the
            # product itself checks.
            status = 3
            try:
                random.seed(seed)
                WallClockSetBack.lives = number
                live(options.folder, spec, random.Random(seed))
                status = 0
            except BaseException as e:
                traceback.print_exc()
                print(f"round {number} ({spec or 'no failpoint'}): FOUND {e}", flush=True)
            os._exit(status)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            killed[name] += 1
        elif os.waitstatus_to_exitcode(status) != 0:
            return os.waitstatus_to_exitcode(status)
    summary: dict[str, object] = {
        "rounds": number,
        "seconds": round(time.monotonic() - began, 1),
        "killed": dict(killed),
    }
    summary["never_hit"] = sorted(set(names) - set(killed))
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
