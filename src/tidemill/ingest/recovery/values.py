"""Plain values that are sent between the driver and the tasks of a CDCv2 relation.

Created by `stream` and `deduplicate`; part of units and facts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidemill.cdcv2.messages import Progress
from tidemill.cdcv2.times import Frontier, Time
from tidemill.sources.contract import StreamSpec
from tidemill.types.model import RelationDesc


@dataclass(frozen=True, slots=True)
class Tallied:
    """The known facts about times beyond the reported frontier (`cdcv2.tally`)."""

    # `Tally.dump`; None before the first statement or update.
    known: dict[str, Any] | None = None
    # By time, the sum of the hashes of the updates that have arrived; for streams with digests.
    contents: dict[Time, int] = field(default_factory=dict[Time, int])


@dataclass(frozen=True, slots=True)
class Recover:
    """The target's records are statements of `stream`. Before the unit, its stash is the shard `stash` at
    `upper - 1`, and the rest of its state is `tallied`. Updates are wanted if they are beyond `reported` and
    not at a time in `poisoned`. Released updates get the unit's time, or with `own_times` the stream's."""

    stash: str
    desc: RelationDesc
    upper: int
    stream: StreamSpec
    tallied: Tallied
    reported: Frontier
    poisoned: frozenset[Time]
    own_times: bool = False


# The position of a record of the stream: its partition, its offset.
Place = tuple[str, int]


@dataclass(slots=True)
class FoundUpdates:
    """The updates and statements of a unit, or of one share of it. Shares are added up."""

    # By time: distinct updates that were not stashed before, and the sum of their hashes.
    counts: dict[Time, int] = field(default_factory=dict[Time, int])
    contents: dict[Time, int] = field(default_factory=dict[Time, int])
    # Statements, and records that cannot be read.
    stated: list[tuple[Place, Progress | str]] = field(default_factory=list[tuple[Place, Progress | str]])
    # Contradictions among updates: the time, the kind, one side, the other.
    wrong: list[tuple[Time, str, str, str | None]] = field(
        default_factory=list[tuple[Time, str, str, str | None]]
    )
    # The first and last offset read, by partition.
    spans: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])

    def add(self, other: FoundUpdates) -> None:
        for time, count in other.counts.items():
            self.counts[time] = self.counts.get(time, 0) + count
        for time, content in other.contents.items():
            self.contents[time] = self.contents.get(time, 0) + content
        self.stated += other.stated
        self.wrong += other.wrong
        for partition, (first, last) in other.spans.items():
            self.cover(partition, first, last)

    def cover(self, partition: str, first: int, last: int) -> None:
        had = self.spans.get(partition, (first, last))
        self.spans[partition] = (min(had[0], first), max(had[1], last))


@dataclass(frozen=True, slots=True)
class Settled:
    """The verdict: the new state, how far the frontier moved, whether it passed updates that were stashed
    before, and the errors that the relation shows from now on."""

    tallied: Tallied
    before: Frontier
    after: Frontier
    from_stash: bool
    errors: tuple[str, ...]


def beyond(frontier: Frontier, components: list[np.ndarray]) -> np.ndarray:
    """Which times (component by component, as columns) are beyond the frontier."""
    found = np.zeros(len(components[0]), np.bool_)
    for element in frontier:
        parts = (element,) if isinstance(element, int) else element
        every = components[0] >= parts[0]
        for column, part in zip(components[1:], parts[1:], strict=True):
            every &= column >= part
        found |= every
    return found


def times_of(components: list[np.ndarray]) -> list[Time]:
    """The times as Python values."""
    if len(components) == 1:
        return components[0].tolist()
    return list(zip(*(column.tolist() for column in components), strict=True))
