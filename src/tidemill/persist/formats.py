"""Format version of a data directory: a number in the properties of the clock shard.

A newer format is refused before anything is modified; the error names both numbers. An older format is
migrated step by step, under our epoch and before anything is served. Each step is idempotent, because a crash
repeats it. The number is raised after each step.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.errors import DataCorrupted, Unsupported
from tidemill.persist.blob import Blobs
from tidemill.persist.shard import Shard

# The format that this version writes. 2: the txns shard marks the version that each log has reached.
FORMAT = 2
_KEY = "format"
PROPERTIES = {_KEY: str(FORMAT)}


def _from_0(blobs: Blobs, clock: Shard) -> None:
    """Format 0 never left the house: it had no number. Nothing else differs; the step keeps the way
    tested."""
    del blobs, clock


def _from_1(blobs: Blobs, clock: Shard) -> None:
    """Nothing to change: a shard without a mark is not checked, and gets its mark on first use. The number
    excludes versions that do not know marks."""
    del blobs, clock


# Step n makes format n + 1 out of n; the clock shard is at our epoch, no other shard is open.
MIGRATIONS: dict[int, Callable[[Blobs, Shard], None]] = {0: _from_0, 1: _from_1}


def format_of(clock: Shard) -> int:
    text = clock.properties.get(_KEY, "0")
    if not text.isdigit():
        raise DataCorrupted(f"the data directory's format is not a number: {text!r}")
    return int(text)


def check(clock: Shard) -> None:
    """Refuses a directory that a newer version has written."""
    found = format_of(clock)
    if found > FORMAT:
        raise Unsupported(
            f"data directory has format {found}, this version of tidemill reads up to format {FORMAT}",
            hint="Start a newer version of tidemill, or use another data directory.",
            sqlstate="F0000",
        )


def migrate(blobs: Blobs, clock: Shard) -> None:
    """Migrate the directory to FORMAT."""
    for n in range(format_of(clock), FORMAT):
        MIGRATIONS[n](blobs, clock)
        clock.set_properties({_KEY: str(n + 1)})
