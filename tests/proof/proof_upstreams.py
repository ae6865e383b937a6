"""Upstreams with a ledger of what was put into them: a folder, a bucket (with or without a queue of
notifications), a stream of Kinesis, channels of PubNub. And a judge who holds a server's shards against it.

The judge reads the bindings and the data from the files alone, and asks an upstream's ledger which records a
binding covers: at each closed time each table must have their rows, and nothing else.
"""

from __future__ import annotations

import gzip
import json
import os
import uuid
from abc import ABC, abstractmethod
from base64 import b64decode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import obstore
from proof_sources import Expected, Judge, Row, Told, Wrong

from support.kinesis import Kinesis
from support.moto import Moto
from support.pubnub import SUBSCRIBE_KEY, PubNubServer
from support.s3 import BUCKET, S3Server
from tidemill.catalog.items import Source as SourceItem
from tidemill.catalog.items import SourceTable
from tidemill.catalog.sidecars import inbox_id
from tidemill.persist.blob import Blobs
from tidemill.persist.shard import Shard
from tidemill.reclock.remap import places_of
from tidemill.sources.aws_role import frozen
from tidemill.sources.contract import Gauge
from tidemill.sources.kinesis import layout as kinesis_layout
from tidemill.sources.objects import layout as objects_layout
from tidemill.sources.objects.bucket import open_bucket
from tidemill.sources.objects.store import Stamp
from tidemill.sources.offsets import Offsets, PartitionKey
from tidemill.sources.pubnub import layout as pubnub_layout

KEYS = 40
EVERY, LATEST, CHANGED = "every", "latest", "changed"


@dataclass(frozen=True)
class Record:
    """By table the row that it makes; None deletes the row of its key. Of records with a key the one of the
    greatest rank counts, of equal ranks the last."""

    rows: Mapping[str, Row | None]
    key: str
    rank: tuple[Any, ...] = ()


class Upstream(ABC):
    """`put` and `restart` are called in turns, never at one time."""

    name: ClassVar[str]
    gauge: ClassVar[Gauge]
    # By table, what follows its name in CREATE TABLE ... FROM SOURCE; those in `keyed` have a row per key.
    tables: Mapping[str, str]
    keyed: frozenset[str] = frozenset({LATEST, CHANGED})
    # Places of its own at which the server can be killed.
    steps: tuple[str, ...] = ()

    def __init__(self) -> None:
        # How many records were put into each table.
        self.counts: Counter[str] = Counter()

    @property
    def source(self) -> str:
        return f"{self.name}_source"

    @property
    @abstractmethod
    def create(self) -> Sequence[str]:
        """The statements before CREATE SOURCE, and what follows its name."""

    def statements(self) -> list[str]:
        *before, source = self.create
        made = f"CREATE SOURCE {self.source} {source} WITH (RETAIN HISTORY FOR '30 days')"
        of = f"FROM SOURCE {self.source}"
        return [
            *before,
            made,
            *(f"CREATE TABLE {self.name}_{t} {of} {clause}" for t, clause in self.tables.items()),
        ]

    @abstractmethod
    def put(self, rng: Random) -> None:
        """Something, at once."""

    def settle(self) -> None:
        """Complete what was put in part."""
        return

    @abstractmethod
    def restart(self) -> None: ...

    def close(self) -> None:
        return

    @abstractmethod
    def look(self, blobs: Blobs, item: SourceItem) -> None:
        """Before `between` is asked: whether the upstream still has what was put."""

    @abstractmethod
    def between(self, partition: PartitionKey, lower: int, upper: int, stamp: str) -> Sequence[Record]:
        """The records of a range, in their order. `stamp` is that of the binding."""


