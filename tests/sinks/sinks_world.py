"""A collection and sinks of it, without a server: what is written is read back with the library alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from support.shards import DESC, Row, Update, append
from tidemill.catalog.items import Sink
from tidemill.cdcv2 import Message, Recovery
from tidemill.cdcv2.avro import AvroCodec
from tidemill.cdcv2.untyped import avro_file, from_json
from tidemill.persist.blob import open_blobs
from tidemill.persist.shard import Shard
from tidemill.sinks.cdcv2_writer import Cdcv2Writer
from tidemill.sinks.definition import FILES, Definition, codec_of
from tidemill.sinks.files_target import FilesTarget
from tidemill.sinks.machine import SinkMachine
from tidemill.sinks.target import SinkPace, TargetWriter, Written
from tidemill.subscribe.follower import CollectionFollower
from tidemill.types.model import RelationDesc

# Statements whenever there is something to say.
AT_ONCE = SinkPace(0.0, 0.0)


class ShardFeed:
    """`sinks.feed.Feed` of a shard by itself."""

    def __init__(self, shard: Shard, piece: int = 3) -> None:
        self.shard = shard
        self.names = ("k", "v")
        self._piece = piece

    def complete(self) -> int:
        return self.shard.upper or 0

    def snapshot(self, at: int) -> Generator[pa.Table]:
        with self.shard.snapshot(at) as snapshot:
            found: Counter[Row] = Counter()
            for row in snapshot.read().to_pylist():
                found[row["k"], row["v"]] += row["mz_diff"]
        rows = [(row, n) for row, n in found.items() if n]
        for first in range(0, len(rows), self._piece):
            part = rows[first : first + self._piece]
            yield pa.table(
                {
                    "k": pa.array([r[0] for r, _ in part], pa.int64()),
                    "v": pa.array([r[1] for r, _ in part], pa.string()),
                    "mz_timestamp": pa.array([at] * len(part), pa.int64()),
                    "mz_diff": pa.array([n for _, n in part], pa.int64()),
                }
            )

    def follow(self, from_: int) -> CollectionFollower:
        return CollectionFollower(self.shard, self.names, from_, self.complete)

    def cancel(self) -> None:
        pass


class Died(Exception):
    pass


class Mortal:
    """A target that dies now and then, before or after what it was asked for."""

    def __init__(self, of: TargetWriter, rng: Random, deaths: float) -> None:
        self._of = of
        self._rng = rng
        self._deaths = deaths
        self.pace = AT_ONCE

    def _step(self, what: Callable[[], Any]) -> Any:
        if self._rng.random() < self._deaths:
            raise Died
        found = what()
        if self._rng.random() < self._deaths:
            raise Died
        return found

    def resume(self) -> int | None:
        return self._step(self._of.resume)

    def send(self, message: bytes) -> None:
        self._step(lambda: self._of.send(message))

    def settle(self) -> None:
        self._step(self._of.settle)

    def state(self, message: bytes, upper: int) -> None:
        self._step(lambda: self._of.state(message, upper))

    def close(self) -> None:
        self._of.close()


class _Eager(FilesTarget):
    pace = AT_ONCE


class World:
    def __init__(self, folder: Path, desc: RelationDesc = DESC) -> None:
        self.folder = folder / "out"
        self.desc = desc
        self.shard = Shard.create(open_blobs(str(folder / "data")), "s", desc, epoch=1)
        self.history: list[Update] = []

    def append(self, rows: Iterable[tuple[Row, int]], upper: int, at: int | None = None) -> None:
        lower = self.shard.upper or 0
        of = [(row, lower if at is None else at, diff) for row, diff in rows]
        self.history += of
        append(self.shard, of, upper)

    def sink(self, as_of: int, *, snapshot: bool = True) -> Sink:
        return Sink("u1", "s", "u0", FILES, "here", "{}", "CREATE SINK", "u2", self.desc, as_of, snapshot)

    def files(
        self, form: str, share: tuple[int, int] = (0, 1), writer: str = "w", life: int = 1
    ) -> FilesTarget:
        codec = codec_of(self.sink(0), Definition(FILES, form))
        schema = codec.avro_schema if isinstance(codec, AvroCodec) else None
        return _Eager(lambda: self.folder, form, schema, share, writer, life, Written())

    def machine(
        self,
        as_of: int,
        target: TargetWriter,
        form: str = "json",
        *,
        share: tuple[int, int] = (0, 1),
        snapshot: bool = True,
    ) -> SinkMachine:
        definition = Definition(FILES, form, share=share)
        sink = self.sink(as_of, snapshot=snapshot)
        feed = ShardFeed(self.shard)
        writer = Cdcv2Writer(codec_of(sink, definition), share, feed.names, target, Written())
        return SinkMachine(sink, feed, writer)

    def expected(self, as_of: int, upper: int, *, snapshot: bool = True) -> Counter[tuple[Row, int]]:
        """(row, time) -> diff, as a stream that begins at `as_of` has it."""
        found: Counter[tuple[Row, int]] = Counter()
        for row, time, diff in self.history:
            if time < upper and (snapshot or time > as_of):
                found[row, max(time, as_of)] += diff
        return Counter({key: n for key, n in found.items() if n})


def messages(folder: Path) -> list[Message]:
    """What the files say, in the order of their names."""
    found: list[Message] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.suffix == ".avro":
            with path.open("rb") as file:
                for said in avro_file(file, path.name):
                    assert not isinstance(said, Exception), said
                    found.append(said)
        else:
            found += [from_json(line, path.name) for line in path.read_bytes().splitlines()]
    return found


def recovered(said: Iterable[Message], begin: int = 0) -> tuple[Counter[tuple[Row, int]], int]:
    """The history that the messages tell, each update once, and up to where. Raises Contradiction."""
    recovery = Recovery(resume_from=[begin])
    found: Counter[tuple[Row, int]] = Counter()
    for message in said:
        for updates, _ in recovery.push(message):
            for data, time, diff in updates:
                row = json.loads(str(data))
                key = ((row["k"], row["v"]), time)
                assert key not in found, f"{key} came twice"
                found[key] = diff
    ((upper,),) = [recovery.frontier]
    assert isinstance(upper, int)
    return found, upper
