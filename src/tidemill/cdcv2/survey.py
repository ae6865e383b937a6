"""Survey of a stream: a recovery that inspects its contents and progress instead of returning updates.

Called by `tidemill cdcv2 inspect` with one message after another. `findings` returns the results, and `steps`
the input of `timeline`. No content of a stream stops it: contradictions and invalid messages are recorded,
and reading continues. Memory is that of recovery (its stash spills to disk beyond a limit), and of a limited
number of steps and notes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemill.cdcv2.messages import Message, Updates
from tidemill.cdcv2.problems import Contradiction, InvalidMessage, ResumeMismatch
from tidemill.cdcv2.recovery import Recovery
from tidemill.cdcv2.stalls import Stall, Waits
from tidemill.cdcv2.steps import Steps, TimelineStep
from tidemill.cdcv2.times import Time

# Updates in memory, some 600 bytes each with their texts; more are stored on disk.
MAX_STASHED = 1_000_000
# Contradictions and unreadable messages that are shown; all are counted.
MAX_NOTED = 100


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A message, or the error in its place; and when it was written (ms), if the transport provides that."""

    said: Message | InvalidMessage
    at: int | None = None


@dataclass(frozen=True, slots=True)
class Since:
    """The message after which the frontier reached a time."""

    message: int
    origin: str
    at: int | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting time. `since` is None if it has waited from the beginning."""

    stall: Stall
    since: Since | None

    @property
    def open_end(self) -> bool:
        """Only updates have arrived beyond it, no statement. A writer makes statements after the updates that
        they count, so a stream normally looks like this while it is written."""
        return self.stall.waits is Waits.GAP and not self.stall.nearest


@dataclass(slots=True)
class Findings:
    messages: int = 0
    # Updates as they were sent, repetitions included; and the distinct ones.
    updates: int = 0
    distinct: int = 0
    statements: int = 0
    # The number of distinct times with updates; the lowest and the highest time of any message, for integer
    # times.
    times: int = 0
    first: int | None = None
    last: int | None = None
    # Released, and complete before `frontier`; [] when all of the history is complete.
    released: int = 0
    frontier: list[Time] = field(default_factory=list[Time])
    # Updates stashed at the end, and at most.
    stashed: int = 0
    most_stashed: int = 0
    pending_statements: int = 0
    waits: list[Waiting] = field(default_factory=list[Waiting])
    # The first of them, and their number.
    contradictions: list[Contradiction] = field(default_factory=list[Contradiction])
    contradicted: int = 0
    unreadable: list[InvalidMessage] = field(default_factory=list[InvalidMessage])
    unread: int = 0

    @property
    def sound(self) -> bool:
        """Whether there are no contradictions and no unreadable messages, and nothing waits except for the
        next statement."""
        return not self.contradicted and not self.unread and all(w.open_end for w in self.waits)


class Survey:
    def __init__(self, resume_from: Iterable[Time] | None = None, *, max_stashed: int = MAX_STASHED) -> None:
        self._recovery = Recovery(resume_from, max_stashed)
        self._found = Findings()
        self._steps = Steps(self._recovery.frontier)
        # Each is released once.
        self._released_times = 0
        # By element of the frontier.
        self._since: dict[Time, Since] = {}
        self._frontier = self._recovery.frontier
        # The first message whose times differ in kind from `resume_from`; None if any had the same kind.
        self._mismatch: ResumeMismatch | None = None

    def take(self, heard: StreamReport) -> None:
        """Accepts the next message. Raises LimitExceeded if even the disk is not enough, and ResumeMismatch
        if `resume_from` does not fit any message."""
        found, said = self._found, heard.said
        found.messages += 1
        if isinstance(said, InvalidMessage):
            self._unread(said)
            return
        if isinstance(said, Updates):
            found.updates += len(said.updates)
        else:
            found.statements += 1
        try:
            released = self._recovery.push(said)
        except InvalidMessage as e:
            self._unread(e)
            if isinstance(e, ResumeMismatch):
                self._mismatch = self._mismatch or e
                if found.unread > MAX_NOTED:
                    raise self._mismatch from None
            return
        except Contradiction as e:
            everything = (e, *e.others)
            found.contradicted += len(everything)
            found.contradictions += everything[: MAX_NOTED - len(found.contradictions)]
            released = self._recovery.drain()
        # A single message that does not fit among others that do is only a bad message.
        self._mismatch = None
        times: dict[Time, int] = {}
        for updates, _ in released:
            for _, time, _ in updates:
                times[time] = times.get(time, 0) + 1
        found.released += sum(times.values())
        self._released_times += len(times)
        found.most_stashed = max(found.most_stashed, self._recovery.stashed)
        self._span(said)
        self._stand(said.origin or f"message {found.messages}", heard.at)
        self._steps.add(found.messages, said, self._recovery, times)

    def findings(self) -> Findings:
        """The results so far. Raises ResumeMismatch."""
        if self._mismatch is not None:
            raise self._mismatch
        found, recovery = self._found, self._recovery
        found.frontier = recovery.frontier
        found.stashed = recovery.stashed
        found.distinct = found.released + found.stashed
        pending = sum(observed > 0 for _, observed, _, _ in recovery.tally.unreported())
        found.times = self._released_times + pending
        found.pending_statements = recovery.pending_statements
        found.waits = [Waiting(stall, self._since.get(stall.time)) for stall in recovery.stalls()]
        return found

    def steps(self) -> list[TimelineStep]:
        """The stream in a few dozen steps."""
        return self._steps.all(self._recovery)

    def _unread(self, error: InvalidMessage) -> None:
        self._found.unread += 1
        if len(self._found.unreadable) < MAX_NOTED:
            self._found.unreadable.append(error)

    def _span(self, said: Message) -> None:
        if isinstance(said, Updates):
            times = [time for _, time, _ in said.updates]
        else:
            times = [*said.lower, *said.upper]
        numbers = [t for t in times if isinstance(t, int)]
        if numbers:
            low, high = min(numbers), max(numbers)
            first, last = self._found.first, self._found.last
            self._found.first = low if first is None else min(first, low)
            self._found.last = high if last is None else max(last, high)

    def _stand(self, origin: str, at: int | None) -> None:
        frontier = self._recovery.frontier
        if frontier != self._frontier:
            now = Since(self._found.messages, origin, at)
            before = set(self._frontier)
            since = {t: now for t in frontier if t not in before}
            self._since = {t: s for t, s in self._since.items() if t in frontier} | since
            self._frontier = frontier