class _Objects(Upstream):
    """Lines `key,value` of objects, also compressed ones."""

    gauge = objects_layout.GAUGE

    def __init__(self, reference: str) -> None:
        super().__init__()
        of = f'(REFERENCE "{reference}") FORMAT CSV WITH 2 COLUMNS'
        self.tables = {
            EVERY: f"{of} INCLUDE KEY AS place, OFFSET AS at",
            LATEST: f"{of} ENVELOPE UPSERT (KEY (column1))",
        }
        self.contents: dict[str, bytes] = {}

    def _lines(self, rng: Random) -> bytes:
        lines: list[str] = []
        for _ in range(rng.randrange(1, 15)):
            self.counts[EVERY] += 1
            lines.append(f"k{rng.randrange(KEYS)},{self.counts[EVERY]}\n")
        return "".join(lines).encode()

    def _object(self, rng: Random) -> tuple[str, bytes]:
        """One whose name is anywhere among the others."""
        name, data = f"o{rng.randrange(10**9):09}.csv", self._lines(rng)
        return (f"{name}.gz", gzip.compress(data)) if rng.random() < 0.3 else (name, data)

    def between(self, partition: PartitionKey, lower: int, upper: int, stamp: str) -> Sequence[Record]:
        key, modified = str(partition), Stamp.of(stamp).modified
        data = self.contents[key]
        if key.endswith(".gz"):
            assert (lower, upper) == (0, len(data)), "a compressed object was bound in parts"
            data = gzip.decompress(data)
            upper = len(data)
        found: list[Record] = []
        at = 0
        for line in data.splitlines(keepends=True):
            if lower <= at < upper:
                k, v = line.decode().rstrip("\n").split(",")
                rows = {EVERY: (k, v, key, Decimal(at)), LATEST: (k, v)}
                found.append(Record(rows, k, (modified, key, at)))
            at += len(line)
        return found


class Folder(_Objects):
    """Files that grow, by parts of lines too, and files that appear."""

    name = "files"

    def __init__(self, root: Path) -> None:
        super().__init__("in")
        self._folder = root / "in"
        self._folder.mkdir(parents=True)
        # What is still to be written of the last line of a file.
        self._rest: dict[str, bytes] = {}

    @property
    def create(self) -> Sequence[str]:
        return ["FROM FILES 'in'"]

    def put(self, rng: Random) -> None:
        if rng.random() < 0.3:
            name, data = self._object(rng)
            hidden = self._folder / f".{name}"
            hidden.write_bytes(data)
            self.contents[name] = data
            os.rename(hidden, self._folder / name)
            return
        name = f"log{rng.randrange(3)}"
        data = self._rest.pop(name, b"") + self._lines(rng)
        cut = rng.randrange(max(0, len(data) - 6), len(data))
        self._rest[name] = data[cut:]
        self._append(name, data[:cut])

    def settle(self) -> None:
        for name, rest in self._rest.items():
            self._append(name, rest)
        self._rest.clear()

    def _append(self, name: str, data: bytes) -> None:
        with open(self._folder / name, "ab") as file:
            file.write(data)
        self.contents[name] = self.contents.get(name, b"") + data

    def restart(self) -> None:
        """As if a disk were away for a moment."""
        away = self._folder.with_name("away")
        os.rename(self._folder, away)
        os.rename(away, self._folder)

    def look(self, blobs: Blobs, item: SourceItem) -> None:
        for name, data in self.contents.items():
            assert (self._folder / name).read_bytes() == data


class Bucket(_Objects):
    name = "s3"

    def __init__(self, server: S3Server) -> None:
        super().__init__(BUCKET)
        self._server = server
        self._prefix = f"{self.name}-{uuid.uuid4().hex}"
        self._store = open_bucket(BUCKET, frozen(server.connection))

    @property
    def create(self) -> Sequence[str]:
        options = self._server.connection
        secret = options["secret_access_key"]
        keys = f"ACCESS KEY ID '{options['access_key_id']}', SECRET ACCESS KEY = SECRET {self.name}_key"
        discover = f"DISCOVER OBJECTS MATCHING '{self._prefix}/**' USING BUCKET SCAN '{BUCKET}'{self._queue}"
        return [
            f"CREATE SECRET {self.name}_key AS '{secret}'",
            f"CREATE CONNECTION {self.name}_aws TO AWS (ENDPOINT '{options['endpoint']}', {keys})",
            f"FROM S3 CONNECTION {self.name}_aws ({discover})",
        ]

    @property
    def _queue(self) -> str:
        return ""

    def put(self, rng: Random) -> None:
        name, data = self._object(rng)
        key = f"{self._prefix}/{name}"
        obstore.put(self._store, key, data)
        self.contents[key] = data

    def restart(self) -> None:
        self._server.kill()
        self._server.start()

    def look(self, blobs: Blobs, item: SourceItem) -> None:
        for key, data in self.contents.items():
            assert bytes(obstore.get(self._store, key).bytes()) == data, "the object store lost something"


