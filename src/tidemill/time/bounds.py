"""Range of a time: milliseconds since the Unix epoch, 0 <= time < 2^63.

`MAX_UPPER` is the greatest upper (an int64 too). The greatest writable time is one less, because the upper of
a shard must be able to pass it.
"""

from __future__ import annotations

from tidemill.errors import LimitExceeded

MAX_UPPER = 2**63 - 1
MAX_TIME = MAX_UPPER - 1


def check_time(ts: int) -> int:
    """`ts` if it is a time that can be read and written, else an error that names it."""
    if not 0 <= ts <= MAX_TIME:
        raise LimitExceeded(
            f"timestamp out of range: {ts}", detail=f"A time lies between 0 and {MAX_TIME}.", sqlstate="22003"
        )
    return ts
