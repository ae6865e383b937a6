"""Shards of a stream: the list that the service gives, and who comes from whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidemill.errors import LimitExceeded
from tidemill.sources.kinesis.client import KinesisClient

# The most shards of one source, open and closed ones: each is a row of its bindings, and read on its own.
MAX_SHARDS = 10_000


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """`starts` is the number before all of its records. (The number at which it ends is not used: there are
    servers that say it wrongly.)"""

    id: str
    starts: str
    parents: tuple[str, ...]


def list_shards(client: KinesisClient, stream: str) -> dict[str, ShardInfo]:
    """Raises NoStream, UpstreamError."""
    found: dict[str, ShardInfo] = {}
    request: dict[str, Any] = {"StreamName": stream}
    while True:
        answer = client.patient("ListShards", stream, request)
        for shard in answer.get("Shards") or ():
            parents = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
            info = ShardInfo(
                shard["ShardId"],
                shard["SequenceNumberRange"]["StartingSequenceNumber"],
                tuple(parent for parent in parents if parent),
            )
            found[info.id] = info
        if len(found) > MAX_SHARDS:
            raise LimitExceeded(f'stream "{stream}" has more than {MAX_SHARDS} shards')
        token = answer.get("NextToken")
        if not token:
            return found
        request = {"NextToken": token}


def ancestors(shard: str, parents: Mapping[str, Iterable[str]]) -> set[str]:
    """The shards that it comes from, as far as they are known."""
    found: set[str] = set()
    waiting = [shard]
    while waiting:
        for parent in parents.get(waiting.pop(), ()):
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return found


def is_behind(number: str, other: str) -> bool:
    """Sequence numbers are compared as integers: text of other lengths would be ordered wrongly."""
    return int(number) > int(other)


def retention_ms(client: KinesisClient, stream: str) -> int:
    """Raises UpstreamError."""
    answer = client.patient("DescribeStreamSummary", stream, {"StreamName": stream})
    return int(answer["StreamDescriptionSummary"]["RetentionPeriodHours"]) * 3_600_000
