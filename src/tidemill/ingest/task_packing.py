"""Packing of units into tasks: few enough to start at once, small enough to free a core soon.

A shared job runs the small units of many sources. Each unit stays whole, so that a source's tick is one part.
The units are spread over as many tasks as run at once (one more would be another wave). A larger unit that
runs alone is cut finely, by the sizes of `pace`. A unit whose upsert state is missing is divided among as
many tasks as run at once, because each task reads the collection once, whatever its share.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.ingest.unit import Unit
from tidemill.sources.contract import SourcePiece

# A unit with at most this many records is one task, independent of its partitions: a second task costs more
# than it saves.
WHOLE_RECORDS = 20_000
# The number of tasks per core of a large unit's second stage: short ones, so that a core is free soon.
ALONE_SHARES = 4
# The number of tasks per core that read a unit, independent of its partitions: files may be many and small.
MOST_TASKS = 64

# (position of the unit, the pieces that the task reads)
Share = tuple[int, tuple[SourcePiece, ...]]


def key_shares(records: int, cores: int, *, at_hand: bool) -> int:
    """`Unit.shares` of a unit in a separate job. `at_hand`: its upsert state is probably cached."""
    if not at_hand:
        return max(2, cores)
    return 1 if records <= WHOLE_RECORDS else ALONE_SHARES * cores


def are_whole(units: Sequence[Unit]) -> bool:
    """Whether each unit is read by one task. Then its records need no exchange to meet by key."""
    return all(unit.shares == 1 for unit in units)


def shares(units: Sequence[Unit], cores: int) -> list[list[Share]]:
    """The work of each task."""
    if not are_whole(units):
        pieces = units[0].pieces
        count = min(len(pieces), MOST_TASKS * cores)
        return [[(0, tuple(pieces[n::count]))] for n in range(count)]
    tasks: list[list[Share]] = [[] for _ in range(min(cores, len(units)))]
    loads = [0] * len(tasks)
    for index in sorted(range(len(units)), key=lambda i: -units[i].records):
        least = loads.index(min(loads))
        tasks[least].append((index, units[index].pieces))
        # Every unit has a fixed cost: a file, and the start of reading.
        loads[least] += units[index].records + 1000
    return tasks
