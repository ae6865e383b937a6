"""The hash of a key: equal keys have equal hashes. Nothing relies on the converse."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidemill.types.hash import SEED, fold, hash_column


def key_hash(rows: pa.Table | pa.RecordBatch, key: Sequence[str]) -> np.ndarray:
    """One uint64 per row over the named columns, by row identity (`types.identity`): NULL is a value like any
    other, 1.0 = 1.00, -0.0 = 0.0. Without columns all rows have one key."""
    if not key:
        return np.full(rows.num_rows, SEED, dtype=np.uint64)
    return fold([hash_column(rows.column(name)) for name in key])
