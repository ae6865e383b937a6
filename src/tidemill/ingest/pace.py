"""The size of a source's bindings and tasks while it catches up, adapted to its measured speed.

The cost of a record differs between sources by a factor of a hundred. A binding should be about a second of
work: a crash repeats no more than that, and smaller bindings would need too many Spark jobs. A task should be
some 200 ms: Spark does not preempt tasks, so a shared job may wait that long for a core.
"""

from __future__ import annotations

from tidemill.ingest.unit import UnitFacts
from tidemill.sources.contract import ReadLimits

# The duration of a task, and limits of its input. A smaller task would cost more to start than to run.
TASK_SECONDS = 0.2
FIRST_TASK_RECORDS = 100_000
LEAST_TASK_RECORDS = 20_000
MOST_TASK_RECORDS = 2_000_000
# A binding that took less than this doubles the next one; a binding that took more than that halves it.
SHORT_SECONDS, LONG_SECONDS = 0.7, 3.0
LEAST_RECORDS = 50_000
# Plain records are written to parts as they arrive. Records that meet by key are held by the task that gets
# them.
MOST_RECORDS, MOST_KEYED_RECORDS = 16_000_000, 2_000_000
# Upstream bytes in one binding, even if its records are few: the tasks of a keyed unit hold all of them.
MOST_BYTES = 512 << 20


class CatchUpPace:
    """The pace of one source. Only the holder of its slot calls it."""

    def __init__(self, limits: ReadLimits, *, keyed: bool) -> None:
        # The limit of one binding, and the records that one task of a separate unit should read.
        self.limits = limits
        self.task_records = FIRST_TASK_RECORDS
        self._most = MOST_KEYED_RECORDS if keyed else MOST_RECORDS

    def ways(self, records: int, cores: int) -> int:
        """The number of pieces of a separate unit with this many records or resulting rows."""
        return max(cores, -(-records // self.task_records))

    def learn(self, facts: UnitFacts, seconds: float, weight: float = 1.0) -> None:
        """Adapt the pace after a separate unit succeeded. `weight` is the average number of rows per record,
        which `ways` uses."""
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
