"""How units become tasks: few enough to start at once, small enough that a core is free soon.

A shared job carries the small units of many sources: each unit stays whole, so that a source's tick is one
part, and the units are spread over as many tasks as run at once (one more would be another wave). A larger
unit of its own is cut finely, as `pace` says.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.ingest.unit import Unit
from tidemill.sources.contract import Piece

# A unit of no more records is one task, whatever its partitions: a second task costs more than it saves.
WHOLE_RECORDS = 20_000

# (position of the unit, the pieces of it that the task reads)
Share = tuple[int, tuple[Piece, ...]]


def are_whole(units: Sequence[Unit]) -> bool:
    """Whether each unit is read by one task: then its records need no exchange to meet by key."""
    return len(units) > 1 or units[0].records <= WHOLE_RECORDS


def shares(units: Sequence[Unit], cores: int) -> list[list[Share]]:
    """What each task does."""
    if not are_whole(units):
        return [[(0, (piece,))] for piece in units[0].pieces]
    tasks: list[list[Share]] = [[] for _ in range(min(cores, len(units)))]
    loads = [0] * len(tasks)
    for index in sorted(range(len(units)), key=lambda i: -units[i].records):
        least = loads.index(min(loads))
        tasks[least].append((index, units[index].pieces))
        # Every unit costs something, however small: a file, and what it takes to start reading.
        loads[least] += units[index].records + 1000
    return tasks
