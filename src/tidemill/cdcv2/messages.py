"""Messages: the two statements of CDCv2 as Python values.

Created by programs, codecs and the writer; consumed by recovery. A message may hold anything: its contents
are checked when it is pushed, so an error can name its origin.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tidemill.cdcv2.problems import InvalidMessage
from tidemill.cdcv2.times import Time
from tidemill.cdcv2.wording import named

Update = tuple[Hashable, Time, int]


@dataclass(frozen=True, slots=True)
class Updates:
    """A batch of updates: for each (data, time, diff), the change of `data` at `time` is exactly `diff`.

    `data` is hashable; equal data is the same data (and NaN equals NaN, in tuples too). Neither the order of
    updates nor their division into batches has a meaning.
    """

    updates: Sequence[tuple[Any, Time, int]]
    # The origin of the message, for errors: "topic t, partition 0, offset 7". Recovery numbers messages
    # without one.
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """For the times beyond `lower` and not beyond `upper`: the number of distinct updates at each. A time
    without a count has none. `upper` empty: until the end of the stream."""

    lower: Sequence[Time]
    upper: Sequence[Time]
    counts: Sequence[tuple[Time, int]] = ()
    # One digest for each entry of `counts` over the content of that time (`digest.py`); None: without
    # digests.
    contents: Sequence[int] | None = None
    # The digest over all of the above; present if `contents` is.
    seal: int | None = None
    origin: str | None = None


Message = Updates | Progress


def no_message(message: object, number: int, *kinds: type) -> InvalidMessage:
    """The error for a pushed object that is not a message."""
    wanted = " or ".join(kind.__name__ for kind in kinds)
    return InvalidMessage(f"{named(message)} is no message", f"message {number}", detail=f"Wanted: {wanted}.")


def as_bytes(message: Any, origin: str) -> bytes | bytearray | memoryview:
    """The bytes to decode. Raises InvalidMessage."""
    if isinstance(message, (bytes, bytearray, memoryview)):
        return cast("bytes", message)
    raise InvalidMessage(f"{named(message)} is no message", origin, detail="Wanted: bytes.")
