"""State of a shard at one version of its log: live parts, since, upper, epoch, description.

Each open handle keeps the state in memory and advances it entry by entry. `apply` refuses entries that a
correct writer cannot have written. A double remove or a decreasing upper thus raises an error at the first
reader instead of a wrong answer. The work per entry is proportional to the entry, never to the number of live
parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemill.errors import DataCorrupted
from tidemill.persist.entry import CLOSED, Actions, Entry, Metadata, Operation
from tidemill.persist.part import Part

# Parts are ranked by their number of updates, in powers of this; a rank that has so many parts is merged
# (`compact`). 16: a day of one-row commits (86,400 < 16^5) keeps at most 15 parts in each of 5 ranks and
# rewrites an update 4 times.
FANOUT_BITS = 4
FANOUT = 1 << FANOUT_BITS


# Tombstones kept in memory, some 250 bytes each: 25 MB. A handle that only follows never sweeps; the sweep
# for orphans finds the files of dropped tombstones.
MAX_TOMBSTONES = 100_000


def rank(part: Part) -> int:
    """floor(log_FANOUT(rows))."""
    return (part.rows.bit_length() - 1) // FANOUT_BITS


def upper_reaches(upper: int, time: int) -> bool:
    """Whether `upper` (maybe CLOSED) is at or past `time` (maybe CLOSED)."""
    return upper == CLOSED or (time != CLOSED and upper >= time)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A part that is no longer live: `version` (or an earlier one, if read from a checkpoint) removed it at
    `at`."""

    version: int
    at: int  # milliseconds since the Unix epoch, by the remover's clock


@dataclass(slots=True)
class ShardState:
    """Mutable; the owner guards it."""

    version: int
    metadata: Metadata
    since: int
    upper: int  # CLOSED for the empty frontier
    epoch: int
    # path -> part, in the order of the log: appends are in the order of their times.
    parts: dict[str, Part] = field(default_factory=dict[str, Part])
    # rank -> path -> part: the same parts, so that compaction finds its inputs without a scan.
    ranks: dict[int, dict[str, Part]] = field(default_factory=dict[int, dict[str, Part]])
    # path -> when it stopped being live. Kept until the sweeper has deleted the file; ordered by removal.
    removed: dict[str, Tombstone] = field(default_factory=dict[str, Tombstone])
    bytes: int = 0
    rows: int = 0
    # The parts' together (`Part.weight`).
    weight: int = 0

    def apply(self, version: int, entry: Entry, name: str) -> None:
        """Move on by one entry; raises DataCorrupted, and changes nothing, when it cannot follow this
        state."""
        wrong = self.objection(version, entry)
        if wrong is not None:
            raise DataCorrupted(
                f'log entry "{name}" does not follow the entries before it',
                detail=wrong,
                hint="Another program wrote to the table, or the data directory is damaged.",
            )
        for path in entry.removes:
            part = self.parts.pop(path)
            ranked = self.ranks[rank(part)]
            del ranked[path]
            self.rows -= part.rows
            self.bytes -= part.bytes
            self.weight -= part.weight
            self.removed[path] = Tombstone(version, entry.timestamp)
        while len(self.removed) > MAX_TOMBSTONES:
            del self.removed[next(iter(self.removed))]
        for part in entry.adds:
            self.take(part)
        if entry.upper is not None:
            self.upper = entry.upper
        if entry.since is not None:
            self.since = entry.since
        if entry.epoch is not None:
            self.epoch = entry.epoch
        if entry.metadata is not None:
            self.metadata = entry.metadata
        self.version = version

    def objection(self, version: int, entry: Entry) -> str | None:
        """Why the entry cannot follow this state; None where it can."""
        if version != self.version + 1:
            return f"It is version {version}, the one before is {self.version}."
        if len(set(entry.removes)) != len(entry.removes):
            return "It removes a part twice."
        for path in entry.removes:
            if path not in self.parts:
                return f'It removes "{path}", which is not live.'
        for part in entry.adds:
            if part.path in self.parts or part.path in self.removed:
                return f'It adds "{part.path}", which was there before.'
        if entry.upper is not None and not upper_reaches(entry.upper, self.upper):
            return f"It moves upper from {self.upper} back to {entry.upper}."
        if entry.since is not None and entry.since < self.since:
            return f"It moves since from {self.since} back to {entry.since}."
        if entry.epoch is None or entry.epoch < self.epoch:
            return f"Its epoch is {entry.epoch}, the shard's is {self.epoch}."
        if entry.epoch > self.epoch and entry.operation not in (Operation.FENCE, Operation.CREATE):
            return f"It moves the epoch from {self.epoch} to {entry.epoch} without saying so."
        if entry.operation is Operation.APPEND:
            upper = self.upper if entry.upper is None else entry.upper
            for part in entry.adds:
                if self.upper == CLOSED or part.min_time < self.upper or upper_reaches(part.max_time, upper):
                    return f'It appends "{part.path}" with times outside [{self.upper}, {upper}).'
        return None

    def take(self, part: Part) -> None:
        """Put a part among the live ones."""
        self.parts[part.path] = part
        self.ranks.setdefault(rank(part), {})[part.path] = part
        self.rows += part.rows
        self.bytes += part.bytes
        self.weight += part.weight


def state_of(version: int, actions: Actions, name: str) -> ShardState:
    """The state that a checkpoint (or entry 0) describes whole."""
    metadata, upper, since, epoch = actions.metadata, actions.upper, actions.since, actions.epoch
    if metadata is None or upper is None or since is None or epoch is None:
        raise DataCorrupted(
            f'"{name}" does not describe a shard',
            detail="It lacks metadata, upper, since or epoch.",
            hint="The table is no shard of this program, or the data directory is damaged.",
        )
    state = ShardState(version, metadata, since, upper, epoch)
    for part in actions.adds:
        state.take(part)
    for removed in sorted(actions.removes, key=lambda r: r.at):
        state.removed[removed.path] = Tombstone(version, removed.at)
    return state
