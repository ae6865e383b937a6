"""Which errors of a query are properties of its data.

Asked by materialized views and by followers of queries.
"""

from __future__ import annotations

from tidemill.errors import TidemillError
from tidemill.persist.snapshot import InvalidAsOf

# SQLSTATE classes of errors about values: a cardinality violation, a data exception. All others (no memory,
# no Spark, a limit) are temporary and not a property of the data.
_OF_DATA = ("21", "22")


def is_of_data(error: TidemillError) -> bool:
    """Whether the query has no answer, and will never have one at that time."""
    return error.sqlstate[:2] in _OF_DATA and not isinstance(error, InvalidAsOf)
