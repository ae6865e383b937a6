"""The share of each partition in one binding. (Found by the conformance suite on a topic: one record each of
two partitions and a share of the third were more than the limit.)"""

from __future__ import annotations

import pytest

from sources.planted import PlantedSource
from tidemill.sources.contract import ReadLimits
from tidemill.sources.offsets import Offsets, PartitionKey


@pytest.mark.parametrize(
    ("increments", "records", "expected"),
    [
        ({"a": 1, "b": 1, "c": 1000}, 3, {"a": 1, "b": 1, "c": 1}),
        ({"a": 1, "b": 1, "c": 1000}, 4, {"a": 1, "b": 1, "c": 2}),
        ({"a": 1, "b": 1, "c": 1}, 2, {"a": 1, "b": 1, "c": 1}),
        ({"a": 700, "b": 300}, 100, {"a": 69, "b": 30}),
        ({"a": 5}, 5, {"a": 5}),
    ],
)
def test_shares(increments: dict[PartitionKey, int], records: int, expected: dict[PartitionKey, int]) -> None:
    cut = PlantedSource().cut(Offsets(), Offsets(increments), ReadLimits(records=records))
    assert cut == Offsets(expected)
