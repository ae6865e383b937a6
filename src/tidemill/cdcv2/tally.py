"""Tally: the counts and arrivals of each time, and how far they are complete. The core of recovery.

Called by `Recovery` and `ColumnRecovery`, which store the updates. The tally holds only numbers per time, so
the same rules serve Python values, Arrow columns and external stashes.

Promises: the reported frontier always consists of the least times not known to be complete (as early as it
can be known, never too early). It never goes back. All state concerns times beyond it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, cast

from tidemill.cdcv2 import problems
from tidemill.cdcv2.account import Account, checked_contents, checked_counts, checked_list
from tidemill.cdcv2.coverage import MAX_FRONTIER, Coverage, StatedSpan, empty_coverage, reaches
from tidemill.cdcv2.digest import seal_of, signed
from tidemill.cdcv2.messages import Progress
from tidemill.cdcv2.problems import Contradiction, InvalidMessage, NoDigest, ResumeMismatch
from tidemill.cdcv2.stalls import Stall, Waits
from tidemill.cdcv2.times import (
    INTEGERS,
    Frontier,
    Time,
    beyond,
    beyond_each,
    checked,
    items_of,
    kind_of,
    least,
    less_equal,
    minimal,
    shown,
    within_each,
)
from tidemill.errors import LimitExceeded
from tidemill.time.clock import Clock, SystemClock

# Statements that reach beyond the reported frontier. A writer makes about one a second: a day of them is
# 86,400, and a week behind one lost update still fits; each is about 200 bytes.
MAX_STATEMENTS = 1_000_000
# Times with updates or counts beyond the reported frontier, at about 300 bytes each.
MAX_TIMES = 10_000_000

# Elements of a statement's bound. Comparing bounds takes the product of their sizes; a message must not
# choose how long that is.
MAX_BOUND = 1_000
# The number of times of the frontier whose reasons are reported. Each requires a scan of all statements.
MAX_STALLS = 100


class Tally:
    """Statements and counts. `reported` is R, `progress` is P of the explanation in docs/cdcv2.md."""

    def __init__(
        self,
        resume_from: Iterable[Time] | None,
        *,
        content: Callable[[Time], int],
        settle: Callable[[Time], None] | None = None,
        clock: Clock | None = None,
        require_digests: bool = False,
        max_statements: int = MAX_STATEMENTS,
        max_times: int = MAX_TIMES,
        max_frontier: int = MAX_FRONTIER,
    ) -> None:
        # Integers, or products of so many; None until the first time is seen.
        self.kind: int | None = None
        # From `resume_from`, until a message of that kind has arrived.
        self._resumed: int | None = None
        # Everything not beyond it was released; nothing about such times is kept or examined.
        self.reported: Frontier = (0,)
        # The least times that no statement covers. Always at or beyond `reported`.
        self.progress: Frontier = (0,)
        # The statements that cover times beyond `reported`: to advance `progress`, and to name the statement
        # that says that a time is empty.
        self._coverage: Coverage = empty_coverage(INTEGERS)
        # The state of times beyond `reported`.
        self._accounts: dict[Time, Account] = {}
        # The same times in order (for products an order that extends theirs), to find those of a region.
        self._order: list[Time] = []
        # The number of them that are poisoned. They stay: `reported` never passes them.
        self._poisoned = 0
        # The results of the last calls; the owner takes them.
        self._found: list[Contradiction] = []
        # The time at which each element of `reported` became one, in microseconds of the monotonic clock.
        self._clock = clock or SystemClock()
        self._since: dict[Time, int] = {0: self._clock.monotonic_us()}
        # The digest of the stash's contents at a time. Raises NoDigest.
        self._content = content
        # Makes the stash compare the updates that it could not, and observes the new ones.
        self._settle = settle
        self._require_digests = require_digests
        self._max_statements = max_statements
        self._max_times = max_times
        self._max_frontier = max_frontier
        if resume_from is not None:
            given = items_of(resume_from, "times", "resume_from")
            start = [checked(t, "resume_from") for t in given]
            self.reported = self.progress = ()
            self.agree(start, "resume_from")
            self._resumed = self.kind
            self._stand_at(minimal(start))
            self.progress = self.reported

    # -- input -----------------------------------------------------------------------------------------------

    def agree(self, times: Iterable[Time], origin: str) -> None:
        """Checks that these times are of the stream's kind, which the first times determine. Called after all
        other checks of a message, so that a refused message has no effect."""
        kinds = set(map(kind_of, times))
        if self._resumed is not None and len(kinds) == 1:
            if self._resumed not in kinds:
                raise ResumeMismatch(_kind_name(self._resumed), _kind_name(kinds.pop()), origin)
            self._resumed = None
        if self.kind is not None:
            kinds.add(self.kind)
        if len(kinds) > 1:
            raise InvalidMessage(
                f"times of two kinds: {' and '.join(_kind_name(k) for k in sorted(kinds))}", origin
            )
        if self.kind is None and kinds:
            self._learn(kinds.pop())

    def news(self, times: Sequence[Time]) -> list[bool]:
        """For each of `times` (of the stream's kind), whether updates at it are needed: it was neither
        reported nor found contradictory. Opens accounts for those."""
        reported = self.reported
        if self.kind == INTEGERS and reported:
            first = cast("int", reported[0])
            wanted = [t >= first for t in cast("Sequence[int]", times)]
        else:
            wanted = beyond_each(reported, times)
        self.open(compress(times, wanted))
        if self._poisoned:
            wanted = [w and not self.poisoned(t) for t, w in zip(times, wanted, strict=True)]
        return wanted

    def open(self, times: Iterable[Time]) -> None:
        """Opens an account for each of `times`, all beyond `reported`."""
        accounts = self._accounts
        fresh = [t for t in times if t not in accounts]
        if not fresh:
            return
        for time, by in zip(fresh, self._coverage.covering_each(fresh), strict=True):
            accounts[time] = Account(by)
        if len(fresh) == 1:
            self._order.insert(bisect_left(self._order, cast("Any", fresh[0])), fresh[0])
        else:
            self._order.extend(fresh)
            cast("list[Any]", self._order).sort()

    def observe(self, counts: Iterable[tuple[Time, int]], origin: str) -> None:
        """Adds these numbers of distinct updates to these times, which have accounts."""
        accounts = self._accounts
        for time, count in counts:
            account = accounts[time]
            account.observed += count
            account.verified = False
            if account.declared is not None and account.observed > account.declared:
                self._too_many(time, account, f"updates of {origin}")

    def set_apart(self, time: Time) -> None:
        """Called for updates that the stash cannot cheaply compare with those that it has for their time."""
        self._accounts[time].apart = True

    def observed(self, time: Time) -> int:
        return self._accounts[time].observed

    def declare(self, message: Progress, origin: str) -> None:
        """Accepts a progress statement, or finds the error in it."""
        lower, upper = _bound(message.lower, origin), _bound(message.upper, origin)
        counts = checked_counts(message.counts, origin)
        contents = checked_contents(message, origin)
        if contents is None and self._require_digests:
            raise InvalidMessage("a statement without a digest", origin)
        self.agree((*lower, *upper, *(t for t, _ in counts)), origin)
        statement = StatedSpan(lower, upper, origin)
        if self._refutes_itself(message, statement, counts):
            return
        statement = StatedSpan(minimal(lower), minimal(upper), origin)
        if not reaches(self.reported, statement.lower, statement.upper):
            return
        news = beyond_each(self.reported, [t for t, _ in counts])
        stated = {t: n for (t, n), new in zip(counts, news, strict=True) if n and new}
        self.open(stated)
        digests = {} if contents is None else dict(zip((t for t, _ in counts), contents, strict=True))
        for time in self._between(statement):
            account = self._accounts[time]
            if account.poison is None:
                self._weigh(time, account, statement, stated.get(time, 0))
            if account.poison is None and contents is not None:
                self._weigh_content(time, account, statement, digests.get(time, 0))
        self._coverage.add(statement)
        self.progress = self._coverage.extend(self.progress, statement)

    def poison(self, time: Time, kind: str, first: str, second: str | None = None) -> None:
        """Records a contradiction at `time`, which is not released if it was not yet."""
        if not beyond(self.reported, time):
            return
        self.open((time,))
        account = self._accounts[time]
        if account.poison is None:
            account.poison = Contradiction(kind, time, first, second)
            # The owner drops its updates: nothing is left to compare.
            account.apart = False
            self._poisoned += 1
            self._found.append(account.poison)

    def poisoned(self, time: Time) -> bool:
        account = self._accounts.get(time)
        return account is not None and account.poison is not None

    # -- output ----------------------------------------------------------------------------------------------

    def advance(self) -> list[Time]:
        """Advances `reported` as far as can be known, and removes the state that it passes. Returns the times
        that had updates, in order."""
        uncovered = frozenset(self.progress)
        if all(r in uncovered or self._holds(r) for r in self.reported):
            return []
        while True:
            if self.kind == INTEGERS:
                holding = self._first_blocked()
            else:
                holding = [t for t in self._order if self._blocked(t)]
            reported = minimal((*self.progress, *holding))
            apart = [t for t in reported if t in self._accounts and self._accounts[t].apart]
            if not apart:
                break
            # The comparison is expensive, so it is made only where the frontier waits.
            for time in apart:
                if self._settle is not None:
                    self._settle(time)
                self._accounts[time].apart = False
        self._stand_at(reported)
        passed = self._passed()
        for time in passed:
            del self._accounts[time]
        self._coverage.forget(self.reported)
        return passed

    def take_found(self) -> list[Contradiction]:
        """The contradictions found since the last call."""
        found, self._found = self._found, []
        return found

    def check_limits(self) -> None:
        """Called after `advance`: only the necessary state is left then."""
        if len(self._coverage) > self._max_statements:
            raise LimitExceeded(
                f"more than {self._max_statements} pending statements",
                detail=f"The stream is complete up to {shown(self.reported)} and was stated beyond it.",
                hint="Raise max_statements, or find out why the earlier times do not complete.",
            )
        if self._coverage.held_back:
            raise LimitExceeded(
                f"the progress frontier has more than {self._max_frontier} times",
                detail=f"The stream is complete up to {shown(self.reported)}. What is stated beyond it ends"
                " at too many times that come neither before nor after one another.",
                hint="Raise max_frontier, or have larger regions stated: one that covers all of this in one"
                " piece lets the stream go on.",
            )
        if len(self._accounts) > self._max_times:
            raise LimitExceeded(
                f"more than {self._max_times} unreported times",
                detail=f"The stream is complete up to {shown(self.reported)}.",
                hint="Raise max_times, or find out why the earlier times do not complete.",
            )

    def stalls(self) -> list[Stall]:
        """The reasons why the stream waits, for the first MAX_STALLS waiting times of the frontier. Empty if
        nothing beyond `reported` has arrived yet."""
        now = self._clock.monotonic_us()
        found: list[Stall] = []
        for time in self.reported:
            if len(found) == MAX_STALLS:
                break
            seconds = (now - self._since[time]) / 1e6
            account = self._accounts.get(time)
            if account is not None and account.poison is not None:
                found.append(Stall(time, Waits.CONTRADICTION, seconds, reason=account.poison.primary))
            elif account is not None and account.declared is not None:
                have, want, by = account.observed, account.declared, str(account.declared_by)
                found.append(Stall(time, Waits.MISSING, seconds, have=have, want=want, by=by))
            elif nearest := self._coverage.nearest(time):
                found.append(Stall(time, Waits.GAP, seconds, nearest=nearest))
            elif any(less_equal(time, t) for t in self._order):
                found.append(Stall(time, Waits.GAP, seconds))
        return found

    def unreported(self) -> Iterator[tuple[Time, int, int | None, bool]]:
        """The times with any state, in order: the updates that have arrived, their total number (None until
        it is stated), and whether the time is never released."""
        for time in self._order:
            account = self._accounts[time]
            yield time, account.observed, account.declared, account.poison is not None

    def statements(self) -> Sequence[StatedSpan]:
        """The number of statements that reach beyond `reported`."""
        return self._coverage.statements()

    @property
    def pending_statements(self) -> int:
        return len(self._coverage)

    @property
    def pending_times(self) -> int:
        return len(self._accounts)

    # -- to be kept elsewhere --------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """The whole state as JSON values, for programs that store recovery's state in a table: frontiers,
        pending statements, and each unreported time with its numbers. The stash is stored separately."""
        return {
            "kind": self.kind,
            "reported": list(self.reported),
            "progress": list(self.progress),
            "statements": [_dumped(s) for s in self._coverage.statements()],
            "times": [
                {
                    "time": time,
                    "observed": account.observed,
                    "declared": account.declared,
                    "declared_by": _dumped(account.declared_by),
                    "content": account.content,
                    "content_by": _dumped(account.content_by),
                    "poison": None if account.poison is None else account.poison.said,
                }
                for time, account in self._accounts.items()
            ],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continues from a `dump`; the tally must be new. The waiting time of each time starts again."""
        self.kind = state["kind"]
        self._coverage = empty_coverage(self.kind or INTEGERS, self._max_frontier)
        self._stand_at(_times(state["reported"]))
        self.progress = _times(state["progress"])
        for said in state["statements"]:
            self._coverage.add(cast("StatedSpan", _loaded(said)))
        # The frontier is where it was, unless the limit held it back.
        self.progress = self._coverage.extend(self.progress, None)
        for known in state["times"]:
            time = _times([known["time"]])[0]
            self.open((time,))
            account = self._accounts[time]
            account.observed, account.declared = known["observed"], known["declared"]
            account.declared_by = _loaded(known["declared_by"])
            account.content, account.content_by = known["content"], _loaded(known["content_by"])
            if known["poison"] is not None:
                kind, first, second = known["poison"]
                account.poison = Contradiction(kind, time, first, second)
                self._poisoned += 1

    # -- within ----------------------------------------------------------------------------------------------

    def _learn(self, kind: int) -> None:
        self.kind = kind
        if kind != INTEGERS:
            self._coverage = empty_coverage(kind, self._max_frontier)
            if self.reported:
                self._stand_at((least(kind),))
                self.progress = self.reported

    def _stand_at(self, reported: Frontier) -> None:
        now = self._clock.monotonic_us()
        self._since = {t: self._since.get(t, now) for t in reported}
        self.reported = reported

    def _refutes_itself(
        self,
        message: Progress,
        statement: StatedSpan,
        counts: Sequence[tuple[Time, int]],
    ) -> bool:
        """Poisons the times of a statement that cannot be true; the statement is not accepted."""
        lower, upper = statement.lower, statement.upper
        either = (*lower, *upper)
        bounds = minimal(compress(either, beyond_each(self.reported, either)))
        wrong: list[tuple[str, Sequence[Time]]] = []
        if message.seal is not None and seal_of(message) != signed(message.seal):
            wrong.append((problems.SEAL_BROKEN, bounds))
        if len(minimal(lower)) != len(lower) or len(minimal(upper)) != len(upper):
            wrong.append((problems.NO_ANTICHAIN, bounds))
        elif not all(beyond_each(lower, upper)):
            wrong.append((problems.BOUNDS_CROSSED, bounds))
        seen: set[Time] = set()
        times = [time for time, _ in counts]
        for time, inside in zip(times, within_each(lower, upper, times), strict=True):
            if time in seen:
                wrong.append((problems.COUNT_REPEATED, [time]))
            elif not inside:
                wrong.append((problems.COUNT_OUTSIDE, [time]))
            seen.add(time)
        for kind, at in wrong:
            still = list(compress(at, beyond_each(self.reported, at)))
            for time in still:
                self.poison(time, kind, str(statement))
            if not still:
                self._found.append(Contradiction(kind, None, str(statement)))
        return bool(wrong)

    def _weigh(self, time: Time, account: Account, statement: StatedSpan, count: int) -> None:
        if account.declared is None:
            account.declared, account.declared_by = count, statement
        elif account.declared != count:
            self.poison(
                time,
                problems.COUNTS_DIFFER,
                f"{account.declared} updates in {account.declared_by}",
                f"{count} updates in {statement}",
            )
            return
        if account.observed > count:
            self._too_many(time, account, f"{account.observed} distinct updates")

    def _weigh_content(self, time: Time, account: Account, statement: StatedSpan, content: int) -> None:
        if account.content is None:
            account.content, account.content_by = content, statement
        elif account.content != content:
            self.poison(
                time,
                problems.CONTENTS_DIFFER,
                f"{account.content} in {account.content_by}",
                f"{content} in {statement}",
            )

    def _too_many(self, time: Time, account: Account, what: str) -> None:
        self.poison(time, problems.TOO_MANY, f"{account.declared} updates in {account.declared_by}", what)

    def _between(self, statement: StatedSpan) -> list[Time]:
        """The times with accounts in the statement's region."""
        order = cast("list[Any]", self._order)
        if self.kind == INTEGERS:
            first = bisect_left(order, statement.lower[0])
            last = bisect_left(order, statement.upper[0]) if statement.upper else len(order)
            return order[first:last]
        # In the order of tuples, no time of the region is before the least of `lower`.
        first = bisect_left(order, min(cast("Any", statement.lower)))
        known = order[first:]
        return list(compress(known, within_each(statement.lower, statement.upper, known)))

    def _holds(self, time: Time) -> bool:
        """Whether this element of `reported`, which is covered, still blocks it."""
        account = self._accounts.get(time)
        return account is not None and not account.apart and self._blocked(time)

    def _blocked(self, time: Time) -> bool:
        """Whether this covered time is incomplete. (An uncovered one is beyond `progress` anyway.)"""
        account = self._accounts[time]
        if account.poison is None and account.declared is not None:
            if account.apart or account.observed < account.declared:
                return True
            if account.content is not None and not account.verified:
                self._verify(time, account, account.content)
        return account.poison is not None

    def _verify(self, time: Time, account: Account, content: int) -> None:
        said = f"{content} in {account.content_by}"
        try:
            found = self._content(time) if account.observed else 0
        except NoDigest as e:
            self.poison(time, problems.NO_DIGEST, said, f"{account.observed} updates: {e.primary}")
            return
        account.verified = True
        if found != content:
            second = f"{account.observed} updates with digest {found}"
            self.poison(time, problems.CONTENT_WRONG, said, second)

    def _first_blocked(self) -> list[Time]:
        """For integers: times after the first blocked one are beyond it. All times that are passed here are
        reported right after, so each time is examined once."""
        for time in self._order:
            if beyond(self.progress, time):
                break
            if self._blocked(time):
                return [time]
        return []

    def _passed(self) -> list[Time]:
        """Removes the times that are not beyond `reported` from the order."""
        if self.kind == INTEGERS or not self.reported:
            order = cast("list[Any]", self._order)
            count = bisect_left(order, self.reported[0]) if self.reported else len(order)
            passed = self._order[:count]
            del self._order[:count]
            return passed
        later = beyond_each(self.reported, self._order)
        passed = [t for t, keep in zip(self._order, later, strict=True) if not keep]
        if passed:
            self._order = list(compress(self._order, later))
        return passed


def _bound(times: Any, origin: str) -> Frontier:
    times = checked_list(times, "times", origin)
    if len(times) > MAX_BOUND:
        raise InvalidMessage(f"a bound of more than {MAX_BOUND} times", origin)
    return tuple(checked(t, origin) for t in times)


def _kind_name(kind: int) -> str:
    return "integers" if kind == INTEGERS else f"products of {kind} integers"


def _times(values: Sequence[Any]) -> Frontier:
    """Times as JSON has them."""
    return tuple(tuple(v) if isinstance(v, (list, tuple)) else v for v in values)


def _dumped(statement: StatedSpan | None) -> list[Any] | None:
    return None if statement is None else [list(statement.lower), list(statement.upper), statement.origin]


def _loaded(said: Sequence[Any] | None) -> StatedSpan | None:
    return None if said is None else StatedSpan(_times(said[0]), _times(said[1]), said[2])
