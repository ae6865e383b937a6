"""A server's side of SUBSCRIBE in a few lines: histories, the rows with progress that it would send for them,
and what a client must make of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from hypothesis import strategies as st

SCHEMA = pa.schema(
    [("c0", pa.int64()), ("c1", pa.bool_()), ("c2", pa.int64()), ("c3", pa.int64()), ("c4", pa.string())]
)
Update = tuple[int, int, str | None]  # diff, key, value
Row = tuple[int, bool, int | None, int | None, str | None]


def table(rows: list[Row]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def progress(at: int) -> Row:
    return (at, True, None, None, None)


@dataclass
class History:
    """What happened when; `end`: complete before. `idle`: times at which progress is told though nothing
    happened."""

    updates: dict[int, list[Update]]
    end: int
    idle: set[int] = field(default_factory=set[int])

    def stream(self, as_of: int, *, snapshot: bool) -> Iterator[Row]:
        """The rows of SUBSCRIBE ... WITH (PROGRESS) AS OF; the snapshot as the sum of all before."""
        yield progress(as_of)
        if snapshot:
            yield from ((as_of, False, *update) for update in self.at(as_of))
            yield progress(as_of + 1)
        for time in sorted({*self.updates, *self.idle}):
            if time <= as_of or time >= self.end:
                continue
            yield from ((time, False, *update) for update in self.updates.get(time, []))
            yield progress(time + 1)
        yield progress(max(self.end, as_of + 1))

    def at(self, time: int) -> list[Update]:
        """The rows that are there at a time, each once, with its number."""
        counts: dict[tuple[int, str | None], int] = {}
        for t, updates in self.updates.items():
            for diff, key, value in updates if t <= time else []:
                counts[key, value] = counts.get((key, value), 0) + diff
        return [(n, key, value) for (key, value), n in sorted(counts.items(), key=repr) if n]


@st.composite
def histories(draw: st.DrawFn) -> History:
    times = draw(st.lists(st.integers(10, 40), max_size=8, unique=True).map(sorted))
    there: dict[tuple[int, str | None], int] = {}
    updates: dict[int, list[Update]] = {}
    for time in times:
        changes: dict[tuple[int, str | None], int] = {}
        for key, value in draw(
            st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", None])), min_size=1, max_size=4)
        ):
            had = there.get((key, value), 0)
            # Never fewer than none: a relation holds no negative rows.
            diff = draw(st.integers(-had, 2))
            there[key, value] = had + diff
            changes[key, value] = changes.get((key, value), 0) + diff
        updates[time] = [(diff, key, value) for (key, value), diff in changes.items() if diff]
    updates = {time: found for time, found in updates.items() if found}
    return History(updates, 50, draw(st.sets(st.integers(10, 45), max_size=4)))
