"""The switch of a materialized view from its query to another one, at one time.

The result of the new query is computed beside the view, in a shard of its own and by a machine like the
view's (`service`). When it has caught up, it and the view are brought to one time: `meeting` chooses it. The
catalog then records the new query and this time, and `append_difference` brings the view's shard there. So
the view holds the old query's result before that time and the new one's from it on; whatever happens in
between, it has one or the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill import failpoints
from tidemill.catalog.items import MaterializedView
from tidemill.persist.holds import Hold
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.query.multiset import add_up
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN
from tidemill.types.kernels import pc
from tidemill.views.machine import ViewMachine

FP_MEETING = failpoints.register("view.meeting", "a view can be switched to its new query, nobody knows")
FP_SWITCHED = failpoints.register("view.switched", "a view has another query, its rows are of the old one")
FP_DIFFERENCE = failpoints.register("view.difference", "a view has the new rows, nobody knows yet")
FP_RESUMED = failpoints.register("view.resumed", "a view follows its new query, what was beside is there")

# What a view holds where its old query could not be evaluated.
GAP_TEXT = (
    "the materialized view has no rows at this time\n"
    "Its query could not be evaluated then, and was replaced afterwards."
)


@dataclass(frozen=True, slots=True)
class Meeting:
    """A time at which a view can be switched. `holds` keep it readable in the new query's inputs and result,
    until the view's machine does."""

    at: int
    gap_from: int | None
    holds: Sequence[Hold]

    def release(self) -> None:
        for hold in self.holds:
            hold.release()


def meeting(
    item: MaterializedView, shard: Shard, old: ViewMachine | None, new: ViewMachine, *, broken: bool
) -> Meeting | None:
    """The view's shard has what was complete before that time; `new` may have to go on to it. None: the view
    is behind and must go on first, unless it is `broken` and cannot. `new` has its first rows, and no thread
    steps either of them."""
    gap_from = None
    if upper_of(shard) <= item.created:
        at = new.readable - 1  # it begins with the new query
    else:
        at = upper_of(shard) if old is None else max(old.readable, upper_of(shard))
        if at < new.readable:
            if not broken:
                return None
            gap_from, at = at, new.readable - 1
            if gap_from == at:
                gap_from = None
    holds: list[Hold] = []
    try:
        for each in new.program.inputs:
            holds.append(each.hold(at))
        holds.append(new.shard.hold(min(at, upper_of(new.shard) - 1)))
    except BaseException:
        for hold in holds:
            hold.release()
        raise
    return Meeting(at, gap_from, holds)


def has_error_at(shard: Shard, at: int) -> bool:
    """Whether a view's shard holds an error at a time that is complete."""
    with shard.snapshot(min(at, upper_of(shard) - 1)) as snapshot:
        tables = [
            table.filter(pc.is_valid(table.column(ERROR_COLUMN)))
            .filter(pc.less_equal(table.column(TIME_COLUMN), snapshot.as_of))
            .select([ERROR_COLUMN, DIFF_COLUMN])
            for part in snapshot.parts
            if part.errors
            for _, table in snapshot.read_groups(part, [TIME_COLUMN, DIFF_COLUMN, ERROR_COLUMN])
        ]
    return bool(tables) and add_up(tables).num_rows > 0
