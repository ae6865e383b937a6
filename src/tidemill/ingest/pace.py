"""The size of a source's bindings and tasks while it catches up, adapted to its measured speed.

The cost of a record differs between sources by a factor of a hundred. A binding should be about a second of
work: a crash repeats no more than that, and smaller bindings would need too many Spark jobs. A task should be
some 200 ms: Spark does not preempt tasks, so a shared job may wait that long for a core.
"""

from __future__ import annotations

from tidemill.ingest.unit import UnitFacts
from tidemill.sources.contract import ReadLimits

# What a task should take, and the bounds of what it reads: below, starting it costs more than its work.
TASK_SECONDS = 0.2
FIRST_TASK_RECORDS = 100_000
LEAST_TASK_RECORDS = 20_000
MOST_TASK_RECORDS = 2_000_000
# A binding that took less than this doubles the next one, one that took more than that halves it.
SHORT_SECONDS, LONG_SECONDS = 0.7, 3.0
LEAST_RECORDS = 50_000
# Rows of plain records go to parts as they come; those that meet by key are held by the task that gets them.
MOST_RECORDS, MOST_KEYED_RECORDS = 16_000_000, 2_000_000
# Of the upstream, in one binding, however few its records: what the tasks of a keyed unit hold between them.
MOST_BYTES = 512 << 20


class CatchUpPace:
    """One source's; only the holder of its slot calls it."""

    def __init__(self, limits: ReadLimits, *, keyed: bool) -> None:
        # What one binding may cover, and what one task of a unit of its own should read.
        self.limits = limits
        self.task_records = FIRST_TASK_RECORDS
        self._most = MOST_KEYED_RECORDS if keyed else MOST_RECORDS

    def ways(self, records: int, cores: int) -> int:
        """Into how many pieces a unit of its own is cut, of so many records or what they give."""
        return max(cores, -(-records // self.task_records))

    def learn(self, facts: UnitFacts, seconds: float, weight: float = 1.0) -> None:
        """After a unit of its own that went well; a record gave about `weight` rows, which `ways` counts."""
        if not facts.records:
            return
        work = facts.read_seconds + facts.state_seconds + facts.write_seconds
        each = work / (facts.records * weight)
        if each > 0:
            fitting = int(TASK_SECONDS / each)
            self.task_records = max(LEAST_TASK_RECORDS, min(fitting, MOST_TASK_RECORDS))
        records = self.limits.records
        if seconds < SHORT_SECONDS and facts.records * 2 > records:
            records = min(records * 2, max(records, self._most))
        elif seconds > LONG_SECONDS:
            records = max(records // 2, min(records, LEAST_RECORDS))
        if facts.bytes:
            records = min(records, max(1, MOST_BYTES * facts.records // facts.bytes))
        self.limits = ReadLimits(records)
