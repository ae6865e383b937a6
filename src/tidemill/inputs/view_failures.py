"""The error that a materialized view holds in place of its rows: which view has it, and since when.

Called when a view is read (`collections`), followed (SUBSCRIBE) and described (the statuses of `views`). The
stored text of the error does not name the view: a view may read another one, and names change.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from tidemill.catalog.items import MaterializedView
from tidemill.errors import TidemillError
from tidemill.persist.snapshot import Snapshot
from tidemill.sources.contract import MAKE_ANEW
from tidemill.time.shown import show_time
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN
from tidemill.types.kernels import pc

FAILURE_HINT = "The view has its rows again when the rows that cause the error are corrected or deleted."
# Of an error that a table of a source keeps.
LASTING_HINT = "Create the view again, too: DROP TABLE ... CASCADE, or DROP SUBSOURCE ... CASCADE, drops it."
_STATUSES = "SELECT * FROM mz_internal.mz_materialized_view_statuses shows all views with an error."


def failure_hint(detail: str | None) -> str:
    """What ends an error of a view with this detail."""
    return LASTING_HINT if detail is not None and MAKE_ANEW in detail else FAILURE_HINT


def error_since(snapshot: Snapshot, text: str) -> int:
    """The time at which the error appeared in the collection. Compaction moves it up, to `since` at most."""
    changes: Counter[int] = Counter()
    columns = [TIME_COLUMN, DIFF_COLUMN, ERROR_COLUMN]
    for part in snapshot.parts:
        # By row groups: the part may hold many rows beside the error.
        for _, table in snapshot.read_groups(part, columns) if part.errors else ():
            _add(changes, table.filter(pc.equal(table.column(ERROR_COLUMN), text)))
    since = count = 0
    for at in sorted(at for at in changes if at <= snapshot.as_of):
        if count <= 0:
            since = at
        count += changes[at]
    return since


def _add(changes: Counter[int], errors: pa.Table) -> None:
    times, diffs = (np.asarray(errors.column(name)) for name in (TIME_COLUMN, DIFF_COLUMN))
    for at, diff in zip(times.tolist(), diffs.tolist(), strict=True):
        changes[at] += diff


def explain_failure(
    item: MaterializedView, error: TidemillError, since: int, earliest: int | None = None
) -> None:
    """Adds to an error of the view which view it is, and since when it has the error. `earliest`: the start
    of the view's readable history, if the time may have been moved up to it."""
    earlier = " or earlier" if earliest is not None and item.created < since <= earliest else ""
    said = f'Materialized view "{item.name}" has this error since {show_time(since)}{earlier}.'
    error.hint = error.hint or f"{failure_hint(error.detail)} {_STATUSES}"
    error.detail = said if error.detail is None else f"{error.detail} {said}"