class ToldBucket(Bucket):
    """With a queue, whose messages come late, twice, or not at all."""

    name = "sqs"

    def __init__(self, server: S3Server, folder: Path) -> None:
        self._moto = Moto(folder)
        self._moto.start()
        self._make_queue()
        super().__init__(server)

    def _make_queue(self) -> None:
        self._sqs = self._moto.client("sqs")
        self._url: str = self._sqs.create_queue(QueueName="told")["QueueUrl"]

    @property
    def _queue(self) -> str:
        return f", SQS NOTIFICATIONS '{self._moto.endpoint}/123456789012/told'"

    def put(self, rng: Random) -> None:
        before = set(self.contents)
        super().put(rng)
        for key in self.contents.keys() - before:
            for _ in range(rng.choice((1, 1, 2))):
                self._tell(key)

    def _tell(self, key: str) -> None:
        s3 = {"bucket": {"name": BUCKET}, "object": {"key": key}}
        body = {"Records": [{"eventName": "ObjectCreated:Put", "s3": s3}]}
        self._sqs.send_message(QueueUrl=self._url, MessageBody=json.dumps(body))

    def restart(self) -> None:
        """The queue has lost everything: what it had is told again."""
        super().restart()
        self._moto.kill()
        self._moto.start()
        self._make_queue()
        for key in self.contents:
            self._tell(key)

    def close(self) -> None:
        self._moto.stop()


class Stream(Upstream):
    """Shards that are split and merged meanwhile."""

    name = "kinesis"
    gauge = kinesis_layout.GAUGE

    def __init__(self, kinesis: Kinesis) -> None:
        super().__init__()
        self._kinesis = kinesis
        self._stream = kinesis.stream(2)
        of = f'(REFERENCE "{self._stream}") FORMAT TEXT'
        self.tables = {
            EVERY: f"{of} INCLUDE KEY AS k, PARTITION AS place, OFFSET AS at",
            LATEST: f"{of} ENVELOPE UPSERT",
            CHANGED: f'(REFERENCE "{self._stream}") FORMAT JSON ENVELOPE DEBEZIUM UPSERT',
        }
        self._acknowledged: dict[str, tuple[str, str]] = {}
        # What the stream has, by shard: sequence numbers, keys, texts.
        self._found: dict[str, list[tuple[str, str, str]]] = {}

    @property
    def create(self) -> Sequence[str]:
        options = self._kinesis.options
        keys = "ACCESS KEY ID 'x', SECRET ACCESS KEY = SECRET kinesis_key"
        return [
            "CREATE SECRET kinesis_key AS 'x'",
            f"CREATE CONNECTION kinesis_aws TO AWS (ENDPOINT '{options['endpoint']}', {keys})",
            f"FROM KINESIS CONNECTION kinesis_aws (STREAM '{self._stream}')",
        ]

    def put(self, rng: Random) -> None:
        records: list[tuple[str, str]] = []
        for _ in range(rng.randrange(1, 15)):
            self.counts[EVERY] += 1
            change = {"op": "u", "before": None, "after": {"n": self.counts[EVERY]}}
            text = "" if rng.random() < 0.1 else json.dumps(change)
            records.append((f"k{rng.randrange(KEYS)}", text))
        numbers = self._kinesis.put(self._stream, [(key, text.encode()) for key, text in records])
        self._acknowledged |= dict(zip(numbers, records, strict=True))
        if rng.random() < 0.03:
            self._kinesis.reshard(self._stream, rng)

    def restart(self) -> None:
        self._kinesis.restart()

    def look(self, blobs: Blobs, item: SourceItem) -> None:
        self._found = {
            shard: [
                (r["SequenceNumber"], r["PartitionKey"], b64decode(r["Data"]).decode())
                for r in self._kinesis.records(self._stream, shard)
            ]
            for shard in self._kinesis.shards(self._stream)
        }
        there = {number: (key, text) for records in self._found.values() for number, key, text in records}
        assert there == self._acknowledged, "the stream lost or changed something"

    def between(self, partition: PartitionKey, lower: int, upper: int, stamp: str) -> Sequence[Record]:
        records = self._found[str(partition)][lower:upper]
        assert len(records) == upper - lower and records[-1][0] == stamp
        found: list[Record] = []
        for number, key, text in records:
            after = f'{{"n": {json.loads(text)["after"]["n"]}}}' if text else ""
            latest, changed = ((key, value) if text else None for value in (text, after))
            found.append(
                Record({EVERY: (key, text, partition, number), LATEST: latest, CHANGED: changed}, key)
            )
        return found


