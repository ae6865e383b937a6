"""Kafka topic source: reports its position and splits ranges into pieces.

Created by `sources.definition` from the catalog's definition, with the resolved connection. The frontier is
the last stable offset of every partition: records beyond it belong to transactions that can still abort. If a
topic was replaced, or holds less than was read, `frontier` raises an error that states the expected and the
actual value. Each call checks the topic again, so the source continues if the error was a mistake.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from tidemill.sources.contract import (
    ReadLimits,
    SourcePiece,
    SourceReader,
    UpstreamError,
    UpstreamLost,
    UpstreamSource,
)
from tidemill.sources.kafka.consume import settings_of
from tidemill.sources.kafka.layout import OFFSETS
from tidemill.sources.kafka.metadata import Admin, NoTopic, TopicIdentity
from tidemill.sources.kafka.outputs import output_of
from tidemill.sources.kafka.reader import KafkaReader
from tidemill.sources.kafka.transactions import TopicAccess
from tidemill.sources.offsets import Offsets, PartitionKey

# Deadline of a metadata request. It takes milliseconds, but a broker may collect garbage or elect a leader,
# and this process may wait for a core. A deadline that is too short reports reachable brokers as unreachable
# and delays the source; a long one delays only this tick, because the ticker has enough threads.
LOOK_SECONDS = 3.0
LEAST_SECONDS = 0.1

# Limit of the first binding after a start: the record size is unknown until some were read, and this many
# records of ten kilobytes are a gigabyte.
FIRST_RECORDS = 100_000
# The same for records of a CDCv2 stream, whose messages can have a megabyte.
FIRST_MESSAGES = 200

_AGAIN = "Drop the source and create it again to read the topic as it is now."


class KafkaSource(UpstreamSource):
    """One topic. Raises KeyError, TypeError or ValueError for an invalid definition."""

    gauge = OFFSETS

    def __init__(self, definition: Mapping[str, Any]) -> None:
        connection = definition["connection"]
        self._topic: str = definition["topic"]
        self._topic_id: str | None = definition.get("topic_id")
        self._refresh_ms = int(definition["refresh_ms"])
        starts = {int(partition): int(start) for partition, start in definition["partitions"].items()}
        self.start = Offsets({**starts})
        self.partitions = frozenset(starts)
        specs = definition["outputs"]
        self.outputs = tuple(output_of(self._topic, spec) for spec in specs)
        settings = settings_of(connection, definition.get("group_id_prefix"))
        self._begun = frozenset(starts)
        self._reader = KafkaReader(settings, self._topic, json.dumps(specs), self._begun)
        self._connection = connection
        # Created by the first `frontier`: a source can be described while its brokers are unreachable.
        self._admin: Admin | None = None
        # The partitions that are read, and when (in tick time) new ones were last looked for.
        self._partitions = set(starts)
        self._refreshed: int | None = None
        # Whether anything was bound since the start.
        self._cut = False
        # The last known ends of the partitions; never go back.
        self._reached = self.start

    def frontier(self, now: int) -> Offsets:
        if self._admin is None:
            self._admin = Admin(self._connection)
        deadline = time.monotonic() + LOOK_SECONDS
        try:
            identity, ends = self._admin.stand(self._topic, self._partitions, LOOK_SECONDS)
        except NoTopic as e:
            raise self._missing() from e
        self._check(identity)
        if self._refreshed is None or now - self._refreshed >= self._refresh_ms:
            added = set(identity.partitions) - self._partitions
            if added:
                left = max(deadline - time.monotonic(), LEAST_SECONDS)
                ends |= self._admin.ends(self._topic, added, left)
                self._partitions |= added
            self._refreshed = now
        reached: dict[PartitionKey, int] = {}
        for partition, end in ends.items():
            # The start may be configured beyond the current end of the topic.
            before = self._reached[partition]
            if end < before and before > self.start[partition]:
                raise self._truncated(partition, before, end)
            reached[partition] = max(end, before)
        self._reached = Offsets(reached)
        return self._reached

    def _check(self, identity: TopicIdentity) -> None:
        """Check that this is the topic that was read. With VALIDATE = false it is the first topic that was
        found under the name."""
        if self._topic_id is None and identity.topic_id is not None:
            self._topic_id = identity.topic_id
            self.learned = {"topic_id": identity.topic_id}
        if self._topic_id is not None and identity.topic_id not in (None, self._topic_id):
            raise UpstreamLost(
                f'topic "{self._topic}" was deleted and created anew',
                detail=f"The source reads the topic with the id {self._topic_id}; "
                f"the topic of that name has the id {identity.topic_id}.",
                hint=_AGAIN,
            )
        missing = self._partitions - set(identity.partitions)
        if missing and missing <= self._begun and identity.topic_id is not None:
            # A topic never loses partitions: with VALIDATE = false their number is unknown.
            raise UpstreamError(
                f'topic "{self._topic}" has no partition {min(missing)}',
                detail=f"START OFFSET has {len(self._begun)} entries; the topic has "
                f"{len(identity.partitions)} partitions.",
                hint="Add partitions to the topic, and it is read; or drop the source and create it again "
                "with fewer entries.",
            )
        if missing:
            raise UpstreamLost(
                f'topic "{self._topic}" has no partition {min(missing)} any more',
                detail=f"The source reads {len(self._partitions)} partitions; the topic has "
                f"{len(identity.partitions)}. It was deleted and created anew.",
                hint=_AGAIN,
            )

    def _missing(self) -> UpstreamError:
        if self._topic_id is None and self._refreshed is None:
            return UpstreamError(
                f'topic "{self._topic}" does not exist',
                hint="Create it, and it is read; or drop the source, if TOPIC or the connection is wrong.",
            )
        return UpstreamLost(
            f'topic "{self._topic}" does not exist any more',
            detail=f"The source has read it up to {self._reached}.",
            hint="It was deleted. What was read of it can still be queried, AS OF a time before. " + _AGAIN,
        )

    def _truncated(self, partition: int, before: int, end: int) -> UpstreamError:
        return UpstreamLost(
            f'partition {partition} of topic "{self._topic}" was truncated',
            detail=f"It had records up to {before}; now it ends at {end}.",
            hint="A broker that had not yet copied the records may have become the leader. " + _AGAIN,
        )

    @property
    def topic(self) -> str:
        return self._topic

    def reader(self) -> SourceReader:
        return self._reader

    def access(self) -> TopicAccess:
        """How to read parts of the messages on the driver, by the format of the first output."""
        (first, *_) = json.loads(self._reader.outputs)
        return TopicAccess(self._reader.settings, self._topic, first["value"], self._begun)

    def close(self) -> None:
        self._admin = None

    def cut(self, lower: Offsets, upper: Offsets, limits: ReadLimits) -> Offsets:
        if not self._cut:
            most = FIRST_MESSAGES if any(output.stream for output in self.outputs) else FIRST_RECORDS
            limits = replace(limits, records=min(limits.records, most))
        self._cut = True
        return super().cut(lower, upper, limits)

    def split(self, lower: Offsets, upper: Offsets, ways: int) -> list[SourcePiece]:
        """A multiple of `ways` pieces, if partitions can be cut: three partitions on two cores would leave
        one core idle for a third of the time."""
        increments = upper.increments(lower)
        if not increments:
            return []
        wanted = -(-max(len(increments), ways) // ways) * ways
        # Not cut: only the reader of the first piece finds out where a new partition begins.
        whole = {p for p in increments if lower[p] == 0 and p not in self._begun}
        pieces: list[SourcePiece] = []
        for partition, shares in _allotted(increments, wanted, whole).items():
            first, records = lower[partition], increments[partition]
            edges = [first + records * n // shares for n in range(shares + 1)]
            pieces += [SourcePiece(partition, a, b) for a, b in itertools.pairwise(edges)]
        return pieces


def _allotted(
    increments: Mapping[PartitionKey, int], wanted: int, whole: Collection[PartitionKey]
) -> dict[PartitionKey, int]:
    """The number of pieces of each partition: at least one, and only one if it must stay `whole`. Together
    `wanted` pieces, if possible. The largest partitions are cut most."""
    shares = dict.fromkeys(increments, 1)
    for _ in range(wanted - len(increments)):
        # The partition with the largest pieces. Pieces of a single record cannot be cut.
        can = [p for p in increments if p not in whole and shares[p] < increments[p]]
        if not can:
            break
        shares[max(can, key=lambda p: increments[p] / shares[p])] += 1
    return shares
