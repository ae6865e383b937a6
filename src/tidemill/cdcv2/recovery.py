"""Recovery: turns statements, in any order, repetition and batching, into the history, each update once.

Call `recover` with an iterator of messages, or use `Recovery` for messages one by one. For Arrow columns
`ColumnRecovery` follows the same rules.

The complete rules (docs/cdcv2.md illustrates them):
1. An update at a time that is not beyond the reported frontier is a repetition: drop it.
2. An update that is already in the stash is a repetition: drop it. Otherwise stash it, and count it.
3. A progress statement gives the number of updates at its times. Adjacent statements form one larger
   statement; the progress frontier is at the first gap.
4. The reported frontier is at the first gap or the first time with missing updates. When it advances, the
   stashed updates that it passes are released, and nothing about their times is kept.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from itertools import compress
from typing import Any

from tidemill.cdcv2 import problems
from tidemill.cdcv2.coverage import MAX_FRONTIER
from tidemill.cdcv2.digest import UpdateHash, content_of, python_hash
from tidemill.cdcv2.messages import Message, Update, Updates
from tidemill.cdcv2.pending import Pending, releases
from tidemill.cdcv2.problems import InvalidMessage, NoDigest, SpillFailed
from tidemill.cdcv2.row_stash import MAX_SPILLED, MAX_STASHED, RowStash, one_nan
from tidemill.cdcv2.tally import MAX_STATEMENTS, MAX_TIMES, Tally
from tidemill.cdcv2.times import Time, items_of
from tidemill.cdcv2.times import checked as checked_time
from tidemill.errors import TidemillError
from tidemill.time.clock import Clock

# Updates in the order of their times, and the frontier before which the history is now complete; [] = all
# of it.
Release = tuple[list[Update], list[Time]]

# A diff is carried as a signed 64-bit integer.
MAX_DIFF = 2**63 - 1


def recover(
    messages: Iterable[Message],
    *,
    resume_from: Iterable[Time] | None = None,
    max_stashed: int | None = None,
) -> Iterator[Release]:
    """The history of `messages`: each update once, in the order of times, as early as it can be known.

    With `resume_from`, the frontier of an existing snapshot: only updates beyond it. A contradiction (or a
    limit) is raised when it is found, after all that can be released before it. If the messages end while
    something still waits, raises `Stalled` with the reasons.
    """
    return releases(Recovery(resume_from, max_stashed), messages)


class Recovery(Pending[RowStash, Release]):
    """Recovery message by message."""

    def __init__(
        self,
        resume_from: Iterable[Time] | None = None,
        max_stashed: int | None = None,
        *,
        max_spilled: int = MAX_SPILLED,
        max_statements: int = MAX_STATEMENTS,
        max_times: int = MAX_TIMES,
        max_frontier: int = MAX_FRONTIER,
        require_digests: bool = False,
        update_hash: UpdateHash = python_hash,
        spill_folder: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        stash = RowStash(MAX_STASHED if max_stashed is None else max_stashed, max_spilled, spill_folder)
        tally = Tally(
            resume_from,
            content=self._content,
            settle=self._settle,
            clock=clock,
            require_digests=require_digests,
            max_statements=max_statements,
            max_times=max_times,
            max_frontier=max_frontier,
        )
        super().__init__(stash, tally)
        # Passed by the frontier (these times; it moved from here to there), and still in the stash because
        # the disk failed.
        self._due: list[tuple[list[Time], list[Time], list[Time]]] = []
        self._update_hash = update_hash

    @property
    def frontier(self) -> list[Time]:
        """The history before it is complete and was released; [] when all of the history is complete. ([0]
        until the first time shows that times are products.)"""
        return self._due[0][1] if self._due else list(self._tally.reported)

    @property
    def tally(self) -> Tally:
        """The state of the times beyond the frontier, read-only."""
        return self._tally

    def push(self, message: Message) -> list[Release]:
        """Accepts one message; returns the updates that can be released now.

        Raises `InvalidMessage`, and then ignores the message. All other errors are raised after the message
        was accepted; what can be released then is returned by the next push, or by `drain`. `Contradiction`:
        its time is never released; other times continue. `LimitExceeded` and `SpillFailed`: nothing is lost,
        and the next push tries again; their cause is the contradiction, if there is one too.
        """
        origin = self._origin(message, Updates)
        if isinstance(message, Updates):
            self._take(message, origin)
        else:
            self._tally.declare(message, origin)
        failed: TidemillError | None = None
        try:
            self._release()
        except SpillFailed as e:
            failed = e
        return self._handed_out(failed)

    def _take(self, message: Updates, origin: str) -> None:
        """Rules 1 and 2."""
        checked = [_checked(update, origin) for update in items_of(message.updates, "updates", origin)]
        self._tally.agree((time for _, time, _ in checked), origin)
        times = list(dict.fromkeys(time for _, time, _ in checked))
        wanted = set(compress(times, self._tally.news(times)))
        added: dict[Time, int] = {}
        for data, time, diff in checked:
            if time not in wanted:
                continue
            if diff == 0:
                self._tally.poison(time, problems.ZERO_DIFF, _said(data, time, diff, origin))
                wanted.discard(time)
                continue
            known = self._stash.add(data, time, diff, origin)
            if known is None:
                if self._stash.spilled(time):
                    self._tally.set_apart(time)
                else:
                    added[time] = added.get(time, 0) + 1
            elif known[0] != diff:
                self._tally.poison(
                    time,
                    problems.TWO_DIFFS,
                    _said(data, time, *known),
                    _said(data, time, diff, origin),
                )
                wanted.discard(time)
        self._tally.observe(((t, n) for t, n in added.items() if t in wanted), origin)

    def _release(self) -> None:
        """Rule 4."""
        before = self._tally.reported
        passed = self._tally.advance()
        if self._tally.reported != before:
            self._due.append((passed, list(before), list(self._tally.reported)))
        while self._due:
            times, _, frontier = self._due[0]
            self._ready.append((self._stash.take(times), frontier))
            del self._due[0]

    def _settle(self, time: Time) -> None:
        """Compares the updates that arrived for a time with its updates on disk."""
        for data, first, second in self._stash.gather(time):
            self._tally.poison(
                time, problems.TWO_DIFFS, _said(data, time, *first), _said(data, time, *second)
            )
        if not self._tally.poisoned(time):
            more = self._stash.count(time) - self._tally.observed(time)
            self._tally.observe([(time, more)], "several messages, some of them on disk")

    def _content(self, time: Time) -> int:
        held = self._stash.peek(time)
        try:
            return content_of(((data, time, diff) for data, diff in held), self._update_hash)
        except Exception as e:  # any error of the data's own hash
            raise NoDigest(f"{type(e).__name__}: {e}") from e


def _checked(update: Any, origin: str) -> Update:
    try:
        data, at, diff = update
    except (TypeError, ValueError):
        raise InvalidMessage(f"not an update: {update!r}", origin) from None
    time = checked_time(at, origin)
    if isinstance(diff, bool) or not isinstance(diff, int) or not -MAX_DIFF <= diff <= MAX_DIFF:
        raise InvalidMessage(f"not a diff: {diff!r}", origin)
    try:
        hash(data)
    except Exception:  # any error of the data's own methods
        raise InvalidMessage(
            f"data of type {type(data).__name__} is not hashable", origin, hint="Use tuples for rows."
        ) from None
    return one_nan(data), time, diff


def _said(data: Hashable, time: Time, diff: int, origin: str) -> str:
    return f"({data!r}, {time}, {diff:+}) in {origin}"
