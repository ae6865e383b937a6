"""ENVELOPE DEBEZIUM beside DEBEZIUM UPSERT: the changes of one table as Debezium writes them, in JSON.

Both read one topic, in turns, and both results are checked against the fold. And what the positions take: the
state of ENVELOPE DEBEZIUM beside the collection, for tables of several sizes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from bench.kafka.load import Fold, Load, Wrong, create_topic, filled, produce, row_texts
from bench.kafka.memory import Memory, Watch
from bench.kafka.ours import Ours, ours
from bench.report import Figure

ENVELOPES = ("DEBEZIUM UPSERT", "DEBEZIUM")
FORMATS = "KEY FORMAT JSON VALUE FORMAT JSON"
FIRST_LSN = 100_000_000
FIRST_TXID = 700


@dataclass(frozen=True, slots=True)
class Changes:
    """The load as changes of a table: a key's first message creates its row, and only a row that is there is
    deleted."""

    load: Load

    @property
    def messages(self) -> int:
        return self.load.messages

    def batches(self) -> Iterator[pl.DataFrame]:
        """As of `Load`, with `before`: the number of the change that made the row before; -1 without one."""
        limit = self.load.keys * self.load.stride
        last, there = np.full(limit, -1, np.int64), np.zeros(limit, np.bool_)
        for batch in self.load.batches():
            ids = batch["id"].to_numpy()
            found = batch.with_columns(
                known=pl.col("n").shift().over("id").fill_null(pl.Series(last[ids])),
                raw=pl.col("gone").shift().over("id").fill_null(pl.Series(~there[ids])),
            )
            found = found.with_columns(gone=pl.col("gone") & (pl.col("known") >= 0) & ~pl.col("raw"))
            found = found.with_columns(
                empty=pl.col("gone").shift().over("id").fill_null(pl.Series(~there[ids]))
            )
            found = found.with_columns(before=pl.when("empty").then(-1).otherwise("known"))
            last[ids] = found["n"].to_numpy()
            there[ids] = ~found["gone"].to_numpy()
            yield found.select("id", "n", "gone", "before")


def messages(batch: pl.DataFrame, size: int = 0) -> pl.DataFrame:
    """`key` and `value` of a batch, as a connector for PostgreSQL writes them; in transactions of `size`
    rows, or without any."""
    before = row_texts(batch.select("id", n=pl.col("before")))
    after = row_texts(batch.select("id", "n"))
    lsn = pl.col("n") * 100 + FIRST_LSN
    first = pl.col("n") // size * size if size else pl.col("n")
    op = pl.when("gone").then(pl.lit("d")).when(pl.col("before") < 0).then(pl.lit("c")).otherwise(pl.lit("u"))
    at = pl.col("n") + 1_700_000_000_000
    order = pl.col("n") - first + 1
    block = pl.lit("null")
    if size:
        block = filled(
            '{"id":"%s:%s","total_order":%s,"data_collection_order":%s}',
            first + FIRST_TXID,
            lsn,
            order,
            order,
        )
    parts: list[pl.Expr] = [
        pl.lit('{"before":'), pl.when(pl.col("before") < 0).then(pl.lit("null")).otherwise("old"),
        pl.lit(',"after":'), pl.when("gone").then(pl.lit("null")).otherwise("new"),
        pl.lit(',"source":{"version":"3.6.2.Final","connector":"postgresql","name":"bench","ts_ms":'), at,
        pl.lit(',"snapshot":"false","db":"bench","sequence":"[\\"'), first * 100 + FIRST_LSN - 50,
        pl.lit('\\",\\"'), lsn,
        pl.lit('\\"]","ts_us":'), at, pl.lit('000,"ts_ns":'), at,
        pl.lit('000000,"schema":"public","table":"rows","txId":'), pl.col("n"), pl.lit(',"lsn":'), lsn,
        pl.lit(',"xmin":null,"origin":null,"origin_lsn":null},"transaction":'), block, pl.lit(',"op":"'), op,
        pl.lit('","ts_ms":'), at, pl.lit(',"ts_us":'), at, pl.lit('000,"ts_ns":'), at, pl.lit("000000}"),
    ]  # fmt: skip
    whole = batch.with_columns(old=before, new=after)
    key = pl.concat_str(pl.lit('{"id":'), pl.col("id"), pl.lit("}"))
    return whole.select("id", key=key, value=pl.concat_str(parts))


def _rows(one: Ours, name: str) -> Generator[pl.DataFrame]:
    return one.rows(name, key="data->>'id'")


@dataclass(frozen=True, slots=True)
class Beside:
    """What a source keeps beside its collection, when it has caught up, and the memory that it took."""

    seconds: float
    # Bytes of the index by key on the disk; of the facts in the sidecar shard; of the files of that shard.
    index: int
    facts: int
    files: int
    # The server's memory while it read, at most.
    peak: Memory

    @property
    def state(self) -> int:
        return self.index + self.facts

    def told(self) -> str:
        return (
            f"index {self.index:,} bytes, positions {self.facts:,} (in files of {self.files:,}); "
            f"the server {self.peak.share / 1e9:.2f} GB at most"
        )


def _once(bootstrap: str, topic: str, envelope: str, expected: Fold | int) -> Beside:
    """From CREATE SOURCE until all can be read; the result, or the number of its rows, is checked."""
    with ours(bootstrap) as one:
        with Watch(one.server.pid) as watch:
            began = time.monotonic()
            one.create("s", topic, FORMATS, envelope=envelope)
            one.caught_up("s", topic)
            seconds = time.monotonic() - began
        index = index_bytes(one)
        if isinstance(expected, Fold):
            expected.check(_rows(one, "s"))
        elif (found := one.execute("SELECT count(*) FROM s")) != [(expected,)]:
            raise Wrong(f"{found} rows instead of {expected}")
        one.server.terminate()
        return Beside(seconds, index, sum(map(_facts, _sidecars(one))), sidecar_bytes(one), watch.peak)


def index_bytes(one: Ours) -> int:
    """The upsert state on the disk."""
    return sum(map(_bytes, one.scratch.glob("state-*")))


def sidecar_bytes(one: Ours) -> int:
    """The files of the shards that have the positions."""
    return sum(map(_bytes, _sidecars(one)))


def _sidecars(one: Ours) -> list[Path]:
    return [*(Path(one.server.data_dir) / "shards").glob("*-positions")]


def _facts(sidecar: Path) -> int:
    """Bytes of the rows that are valid now."""
    rows = pl.read_delta(str(sidecar)).group_by("item", "value").agg(pl.col("mz_diff").sum())
    return sum(len(item) + len(value) for item, value, count in rows.iter_rows() if count)


def _bytes(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            pass  # the server has just removed it
    return size


def measure(bootstrap: str, *, quick: bool) -> list[Figure]:
    changes = Changes(Load(50_000, 12_500) if quick else Load(2_000_000, 500_000))
    create_topic(bootstrap, "changes")
    produce(bootstrap, "changes", changes, messages)
    fold = Fold(changes.load.keys * changes.load.stride).apply(changes)
    rates: dict[str, list[float]] = {envelope: [] for envelope in ENVELOPES}
    for _ in range(1 if quick else 2):
        for envelope in ENVELOPES:
            found = _once(bootstrap, "changes", envelope, fold)
            rates[envelope].append(changes.messages / found.seconds)
            print(f"  {envelope}: {rates[envelope][-1]:,.0f} msg/s; {found.told()}", flush=True)
    middle = {envelope: statistics.median(found) for envelope, found in rates.items()}
    ratio = middle["DEBEZIUM"] / middle["DEBEZIUM UPSERT"]
    what = f"{changes.messages:,} changes of {changes.load.keys:,} keys, JSON"
    figures = [Figure(f"{what}: ENVELOPE {name}", f"{rate:,.0f} msg/s", "") for name, rate in middle.items()]
    return [*figures, Figure("DEBEZIUM against DEBEZIUM UPSERT", f"{ratio:.2f}x", ">= 1.3x", ratio >= 1.3)]


def sizes(bootstrap: str, *, quick: bool) -> list[Figure]:
    """The state beside collections of several sizes, each key created once."""
    figures: list[Figure] = []
    found: list[int] = []
    for keys in (1_000, 10_000) if quick else (100_000, 1_000_000, 10_000_000):
        topic = f"created-{keys}"
        changes = Changes(Load(keys, keys, once=True))
        create_topic(bootstrap, topic)
        produce(bootstrap, topic, changes, messages)
        beside = _once(bootstrap, topic, "DEBEZIUM", keys)
        found.append(beside.state)
        print(f"  {keys:,} keys: {beside.told()}; {keys / beside.seconds:,.0f} msg/s", flush=True)
        figures.append(Figure(f"{keys:,} keys: state beside the collection", beside.told(), ""))
    ratio = max(found) / min(found)
    figures.append(Figure("the largest against the smallest", f"{ratio:.2f}x", "<= 1.1x", ratio <= 1.1))
    return figures
