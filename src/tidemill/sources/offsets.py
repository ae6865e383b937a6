"""Offsets: how far a source has been read, as the number of the next record per partition.

An `Offsets` value is a frontier in the time of the upstream: it includes everything below it. A partition
that is not listed is at 0. Values are exclusive: a partition with one record is at 1. Sources without
partitions use the single key None.
"""

from __future__ import annotations

from collections.abc import ItemsView, Mapping
from typing import TypeAlias

from tidemill.errors import Internal

PartitionKey: TypeAlias = int | str | None


class Offsets:
    """Immutable. Ordered by the product order: `a <= b` when no partition of `a` is ahead of `b`'s."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[PartitionKey, int] | None = None) -> None:
        for partition, value in (values or {}).items():
            if value < 0:
                raise Internal(f"the offset of partition {partition!r} is negative ({value})")
        # Without zeros: equal frontiers are equal values.
        self._values = {p: v for p, v in (values or {}).items() if v}

    @staticmethod
    def at(value: int) -> Offsets:
        """Of a source without partitions."""
        return Offsets({None: value})

    def __getitem__(self, partition: PartitionKey) -> int:
        return self._values.get(partition, 0)

    def items(self) -> ItemsView[PartitionKey, int]:
        """The partitions that have left 0."""
        return self._values.items()

    def as_dict(self) -> dict[PartitionKey, int]:
        return dict(self._values)

    def __le__(self, other: Offsets) -> bool:
        return all(value <= other[partition] for partition, value in self._values.items())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Offsets) and self._values == other._values

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"Offsets({self._values})"

    def __str__(self) -> str:
        if set(self._values) <= {None}:
            return str(self[None])
        return ", ".join(f"{p}: {v}" for p, v in sorted(self._values.items(), key=lambda i: str(i[0])))

    def increments(self, since: Offsets) -> dict[PartitionKey, int]:
        """Records added per partition since an earlier frontier; only partitions that changed."""
        if not since <= self:
            raise Internal(f"a frontier went back from {since} to {self}")
        return {p: v - since[p] for p, v in self._values.items() if v != since[p]}

    def plus(self, increments: Mapping[PartitionKey, int]) -> Offsets:
        values = self.as_dict()
        for partition, increment in increments.items():
            values[partition] = values.get(partition, 0) + increment
        return Offsets(values)

    def records_since(self, since: Offsets) -> int:
        """The number of offsets between both, over all partitions."""
        return sum(self.increments(since).values())
