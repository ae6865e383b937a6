"""How much of a snapshot is read: a record of each range that a task has read, in a file beside the spool.

Tasks append records, the server counts them (`source`). A range that is read again counts once. The figure is
for people: a record that is lost does no harm.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import numpy as np

from tidemill.sources.contract import SnapshotProgress
from tidemill.sources.postgres.snapshot import SnapshotPlan

# The number of a range, and its rows.
_RECORD = struct.Struct("<QQ")


def _file(folder: str, plan: SnapshotPlan) -> Path:
    return Path(folder) / f"snapshot-{plan.name}"


def note_range(folder: str, plan: SnapshotPlan, number: int, rows: int) -> None:
    """Short appends to one file do not mix. A task that has no such folder says nothing."""
    with contextlib.suppress(OSError), _file(folder, plan).open("ab", buffering=0) as file:
        file.write(_RECORD.pack(number, rows))


def progress(folder: str, plan: SnapshotPlan) -> SnapshotProgress:
    try:
        data = _file(folder, plan).read_bytes()
    except OSError:
        data = b""
    records = np.frombuffer(data, np.uint64, len(data) // _RECORD.size * 2).reshape(-1, 2)
    numbers, first = np.unique(records[:, 0], return_index=True)
    sizes = plan.range_bytes()
    done = numbers[numbers < len(sizes)].astype(np.int64)
    read = int(records[first, 1].sum())
    # The server's figure is as old as its last ANALYZE.
    known = plan.rows if plan.rows >= read else None
    return SnapshotProgress(known, read, plan.bytes, int(sizes[done].sum()))
