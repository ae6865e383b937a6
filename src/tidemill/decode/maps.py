"""Map keys: of several equal keys the last counts. Columnar decoders leave such maps to the slow reader."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def repeated_keys(keys: pa.Array, counts: np.ndarray) -> np.ndarray:
    """The rows with duplicate keys. `keys` are those of all rows, `counts` the number per row."""
    if len(keys) == 0 or int(counts.max()) < 2:
        return np.zeros(0, dtype=np.int64)
    codes = keys.dictionary_encode().indices.fill_null(0).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(counts)), counts)
    both = np.sort(rows * (int(codes.max()) + 1) + codes)
    return both[1:][both[1:] == both[:-1]] // (int(codes.max()) + 1)
