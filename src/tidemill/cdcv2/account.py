"""What is known of one time beyond the reported frontier; and what a statement's numbers must be.

Called by `Tally`.
"""

from __future__ import annotations

from typing import Any

from tidemill.cdcv2.coverage import Statement
from tidemill.cdcv2.digest import signed
from tidemill.cdcv2.messages import Progress
from tidemill.cdcv2.problems import Contradiction, InvalidMessage

# A count that no stream reaches, and that stays exact wherever it is carried.
MAX_COUNT = 2**63 - 1


class Account:
    """What is known of one time beyond the reported frontier; it goes when the time is reported."""

    __slots__ = (
        "apart",
        "content",
        "content_by",
        "declared",
        "declared_by",
        "observed",
        "poison",
        "verified",
    )

    def __init__(self, declared_by: Statement | None) -> None:
        # Distinct updates at this time that the stash holds.
        self.observed = 0
        # How many there are in all, and who said so; None until a statement covers the time. A statement
        # that covers it and does not list it says zero.
        self.declared: int | None = None if declared_by is None else 0
        self.declared_by = declared_by
        # The digest of all of them, and who said so; None without one.
        self.content: int | None = None
        self.content_by: Statement | None = None
        # Updates came that the stash could not yet compare with those it has; `observed` is without them.
        self.apart = False
        # The stash was compared with `content`.
        self.verified = False
        # Why the time is never released.
        self.poison: Contradiction | None = None


def checked_count(value: Any, origin: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise InvalidMessage(f"not a count: {value!r}", origin)
    return value


def checked_contents(message: Progress, origin: str) -> list[int] | None:
    if (message.contents is None) != (message.seal is None):
        raise InvalidMessage(
            "a statement with half a digest", origin, detail="Contents and seal come together."
        )
    if message.contents is None:
        return None
    if len(message.contents) != len(message.counts):
        raise InvalidMessage(
            "a statement with half a digest",
            origin,
            detail=f"{len(message.contents)} digests for {len(message.counts)} counts.",
        )
    return [signed(c) for c in message.contents]