class Channels(Upstream):
    """Two channels, which are two tables; subscribers are moved between regions."""

    name = "pubnub"
    gauge = pubnub_layout.GAUGE
    keyed = frozenset()
    steps = ("pubnub.before_inbox", "pubnub.inbox_put", "pubnub.inbox")

    def __init__(self) -> None:
        super().__init__()
        self._server = PubNubServer()
        include = "FORMAT TEXT INCLUDE KEY AS channel, PARTITION AS place, OFFSET AS at"
        self.tables = {channel: f'(REFERENCE "{channel}") {include}' for channel in ("left", "right")}
        # By channel and timetoken: the text and its region.
        self._published: dict[tuple[str, int], tuple[str, int]] = {}
        # The inbox: region, position, channel, timetoken, text.
        self._inbox: list[tuple[int, int, str, int, str]] = []

    @property
    def create(self) -> Sequence[str]:
        to = f"SUBSCRIBE KEY '{SUBSCRIBE_KEY}', ENDPOINT '{self._server.endpoint}'"
        return [
            f"CREATE CONNECTION pubnub_to TO PUBNUB ({to})",
            "FROM PUBNUB CONNECTION pubnub_to (CHANNELS ('left', 'right'))",
        ]

    def put(self, rng: Random) -> None:
        for _ in range(rng.randrange(1, 8)):
            channel, region = rng.choice(("left", "right")), rng.choice((1, 2))
            text, delay = f"m{len(self._published)}", rng.choice((0, 0, 0.05))
            token = self._server.publish(channel, text, region=region, delay=delay)
            self._published[channel, token] = text, region
            self.counts[channel] += 1
        if rng.random() < 0.05:
            self._server.move(rng.choice((1, 2)), repeats=rng.randrange(5))

    def restart(self) -> None:
        self._server.restart()

    def close(self) -> None:
        self._server.close()

    def look(self, blobs: Blobs, item: SourceItem) -> None:
        """Each message is in the inbox at most once, as it was published."""
        shard = Shard.open(blobs, inbox_id(item.remap_shard), epoch=None)
        self._inbox, before = [], set[tuple[str, int]]()
        as_of = max((shard.upper or 1) - 1, shard.since)
        with shard.snapshot(as_of, readable=as_of + 1) as snapshot:
            names = ("region", "position", "channel", "timetoken", "payload", "error")
            for row in snapshot.read().select(names).to_pylist():
                region, position, channel, token, text, error = (row[name] for name in names)
                assert error is None, error
                if channel is None:
                    continue
                said, own = self._published[channel, token]
                if text != said or region not in (0, own) or (channel, token) in before:
                    raise Wrong(f"the inbox has {row}, published was {said} in region {own}")
                before.add((channel, token))
                self._inbox.append((region, position, channel, token, text))
        self._inbox.sort()

    def between(self, partition: PartitionKey, lower: int, upper: int, stamp: str) -> Sequence[Record]:
        return [
            Record({channel: (text, channel, region, Decimal(token))}, text)
            for region, position, channel, token, text in self._inbox
            if region == partition and lower <= position < upper
        ]


# -- the judge


@dataclass
class UpstreamJudge(Judge):
    upstreams: Sequence[Upstream] = ()

    def told(self, blobs: Blobs, item: SourceItem, tables: list[SourceTable]) -> Told:
        (upstream,) = (u for u in self.upstreams if u.source == item.name)
        upstream.look(blobs, item)
        remap = Shard.open(blobs, item.remap_shard, epoch=None)
        places = {} if upstream.gauge.stamp is None else places_of(remap, upstream.gauge)
        stamps = {(partition, at): stamp for partition, found in places.items() for at, stamp in found}
        collections: list[tuple[str, Expected]] = []
        for table in tables:
            name = table.name.removeprefix(f"{upstream.name}_")
            collections.append((table.shard, _Fold(upstream, name, stamps).advance))
        return Told(upstream.gauge, Offsets(), collections)


@dataclass
class _Fold:
    """The rows of a table, binding by binding."""

    upstream: Upstream
    table: str
    stamps: Mapping[tuple[PartitionKey, int], str]
    # By key: the rank and the row.
    kept: dict[str, tuple[tuple[Any, ...], Row]] = field(
        default_factory=dict[str, tuple[tuple[Any, ...], Row]]
    )

    def advance(self, lower: Offsets, upper: Offsets) -> Counter[Row]:
        counts: Counter[Row] = Counter()
        for partition in upper.increments(lower):
            stamp = self.stamps.get((partition, upper[partition]), "")
            for record in self.upstream.between(partition, lower[partition], upper[partition], stamp):
                if self.table in record.rows:
                    self._add(record, record.rows[self.table], counts)
        return counts

    def _add(self, record: Record, row: Row | None, counts: Counter[Row]) -> None:
        if self.table in self.upstream.keyed:
            before = self.kept.pop(record.key, None)
            if before is not None and before[0] > record.rank:
                self.kept[record.key] = before
                return
            if before is not None:
                counts[before[1]] -= 1
            if row is not None:
                self.kept[record.key] = record.rank, row
        if row is not None:
            counts[row] += 1
