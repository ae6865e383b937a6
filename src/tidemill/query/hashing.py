"""The row hash as `read` uses it: the same number from Arrow on the driver and from Spark in a scan.

A seam of its own so that tests can put a hash in its place that collides all the time: results may not
change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidemill.types.identity import row_hash
from tidemill.types.spark_hash import row_hash_sql

if TYPE_CHECKING:
    from tidemill.types.model import RelationDesc

Hashes = np.ndarray[tuple[int], np.dtype[np.int64]]


class RowHash:
    """The hash of row identity (`types.identity`)."""

    def of_table(self, table: pa.Table, desc: RelationDesc, names: list[str]) -> Hashes:
        """One hash per row over the relation's columns, which are called `names` in the table."""
        return row_hash(table, desc, names)

    def sql(self, desc: RelationDesc, names: list[str]) -> str:
        """The hash as a Spark SQL expression over columns called `names`."""
        return row_hash_sql(desc, names)


STANDARD = RowHash()
