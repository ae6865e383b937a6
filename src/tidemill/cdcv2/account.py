"""Account of one time beyond the reported frontier, and the checks of a statement's numbers.

Called by `Tally`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tidemill.cdcv2.coverage import StatedSpan
from tidemill.cdcv2.digest import signed
from tidemill.cdcv2.messages import Progress
from tidemill.cdcv2.problems import Contradiction, InvalidMessage
from tidemill.cdcv2.times import Time, checked, kind_of

# A count that no stream reaches, and that every encoding represents exactly.
MAX_COUNT = 2**63 - 1


class Account:
    """The state of one time beyond the reported frontier; removed when the time is reported."""

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

    def __init__(self, declared_by: StatedSpan | None) -> None:
        # Distinct updates at this time that the stash holds.
        self.observed = 0
        # The total number of updates, and the statement that gives it; None until a statement covers the
        # time. If a statement covers the time and does not list it, the number is zero.
        self.declared: int | None = None if declared_by is None else 0
        self.declared_by = declared_by
        # The digest of all of them, and the statement that gives it; None without one.
        self.content: int | None = None
        self.content_by: StatedSpan | None = None
        # Updates arrived that the stash could not yet compare with its own; `observed` does not include them.
        self.apart = False
        # The stash was compared with `content`.
        self.verified = False
        # Why the time is never released.
        self.poison: Contradiction | None = None


def checked_list(value: Any, what: str, origin: str) -> Sequence[Any]:
    if isinstance(value, (list, tuple)):
        return cast("Sequence[Any]", value)
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise InvalidMessage(f"not a list of {what}: {value!r}", origin)
    return cast("Sequence[Any]", value)


def checked_counts(value: Any, origin: str) -> list[tuple[Time, int]]:
    found: list[tuple[Time, int]] = []
    for item in checked_list(value, "counts", origin):
        try:
            time, count = item
        except (TypeError, ValueError):
            raise InvalidMessage(f"not a time and its count: {item!r}", origin) from None
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_COUNT:
            raise InvalidMessage(f"not a count: {count!r}", origin)
        found.append((checked(time, origin), count))
    return found


def checked_progress(said: Progress, kind: int) -> None:
    """Checks a statement before encoding, with times of `kind`. Raises InvalidMessage."""
    origin = said.origin or "the writer"
    bounds = [checked(t, origin) for b in (said.lower, said.upper) for t in checked_list(b, "times", origin)]
    times = [*bounds, *(time for time, _ in checked_counts(said.counts, origin))]
    wrong = next((t for t in times if kind_of(t) != kind), None)
    if wrong is not None:
        raise InvalidMessage(f"not a time of this stream: {wrong!r}", origin)
    checked_contents(said, origin)


def checked_contents(message: Progress, origin: str) -> list[int] | None:
    if (message.contents is None) != (message.seal is None):
        raise InvalidMessage(
            "a statement with half a digest", origin, detail="Contents and seal come together."
        )
    if message.contents is None:
        return None
    contents = checked_list(message.contents, "digests", origin)
    if len(contents) != len(message.counts):
        raise InvalidMessage(
            "a statement with half a digest",
            origin,
            detail=f"{len(contents)} digests for {len(message.counts)} counts.",
        )
    for digest in (*contents, message.seal):
        if isinstance(digest, bool) or not isinstance(digest, int):
            raise InvalidMessage(f"not a digest: {digest!r}", origin)
    return [signed(c) for c in contents]
