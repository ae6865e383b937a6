"""Errors of a stream. Each names the statements involved and their origin.

Raised by recovery and the codecs.

- `InvalidMessage`: the message has no valid content. It is refused as a whole and changes nothing.
- `ResumeMismatch`: the message does not match the expected resumption.
- `Contradiction`: of two statements one must be false, or one statement refutes itself. Its time is never
  released.
- `Stalled`: a bounded input ended while recovery was still waiting.
- `SpillFailed`: the disk rejected data that exceeds the memory limit.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from tidemill.cdcv2.wording import sentence
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemill.cdcv2.stalls import Stall
    from tidemill.cdcv2.times import Time


class InvalidMessage(TidemillError):
    """A message that is not a statement: undecodable bytes, an invalid time, times of two kinds."""

    sqlstate = "22P02"

    def __init__(
        self, primary: str, origin: str, *, detail: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(primary, detail=f"In {origin}.{' ' + detail if detail else ''}", hint=hint)
        # The origin of the message, in the terms of its transport.
        self.origin = origin


class ResumeMismatch(InvalidMessage):
    """`resume_from` has times of another kind than the stream."""

    def __init__(self, told: str, found: str, origin: str) -> None:
        super().__init__(
            f"resume_from has {told}, and the stream has {found}",
            origin,
            hint="Give the frontier of a snapshot of this stream.",
        )
        # The two kinds, in words.
        self.told = told
        self.found = found


class Contradiction(TidemillError):
    """Statements that cannot all be true. The time is never released, and nothing beyond it either."""

    sqlstate = "22000"

    def __init__(self, kind: str, time: Time | None, first: str, second: str | None = None) -> None:
        at = "" if time is None else f" at time {time}"
        said = first if second is None else f"{first}; {second}"
        super().__init__(
            f"contradiction{at}: {kind}",
            detail=f"Said: {said}.",
            hint="Nothing at this time or beyond it is released. Find the writer that is wrong, and start"
            " anew from a snapshot beyond this time.",
        )
        # The error in a few words; one of the constants below.
        self.kind = kind
        # The time that is not released; None when it was reported before.
        self.time = time
        # The two statements with their origins; the second is None when one statement refutes itself.
        self.first = first
        self.second = second
        # The same, to create the error again from.
        self.said = (kind, first, second)
        # Further contradictions that the same message revealed.
        self.others: tuple[Contradiction, ...] = ()


TWO_DIFFS = "the same data changes by two different diffs"
ZERO_DIFF = "an update changes nothing"
COUNTS_DIFFER = "two statements count differently"
COUNT_REPEATED = "a statement counts a time twice"
COUNT_OUTSIDE = "a statement counts a time outside its bounds"
BOUNDS_CROSSED = "a statement's lower bound is not before its upper bound"
NO_ANTICHAIN = "a statement's bound has a time beyond another"
TOO_MANY = "more updates than were counted"
SEAL_BROKEN = "a statement does not match its own digest"
CONTENTS_DIFFER = "two statements have different digests"
CONTENT_WRONG = "the updates do not match their digest"
NO_DIGEST = "the digest of the updates cannot be worked out"


class NoDigest(TidemillError):
    """The hash of an update cannot be computed, so the digest of its time cannot be checked."""

    sqlstate = "0A000"


class SpillFailed(TidemillError):
    """Stashed updates could not be written to disk, or read back. Nothing is lost: unwritten updates stay in
    memory, unreadable ones are not released, and the next push tries again."""

    sqlstate = "58030"
    transient = True

    @staticmethod
    def of(error: Exception) -> SpillFailed:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "Make room on the disk" if full else "See whether the folder is there and can be written to"
        return SpillFailed(
            "stashed updates cannot be kept on disk",
            detail=sentence(error),
            hint=f"{hint}, or raise the limit of those in memory. The next push tries again.",
            sqlstate="53100" if full else None,
        )


class Stalled(TidemillError):
    """The input ended, and a stated time never became complete."""

    sqlstate = "22000"

    def __init__(self, stalls: Sequence[Stall]) -> None:
        more = f" (and {len(stalls) - 1} more)" if len(stalls) > 1 else ""
        super().__init__(
            f"the input ended too early: {stalls[0].describe()}{more}",
            detail=" ".join(f"{s.describe()}." for s in stalls[:MAX_SHOWN]),
            hint="Read the rest of the stream, or resume from a snapshot beyond the times that wait.",
        )
        self.stalls = tuple(stalls)


# The number of problems that a text shows: enough to see the pattern.
MAX_SHOWN = 5


def report(found: list[Contradiction], failed: TidemillError | None) -> None:
    """Raises the errors of a push, if any."""
    if found:
        found[0].others = tuple(found[1:])
    if failed is not None:
        raise failed from found[0] if found else failed.__cause__
    if found:
        raise found[0]
