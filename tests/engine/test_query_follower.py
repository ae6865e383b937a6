"""A query that is answered anew at each time at which an input changed: which times those are."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidemill.inputs.followers import QueryFollower
from tidemill.persist.holds import Holds
from tidemill.subscribe.changes import CollectionChanges
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN

SCHEMA = pa.schema([("a", pa.int64()), (TIME_COLUMN, pa.int64()), (DIFF_COLUMN, pa.int64())])


class Input:
    """Changes at `times`; a look takes a moment, in which time goes on: it is never at an end."""

    def __init__(self, times: Sequence[int], now: int = 100) -> None:
        self.frontier = 0
        self.looks = 0
        self._times = list(times)
        self._now = now

    def advance(self) -> CollectionChanges | None:
        self.looks += 1
        assert self.looks < 1_000, "it looks for ever"
        lower, self.frontier = self.frontier, self._now + self.looks
        found = [t for t in self._times if lower <= t]
        columns = [pa.array([0] * len(found)), pa.array(found, pa.int64()), pa.array([1] * len(found))]
        return CollectionChanges(pa.table(columns, schema=SCHEMA), lower, self.frontier)

    def close(self) -> None:
        pass


def answer(at: int) -> pa.Table:
    return pa.table({"a": pa.array([at], pa.int64()), DIFF_COLUMN: pa.array([1], pa.int64())})


def test_time_that_goes_on_while_it_looks_does_not_keep_it() -> None:
    one, two = Input([10, 30]), Input([10, 20])
    follower = QueryFollower([one, two], answer, 5, answer(4), lambda: 0)
    found = [follower.advance() for _ in range(4)]
    assert [(c.lower, c.upper) for c in found if c is not None][:3] == [(5, 11), (11, 21), (21, 31)]
    assert [c.updates.num_rows for c in found if c is not None] == [2, 2, 2, 0]
    assert found[3] is not None and found[3].upper == min(one.frontier, two.frontier)


def test_what_is_still_to_be_answered_is_held_though_the_inputs_have_run_ahead() -> None:
    holds = Holds()
    held: list[int | None] = []

    def look(at: int) -> pa.Table:
        held.append(holds.earliest())
        return answer(at)

    follower = QueryFollower([Input([10, 20, 30])], look, 5, answer(4), lambda: 0, [holds.acquire(4)])
    for _ in range(3):
        follower.advance()
    assert held == [4, 10, 20]
    follower.close()
    assert holds.earliest() is None
