"""Going on behind an error in the data, at the cost of what changed since it began.

A follower ends with the first error of its query. One that can leap then goes on by taking changes together:
those since the error began, as if all had come at the next time at which something changed. If the query has
an answer there, the difference from the one before the error is told at that time, and the follower is an
ordinary one again; what was in between is nobody's. Otherwise the error is still there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.follower import Follower
from tidemill.types.arrow import TIME_COLUMN
from tidemill.types.columns import contiguous
from tidemill.types.identity import consolidate
from tidemill.types.model import RelationDesc

# Changes that are taken together. They are evaluated at each time at which something changed, so that with
# more a follower would be slower than the query itself.
MAX_LEAP_ROWS = 100_000


class CannotLeap(Exception):
    """The follower does not come behind the error."""


@dataclass(frozen=True, slots=True)
class StillFailing:
    """The query has an error at all times in [lower, upper). `error` is None for the same as before."""

    lower: int
    upper: int
    error: TidemillError | None = None


@runtime_checkable
class LeapingFollower(Follower, Protocol):
    def leap(self) -> CollectionChanges | StillFailing | None:
        """After `advance` has raised an error in the data, which is there at `frontier`: whether it is there
        at the times after that, and with the first one at which it is not, the changes since then. None if
        nothing more is complete. Raises CannotLeap, and what `advance` raises of other kinds."""
        ...


def times_from(tables: Mapping[str, pa.Table], first: int) -> np.ndarray:
    """The times of updates, from `first` on, sorted."""
    found = [contiguous(t.column(TIME_COLUMN)).to_numpy() for t in tables.values() if t.num_rows]
    times = np.unique(np.concatenate(found)) if found else np.zeros(0, np.int64)
    return times[times >= first]


def together(tables: Mapping[str, pa.Table], at: int) -> dict[str, pa.Table]:
    """The updates as if all had come at one time; what cancels out is gone."""
    found: dict[str, pa.Table] = {}
    for name, table in tables.items():
        place = table.schema.get_field_index(TIME_COLUMN)
        stamps = pa.array(np.full(table.num_rows, at, np.int64))
        one = consolidate(table.set_column(place, table.schema.field(place), stamps), RelationDesc())
        if one.num_rows:
            found[name] = one
    return found
