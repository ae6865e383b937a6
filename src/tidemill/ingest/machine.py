"""One source's order of steps: bind, read, commit; and after a crash, redo.

Driven by `ticker`, one step at a time and never two at once; knows nothing of Spark. The data shards' uppers
are the truth: a binding at or after the least of them is read again, however far an earlier attempt came, and
gives the same rows (the contract of sources), which a shard takes only once (compare-and-append).

Times: a source that keeps up binds at boundaries of its interval. One that has more to read than a binding
may cover, or has fallen behind, binds at successive times after its last one until it has caught up. Between
bindings the collections are complete up to `promised`: no binding will ever be made below it. That is kept
in memory only, never beyond the oracle's lease, so that a successor starts past every promise.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tidemill import failpoints
from tidemill.errors import Internal, TidemillError
from tidemill.ingest.unit import Facts, Target, Unit, Upsert
from tidemill.persist.outcome import UpperMismatch
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.reclock.boundaries import boundary
from tidemill.reclock.remap import Binding, Remap
from tidemill.sources.contract import Limits, Source, SourceError
from tidemill.sources.offsets import Offsets

log = logging.getLogger(__name__)

FP_BEFORE_COMMIT = failpoints.register("tick.before_commit", "a job is done, nothing of it is committed")
FP_COMMITTED = failpoints.register("tick.committed", "a shard has a tick's updates, nobody knows yet")
FP_BETWEEN = failpoints.register("tick.between_commits", "one of a source's shards has the tick, others not")

# An output that a tick gave no rows is not written to, but not for longer than this: after a crash its share
# of every binding since is read again.
IDLE_APPEND_MS = 10_000


class Home(Protocol):
    """What a machine needs of the environment."""

    def begin_job(self) -> str: ...

    def end_job(self, job: str) -> None: ...


class Clock(Protocol):
    """What a machine needs of the oracle."""

    @property
    def leased(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Timing:
    """When the source was made, and how often it binds; milliseconds."""

    created: int
    interval: int


class Machine:
    """See the module. Every field is what the next step needs; all of it comes back from the shards."""

    def __init__(
        self,
        source_id: str,
        source: Source,
        remap: Remap,
        shards: Sequence[Shard],
        timing: Timing,
        *,
        home: Home,
        clock: Clock,
        limits: Limits | None = None,
    ) -> None:
        """The shards are fenced by us, in the order of the source's outputs."""
        self.id = source_id
        self.source = source
        self.remap = remap
        self.shards = list(shards)
        self.timing = timing
        self._home = home
        self._clock = clock
        self._limits = limits or Limits()
        # Per output: complete before this time, by the log or because a binding gave it nothing.
        self._complete = [upper_of(shard) for shard in shards]
        # Bound, and not yet in every shard; in order. More than one only after a crash.
        self.pending: list[Binding] = remap.bindings(min(self._complete))
        # No binding will be made below it.
        self.promised = max(remap.upper, *self._complete)
        # Where the upstream stood when it was last asked, and what must be reached before the source is
        # readable for the first time.
        self.upstream: Offsets | None = None
        self._first: Offsets | None = None
        # A source is readable from the time at which it had first caught up: its since moves there.
        self.hydrated = all(shard.since > timing.created for shard in shards)

    # -- what others ask

    @property
    def readable(self) -> int:
        """All outputs are complete before it; 0 before the source has first caught up."""
        if not self.hydrated:
            return 0
        return self.pending[0].time if self.pending else self.promised

    @property
    def ingested(self) -> Offsets:
        """What is in the collections."""
        return self.pending[0].lower if self.pending else self.remap.frontier

    @property
    def behind(self) -> int | None:
        """Records that are upstream and not in the collections; None when the upstream was never asked."""
        if self.upstream is None:
            return None
        return max(0, self.upstream.records_since(self.ingested)) if self.ingested <= self.upstream else 0

    @property
    def catching_up(self) -> bool:
        """There is more to read than one binding covers."""
        return self.upstream is not None and not self.upstream <= self.remap.frontier

    # -- bind

    def bind(self, now: int) -> Binding | None:
        """Ask the upstream, and bind what is new; None when there is nothing, or it is not time yet. What was
        bound before is to be done first. Raises SourceError and the outcomes of a commit."""
        if self.pending:
            return self.pending[0]
        bound = self.remap.frontier
        upstream = self.source.frontier(now)
        if not bound <= upstream:
            raise SourceError(
                "the source's progress went back",
                detail=f"Its frontier was {bound}; now it is {upstream}.",
                hint="The upstream was truncated or made anew: drop the source and create it again.",
            )
        self.upstream = upstream
        if self._first is None:
            self._first = upstream
        at = boundary(now, self.timing.interval)
        if upstream == bound:
            self._promise(at + self.timing.interval)
            self._hydrate()
            return None
        upper = self.source.cut(bound, upstream, self._limits)
        if not (bound <= upper <= upstream) or upper == bound:
            raise Internal(f"a cut of {bound} to {upstream} gave {upper}")
        floor = max(self.remap.upper, self.promised)
        caught_up = upper == upstream
        time = at if caught_up and at >= floor else floor
        if time > now:
            return None
        job = self._home.begin_job()
        try:
            binding = self.remap.bind(time, upper, job)
        finally:
            self._home.end_job(job)
        self.pending.append(binding)
        self._promise(max(time + 1, at + self.timing.interval if caught_up else 0))
        return binding

    def _promise(self, until: int) -> None:
        """Never beyond the lease: a successor begins where it ends."""
        self.promised = max(self.promised, min(until, self._clock.leased))
        if self.pending:
            self.promised = max(self.promised, self.pending[-1].time + 1)

    # -- read

    def unit(self, ways: int, seconds: float) -> Unit:
        """The work of the oldest binding that is not done. The caller ends its job when it is committed or
        given up."""
        binding = self.pending[0]
        targets = tuple(self._target(index, shard, binding.time) for index, shard in enumerate(self.shards))
        return Unit(
            source=self.id,
            reader=self.source.reader(),
            pieces=tuple(self.source.split(binding.lower, binding.upper, ways)),
            time=binding.time,
            targets=targets,
            blobs=self.shards[0].blobs,
            job=self._home.begin_job(),
            seconds=seconds,
        )

    def _target(self, index: int, shard: Shard, time: int) -> Target:
        output = self.source.outputs[index]
        upsert = None
        if output.key is not None:
            names = output.desc.names
            upsert = Upsert(tuple(names.index(name) for name in output.key), upper_of(shard))
        return Target(shard.id, shard.desc, upsert, skip=self._complete[index] > time)

    def abandon(self, unit: Unit) -> None:
        """The unit's parts will never be appended."""
        self._home.end_job(unit.job)

    # -- commit

    def commit(self, unit: Unit, facts: Facts) -> None:
        """Append what the unit wrote to each shard. Raises the outcomes of a commit, and then the unit is to
        be done again; what one shard has already taken is left out then."""
        if facts.failure is not None:
            raise Internal("a unit that failed cannot be committed")
        binding = self.pending[0]
        if binding.time != unit.time:
            raise Internal(f"the unit is for {unit.time}, the next binding for {binding.time}")
        failpoints.hit(FP_BEFORE_COMMIT)
        try:
            for index, shard in enumerate(self.shards):
                if self._complete[index] > unit.time:
                    continue
                self._append(shard, facts, index, unit.time)
                self._complete[index] = unit.time + 1
                failpoints.hit(FP_BETWEEN)
        except TidemillError:
            self._look_again()
            raise
        finally:
            self._home.end_job(unit.job)
        self.pending.pop(0)
        self._hydrate()

    def _append(self, shard: Shard, facts: Facts, index: int, time: int) -> None:
        parts = facts.parts.get(index, [])
        lower = upper_of(shard)
        if not parts and len(self.shards) > 1 and time - lower < IDLE_APPEND_MS:
            return
        try:
            shard.compare_and_append(parts, lower, time + 1)
        except UpperMismatch:
            # An attempt whose outcome was unknown came through after all: nobody else writes here.
            if upper_of(shard) <= time:
                raise
        failpoints.hit(FP_COMMITTED)

    def _look_again(self) -> None:
        """After an append that may or may not have happened."""
        for index, shard in enumerate(self.shards):
            try:
                shard.refresh()
            except (TidemillError, OSError) as e:
                log.warning("shard %s could not be read: %s", shard.id, e)
            self._complete[index] = max(self._complete[index], upper_of(shard))

    def _hydrate(self) -> None:
        """The first time that all that was upstream is here: from now on the source can be read."""
        if self.hydrated or self.pending or self._first is None or not self._first <= self.remap.frontier:
            return
        since = max(self.timing.created + 1, *(upper_of(shard) - 1 for shard in self.shards))
        self._promise(since + 1)
        for shard in self.shards:
            shard.downgrade_since(since, record=True)
        self.hydrated = True

    # -- history

    def retain(self, now: int, milliseconds: int, step: int) -> None:
        """Let history go that is older than asked for, when that is at least `step` long. Bindings go with
        the data, but those that a crash would need stay."""
        if not self.hydrated:
            return
        target = min(now - milliseconds, self.readable - 1)
        for shard in self.shards:
            if target - shard.since >= step and upper_of(shard) > shard.since + 1:
                shard.downgrade_since(target)
        needed = min(*(upper_of(shard) - 1 for shard in self.shards), *(shard.since for shard in self.shards))
        if needed - self.remap.shard.since >= step:
            self.remap.allow_compaction(needed)
