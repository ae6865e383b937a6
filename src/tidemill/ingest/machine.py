"""The steps of one source: bind, read, commit; and after a crash, redo.

Driven by `ticker`, one step at a time, never two at once; independent of Spark. The data shards' uppers are
the truth. A binding at or after the least of them is read again, however far an earlier attempt got. It gives
the same rows (the contract of sources), and a shard accepts them only once (compare-and-append).

Times: a source that keeps up binds at boundaries of its interval. A source that has more to read than a
binding may cover, or is behind, binds at successive times after its last one until it has caught up. Between
bindings the collections are complete up to `promised`: no later binding is below it. `promised` is kept in
memory only, never beyond the oracle's lease, so the next server starts past every promise.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tidemill import failpoints
from tidemill.errors import Internal, TidemillError
from tidemill.ingest.changes import ChangeState
from tidemill.ingest.expired_records import error_of
from tidemill.ingest.pace import CatchUpPace
from tidemill.ingest.recovery.deduplicate import stash_index
from tidemill.ingest.recovery.stream import StreamState, error_rows
from tidemill.ingest.unit import Unit, UnitFacts, UnitFailure, UnitTarget, UpsertWork
from tidemill.persist.outcome import UpperMismatch
from tidemill.persist.part import Part
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.reclock.boundaries import boundary
from tidemill.reclock.remap import Binding, Remap
from tidemill.sources.contract import OutputDefinition, ReadLimits, SourcePiece, UpstreamLost, UpstreamSource
from tidemill.sources.offsets import Offsets
from tidemill.types.model import RelationDesc
from tidemill.types.names import physical_names

log = logging.getLogger(__name__)

FP_BEFORE_COMMIT = failpoints.register("tick.before_commit", "a job is done, nothing of it is committed")
FP_COMMITTED = failpoints.register("tick.committed", "a shard has a tick's updates, nobody knows yet")
FP_BETWEEN = failpoints.register("tick.between_commits", "one of a source's shards has the tick, others not")

# Updates per message of a CDCv2 stream, until it is measured.
FIRST_WEIGHT = 1000.0

# How long an output without rows may go without a write. After a crash, its share of all bindings since the
# last write is read again.
IDLE_APPEND_MS = 10_000


class SourceHome(Protocol):
    """The protocol of a machine's environment."""

    def begin_job(self) -> str: ...

    def end_job(self, job: str) -> None: ...


class MachineClock(Protocol):
    """The protocol of the oracle that a machine needs."""

    @property
    def leased(self) -> int: ...


class SharedBindings(Protocol):
    """The protocol of what decides the bindings of a source together with those of others
    (`ingest.transactions`). Its methods may block for seconds."""

    def next(self, now: int, bound: int, frontier: Offsets, most: int) -> tuple[int, Offsets] | None:
        """The next time and frontier, after everything before `bound` is bound; None if there is none
        yet. Raises as `UpstreamSource.frontier`."""
        ...

    @property
    def promised(self) -> int:
        """No later binding is below it."""
        ...

    @property
    def more(self) -> bool:
        """Whether another binding follows at once."""
        ...

    @property
    def upstream(self) -> Offsets | None: ...

    @property
    def hydrated_from(self) -> int | None:
        """Everything that the upstream had is bound, and may be read from this time on; None if not yet."""
        ...

    @property
    def waits(self) -> str | None:
        """What it waits for."""
        ...


@dataclass(frozen=True, slots=True)
class TickTiming:
    """The creation time of the source, and its interval; milliseconds."""

    created: int
    interval: int


@dataclass(frozen=True, slots=True)
class SourceWork:
    """A binding to read, and the shards to write."""

    binding: Binding
    shards: frozenset[str]


@dataclass(frozen=True, slots=True)
class TableFeed:
    """One active output of the source: its position among the outputs, the shard of its rows, and the time at
    which the shard begins, which is later than the source's for a table that was created later."""

    output: int
    shard: Shard
    created: int
    # For a CDCv2 stream: its state next to the shard. If the rows keep the stream's times, they are in a
    # shard of that state, and `shard` has none.
    stream: StreamState | None = None
    # Of changes with positions: by which repetitions are known.
    changes: ChangeState | None = None

    @property
    def line(self) -> Shard | None:
        return None if self.stream is None else self.stream.line

    @property
    def rows(self) -> Shard:
        """The shard with the rows."""
        return self.line or self.shard


class SourceMachine:
    """See the module. Every field is needed for the next step, and can be rebuilt from the shards."""

    def __init__(
        self,
        source_id: str,
        source: UpstreamSource,
        remap: Remap,
        feeds: Sequence[TableFeed],
        timing: TickTiming,
        *,
        home: SourceHome,
        clock: MachineClock,
        limits: ReadLimits | None = None,
        keep: Callable[[Mapping[str, Any]], None] | None = None,
        shared: SharedBindings | None = None,
    ) -> None:
        """The shards are already fenced by this server. `keep` durably stores what the source has learned
        about its upstream. With `shared`, bindings are decided there."""
        self.id = source_id
        self.source = source
        self.remap = remap
        self.timing = timing
        self._home = home
        self._clock = clock
        self._keep = keep
        self._shared = shared
        # The upstream was queried since it was opened: it is the one that was read before.
        self._looked = False
        # The limit of a binding.
        self.pace = CatchUpPace(
            limits or ReadLimits(), keyed=any(o.key is not None or o.stream for o in source.outputs)
        )
        # The average number of rows per record: one, except for CDCv2, where it is measured.
        self.weight = FIRST_WEIGHT if any(o.stream for o in source.outputs) else 1.0
        self.feeds: tuple[TableFeed, ...] = ()
        # Per shard: complete before this time, by the log or because a binding had no rows for it.
        self._complete: dict[str, int] = {}
        # The marks of the first of `pending` (`sources.contract`); None until they are computed.
        self._marks: Mapping[str, str] | None = None
        # The pieces of the first of `pending`, if it must be read again in the same pieces.
        self._cut: tuple[SourcePiece, ...] | None = None
        # Bindings that were committed since the source was last told what is durable, in order: an output
        # without rows may lack them.
        self._committed: deque[Binding] = deque()
        # Bindings that are not yet in every shard, in order. More than one only after a crash, or if a table
        # was added. Never changed in place: other threads read it while one steps.
        self.pending: tuple[SourceWork, ...] = ()
        # No binding is below it. The first binding is after the creation time, to which since moves.
        self.promised = max(remap.upper, timing.created + 1)
        # The upstream's position at the last query, and the position that must be reached before the source
        # is readable for the first time.
        self.upstream: Offsets | None = None
        self.first: Offsets | None = None
        # It is not readable before this time.
        self._first_since = 0
        # When it first caught up, if that was in this life. since may be earlier while readers wait for it.
        self._hydrated_at = 0
        self.set_feeds(feeds)
        # A source is readable from the time at which it first caught up. since moves there.
        self.hydrated = all(f.shard.since > timing.created for f in self._original())

    def set_feeds(self, feeds: Sequence[TableFeed], source: UpstreamSource | None = None) -> None:
        """Set the active outputs. A new one gets everything that was bound before. `source`: the same
        upstream, opened again because its outputs or its connection have changed; the previous one is
        closed."""
        if source is not None:
            self.source.close()
            self.source, self._looked = source, False
        self._complete = {f.shard.id: self._complete.get(f.shard.id, upper_of(f.shard)) for f in feeds}
        # A table's first time contains everything bound before its creation, so no more may be bound there.
        made = [feed.created + 1 for feed in feeds]
        self.promised = max([self.promised, self.remap.upper, *self._complete.values(), *made])
        # Before the feeds: readers must not consider an output complete while its pending work is unknown.
        self.pending, self._marks = self._not_done(feeds), None
        self._begin(feeds)
        if source is not None or not self.feeds:
            # Unfinished bindings are marked when they are read.
            kept = next((f.stream.marks for f in feeds if f.stream is not None), {})
            stamps = {str(partition): stamp for partition, stamp in self.remap.stamps.items()}
            if stamps:
                self.source.recall_places(self.remap.places())
            self.source.recall(self.remap.frontier, stamps or kept)
        self.feeds = tuple(feeds)

    def _begin(self, feeds: Sequence[TableFeed]) -> None:
        """Another unit is at hand."""
        self._cut = None
        for feed in feeds:
            if feed.changes is not None:
                feed.changes.begin()

    def _original(self) -> list[TableFeed]:
        return [f for f in self.feeds if f.created == self.timing.created]

    def _not_done(self, feeds: Sequence[TableFeed]) -> tuple[SourceWork, ...]:
        """The bindings whose data is missing in a shard."""
        if not feeds:
            return ()
        least = min(self._complete.values())
        bindings = self.remap.bindings(least)
        work: list[SourceWork] = []
        for feed in feeds:
            if feed.created == self.timing.created or self._complete[feed.shard.id] > feed.created:
                continue
            # A table contains everything bound before its creation from its first time on.
            earlier = self.remap.frontier_at(feed.created)
            if earlier != self.source.start:
                first = Binding(feed.created, self.source.start, earlier)
                work.append(SourceWork(first, frozenset({feed.shard.id})))
        every = frozenset(f.shard.id for f in feeds)
        for binding in bindings:
            late = {f.shard.id for f in feeds if f.created >= binding.time > self.timing.created}
            shards = every - late
            if shards:
                work.append(SourceWork(binding, shards))
        return tuple(sorted(work, key=lambda w: w.binding.time))

    # -- queries by other components, from other threads than the one that steps

    @property
    def readable(self) -> int:
        """All outputs are complete before this time; 0 before the source has first caught up."""
        if not self.hydrated:
            return 0
        promised, pending = self._bounds()
        return pending[0].binding.time if pending else promised

    def _bounds(self) -> tuple[int, tuple[SourceWork, ...]]:
        """What is promised, and then what is pending: a binding that is made in between is seen, or is not
        below the promise. In the other order it could be neither."""
        promised = self.promised
        return promised, self.pending

    def complete(self, shard_id: str) -> int:
        """Like `readable`, for one output, identified by the shard of its rows. Outputs that were created
        later and are incomplete do not affect it. 0 for an output without a feed."""
        feed = next((f for f in self.feeds if f.rows.id == shard_id), None)
        if feed is None or not self.hydrated:
            return 0
        if feed.stream is not None and feed.line is not None:
            return feed.stream.complete
        promised, pending = self._bounds()
        # It may have been removed meanwhile.
        done = self._complete.get(shard_id, 0)
        times = (work.binding.time for work in pending if shard_id in work.shards)
        return next((time for time in times if done <= time), promised)

    def hydrated_at(self, shard_id: str) -> int:
        """When an output's rows first had all of the upstream, if that was in this life; else 0. Also 0 if
        they have times of their own, or if the output was created later."""
        feed = next((f for f in self._original() if f.rows.id == shard_id), None)
        return 0 if feed is None or feed.line is not None else self._hydrated_at

    @property
    def begins_table(self) -> bool:
        """Whether it reads what a table that was added later begins with; the other tables wait."""
        pending = self.pending
        return self.hydrated and bool(pending) and pending[0].binding.lower == self.source.start

    @property
    def ingested(self) -> Offsets:
        """The number of records in the collections."""
        frontier, pending = self.remap.frontier, self.pending
        return pending[0].binding.lower if pending else frontier

    @property
    def behind(self) -> int | None:
        """The number of records in the upstream that are not in the collections; None if the upstream was
        never queried."""
        if self.upstream is None:
            return None
        return self.upstream.records_since(self.ingested) if self.ingested <= self.upstream else 0

    @property
    def pending_rows(self) -> int:
        """The estimated number of rows of the oldest unfinished binding."""
        return int(self.pending[0].binding.records / self.source.offsets_per_record * self.weight)

    @property
    def delayed(self) -> bool:
        """Whether bindings were decided that it has not reached."""
        return self._shared is not None and self._shared.more

    @property
    def catching_up(self) -> bool:
        """Whether there is more to read than is bound."""
        if self._shared is not None:
            return self._shared.more
        return self.upstream is not None and not self.upstream <= self.remap.frontier

    def stalls(self) -> list[str]:
        """The reasons why its CDCv2 streams wait, as text."""
        shared = None if self._shared is None else self._shared.waits
        told = [text for text in (self.source.waits, shared) if text is not None]
        for feed in self.feeds:
            stream = self.source.outputs[feed.output].stream
            if feed.stream is not None and stream is not None:
                told += [stall.describe() for stall in feed.stream.stalls(stream)]
                told += feed.stream.unreadable
        return told

    @property
    def ceased(self) -> bool:
        """Whether its CDCv2 streams have ended, and all of their data is here."""
        return bool(self.feeds) and not self.pending and all(_ended(feed) for feed in self.feeds)

    # -- bind

    def bind(self, now: int) -> SourceWork | None:
        """Query the upstream, and bind new records. Returns None if there are none, or it is not time yet.
        Earlier bindings must be done first; but a newly opened upstream is queried in any case, because it
        may have been recreated meanwhile. Raises UpstreamError and the outcomes of a commit."""
        if self.pending and self._looked:
            return self._marked(self.pending[0])
        at = boundary(now, self.timing.interval)
        if self.hydrated and self.ceased and not self.pending:
            # After the end of the streams, further records of the upstream are ignored.
            self._promise(at + self.timing.interval)
            return None
        if self._shared is not None:
            return self._bind_shared(self._shared, now, at)
        bound = self.remap.frontier
        upstream = self.source.frontier(now)
        self._learn()
        if not bound <= upstream:
            raise UpstreamLost(
                "the source's progress went back",
                detail=f"Its frontier was {bound}; now it is {upstream}.",
                hint="The upstream was truncated or made anew: drop the source and create it again.",
            )
        self._looked = True
        self.upstream = upstream
        if self.first is None and self.source.complete:
            self.first = upstream
        if self.pending:
            return self._marked(self.pending[0])
        if upstream == bound:
            self._promise(at + self.timing.interval)
            self._hydrate()
            return None
        most = self.pace.limits.records * self.source.offsets_per_record
        upper = self.source.cut(bound, upstream, ReadLimits(most))
        if not (bound <= upper <= upstream) or upper == bound:
            raise Internal(f"a cut of {bound} to {upstream} gave {upper}")
        floor = max(self.remap.upper, self.promised)
        caught_up = upper == upstream
        time = at if caught_up and at >= floor else floor
        if time > now:
            return None
        work = self._work(time, upper)
        self._promise(max(time + 1, at + self.timing.interval if caught_up else 0))
        return self._marked(work)

    def _work(self, time: int, upper: Offsets) -> SourceWork:
        """Bind, and note what is to read."""
        stamped = self.source.gauge.stamp is not None
        stamps = self.source.stamps(self.remap.frontier, upper) if stamped else {}
        job = self._home.begin_job()
        try:
            binding = self.remap.bind(time, upper, job, stamps)
        finally:
            self._home.end_job(job)
        work = SourceWork(binding, frozenset(f.shard.id for f in self.feeds))
        self.pending = (*self.pending, work)
        return work

    def _bind_shared(self, shared: SharedBindings, now: int, at: int) -> SourceWork | None:
        """Bind what was decided for several sources."""
        bound = self.remap.frontier
        found = shared.next(now, self.remap.upper, bound, self.pace.limits.records)
        self._looked, self.upstream = True, shared.upstream
        if self.pending:
            return self._marked(self.pending[0])
        if found is None:
            self._promise(min(at + self.timing.interval, shared.promised))
            self._hydrate_shared(shared)
            return None
        time, upper = found
        if not bound <= upper or upper == bound or time < max(self.remap.upper, self.promised):
            raise Internal(f"a cut of {bound} at {time} gave {upper}, after {self.promised}")
        work = self._work(time, upper)
        self._promise(time + 1)
        return self._marked(work)

    def _hydrate_shared(self, shared: SharedBindings) -> None:
        since = shared.hydrated_from
        if since is not None and self.promised > max(since, *(upper_of(f.shard) for f in self._original())):
            self.first, self._first_since = self.remap.frontier, since
            self._hydrate()

    def _marked(self, work: SourceWork) -> SourceWork:
        """Mark the binding before it is read, to detect later changes of the upstream."""
        if self._marks is None:
            self._marks = self.source.mark(work.binding.lower, work.binding.upper)
        return work

    def _learn(self) -> None:
        """Store the learned properties of the upstream before anything is bound. Otherwise a different
        upstream could be read later."""
        if self.source.learned is not None:
            if self._keep is not None:
                self._keep(self.source.learned)
            self.source.learned = None

    def _promise(self, until: int) -> None:
        """Never beyond the lease, where the next server begins."""
        self.promised = max(self.promised, min(until, self._clock.leased))
        if self.pending:
            self.promised = max(self.promised, self.pending[-1].binding.time + 1)

    # -- read

    def unit(self, ways: int, seconds: float, shares: int = 1) -> Unit:
        """The work of the oldest unfinished binding, in `ways` pieces. The caller ends its job with `commit`
        or `abandon`. Raises UpstreamError."""
        work = self.pending[0]
        targets = tuple(self._target(index, work) for index in range(len(self.source.outputs)))
        wanted = frozenset(index for index, target in enumerate(targets) if target is not None)
        reader, pieces = self.source.plan(work.binding.lower, work.binding.upper, ways, wanted)
        return Unit(
            source=self.id,
            reader=reader,
            pieces=self._cut or tuple(pieces),
            time=work.binding.time,
            targets=targets,
            blobs=self.remap.shard.blobs,
            job=self._home.begin_job(),
            seconds=seconds,
            shares=shares,
        )

    def unit_seconds(self, usual: float) -> float:
        """How long the unit of the oldest unfinished binding may take in a job of its own."""
        binding = self.pending[0].binding
        return self.source.reading_seconds(binding.lower, binding.upper, usual)

    def _target(self, index: int, work: SourceWork) -> UnitTarget | None:
        feed = next((f for f in self.feeds if f.output == index), None)
        if feed is None or not self._wants(feed, work):
            return None
        output = self.source.outputs[index]
        upsert = changes = None
        if output.key is not None:
            key = _physical_key(output, feed.shard.desc)
            if feed.changes is not None:
                several = len(work.binding.upper.items()) > 1
                changes = feed.changes.work(key, several=several, place=output.place)
            if feed.changes is None or feed.changes.upserts:
                upsert = UpsertWork(key, upper_of(feed.shard), output.order)
        recover = None
        if feed.stream is not None and output.stream is not None:
            recover = feed.stream.recover(output.stream)
        return UnitTarget(feed.rows.id, feed.rows.desc, upsert, recover, changes)

    def _wants(self, feed: TableFeed, work: SourceWork) -> bool:
        """Whether the work is for this feed, and its shard does not have it yet: a crash may have occurred
        between two shards."""
        return feed.shard.id in work.shards and self._complete[feed.shard.id] <= work.binding.time

    def abandon(self, unit: Unit) -> None:
        """End the job of a unit whose parts will never be appended."""
        self._home.end_job(unit.job)

    def review(self, unit: Unit, facts: UnitFacts) -> bool:
        """Whether the unit must be read again before it can be committed (`changes`). Raises SourceError."""
        again = False
        for feed in self.feeds:
            target = unit.targets[feed.output]
            if feed.changes is not None and target is not None and target.changes is not None:
                found, upserted = facts.changes.get(feed.output, {}), target.upsert is not None
                again |= feed.changes.review(target.changes, found, upserted=upserted)
        if again:
            self._cut = unit.pieces
        return again

    def instead(self, unit: Unit, failure: UnitFailure) -> UnitFacts | None:
        """Handle records that the upstream no longer has. If only a table that was created later should begin
        with them, this is a permanent error of the table, and all others continue: returns the facts with
        this error, to be committed. Returns None if it is an error of the source itself."""
        work = self.pending[0]
        feed = next((f for f in self.feeds if f.shard.id in work.shards), None)
        if feed is None or feed.created == self.timing.created or feed.created != work.binding.time:
            return None
        part = feed.shard.write_part(error_of(feed.shard.desc, failure, unit.time), job=unit.job)
        return UnitFacts(parts={feed.output: [part]}, updates=1)

    # -- commit

    def commit(self, unit: Unit, facts: UnitFacts) -> None:
        """Append the unit's parts to each shard. Raises the outcomes of a commit. Then the unit must be done
        again, for the shards that have not accepted it."""
        if facts.failure is not None:
            raise Internal("a unit that failed cannot be committed")
        work = self.pending[0]
        if work.binding.time != unit.time:
            raise Internal(f"the unit is for {unit.time}, the next binding for {work.binding.time}")
        failpoints.hit(FP_BEFORE_COMMIT)
        marks = self._marks or {}
        try:
            self.source.confirm(marks)
        except TidemillError:
            # The upstream is queried again, and the binding is marked and read again.
            self._marks, self._looked = None, False
            self._home.end_job(unit.job)
            raise
        try:
            for feed in self.feeds:
                if self._wants(feed, work):
                    parts = [*facts.parts.get(feed.output, [])]
                    settled = facts.settled.get(feed.output)
                    if feed.stream is not None and settled is not None:
                        stashed = facts.parts.get(stash_index(feed.output), [])
                        feed.stream.append(stashed, settled, unit.time, unit.job, marks)
                        if feed.line is not None:
                            feed.stream.release(parts, settled)
                            parts = []
                        elif settled.errors:
                            errors = error_rows(feed.shard.desc, settled.errors, unit.time)
                            parts.append(feed.shard.write_part(errors, job=unit.job))
                    if feed.changes is not None:
                        feed.changes.append(unit.time, unit.job)
                    self._append(feed, parts, unit.time)
                    if feed.changes is not None:
                        feed.changes.committed()
                    if feed.stream is not None and settled is not None:
                        feed.stream.committed(settled, marks)
                    self._complete[feed.shard.id] = unit.time + 1
                    failpoints.hit(FP_BETWEEN)
        except TidemillError:
            self._look_again()
            raise
        finally:
            self._home.end_job(unit.job)
        self._committed.append(work.binding)
        self.pending = self.pending[1:]
        self._tell_durable()
        self._marks = None
        self._begin(self.feeds)
        if facts.records:
            self.weight = max(1.0, facts.rows / facts.records)
        self._hydrate()

    def _tell_durable(self) -> None:
        """Tell the source how far every shard is, as a crash now would find them."""
        least = min((upper_of(feed.shard) for feed in self.feeds), default=None)
        durable: Offsets | None = None
        while self._committed and (least is None or self._committed[0].time < least):
            durable = self._committed.popleft().upper
        if durable is not None:
            self.source.durable(durable)

    def _append(self, feed: TableFeed, parts: Sequence[Part], time: int) -> None:
        shard = feed.shard
        lower = upper_of(shard)
        if lower > time:
            # An earlier attempt with an unknown outcome succeeded, and the log was read since.
            return
        # (State beside the data is as of the data's upper, so both must move together.)
        idle = not parts and feed.stream is None and feed.changes is None
        if idle and len(self.feeds) > 1 and time - lower < IDLE_APPEND_MS:
            return
        try:
            shard.compare_and_append(parts, lower, time + 1)
        except UpperMismatch:
            # An earlier attempt with an unknown outcome succeeded: no other process writes here.
            if upper_of(shard) <= time:
                raise
        failpoints.hit(FP_COMMITTED)

    def _look_again(self) -> None:
        """Called after an append with an unknown outcome."""
        for feed in self.feeds:
            try:
                feed.shard.refresh()
                if feed.stream is not None:
                    feed.stream.forget()
                if feed.changes is not None:
                    feed.changes.forget()
            except (TidemillError, OSError) as e:
                log.warning("shard %s could not be read: %s", feed.shard.id, e)
            self._complete[feed.shard.id] = max(self._complete[feed.shard.id], upper_of(feed.shard))

    def _hydrate(self) -> None:
        """Called for the first time at which everything in the upstream is here: from then on the source is
        readable."""
        if self.hydrated or self.pending or self.first is None or not self.first <= self.remap.frontier:
            return
        original = self._original()
        since = max([self.timing.created + 1, self._first_since, *(upper_of(f.shard) - 1 for f in original)])
        self._promise(since + 1)
        for feed in original:
            feed.shard.downgrade_since(since, record=True)
        self.hydrated, self._hydrated_at = True, since

    # -- history

    def allow_compaction(self, to: int) -> None:
        """Allow compaction of history before `to`, of the data and of the bindings. Bindings that a crash
        would need are kept."""
        for feed in self.feeds:
            done = self.readable if feed.line is None else self.complete(feed.rows.id)
            feed.rows.downgrade_since(min(to, done - 1))
            if feed.stream is not None:
                feed.stream.allow_compaction()
            if feed.changes is not None:
                feed.changes.allow_compaction()
        self.remap.allow_compaction(min([to, *(upper_of(f.shard) - 1 for f in self.feeds)]))

    def retain(self, now: int, milliseconds: int, step: int) -> None:
        """Release history that is older than requested, if that is at least `step` long. Bindings are
        released with the data, except those that a crash would need."""
        if not self.hydrated or not self.feeds:
            return
        target = min(now - milliseconds, self.readable - 1)
        for feed in self.feeds:
            if target - feed.shard.since >= step and upper_of(feed.shard) > feed.shard.since + 1:
                feed.shard.downgrade_since(target)
            if feed.stream is not None:
                feed.stream.allow_compaction()
                feed.stream.retain(milliseconds, step)
            if feed.changes is not None:
                feed.changes.allow_compaction()
        needed = min(min(upper_of(f.shard) - 1, f.shard.since) for f in self.feeds)
        if needed - self.remap.shard.since >= step:
            self.remap.allow_compaction(needed)


def _ended(feed: TableFeed) -> bool:
    return feed.stream is not None and feed.stream.frontier == []


def _physical_key(output: OutputDefinition, stored: RelationDesc) -> tuple[str, ...]:
    """The physical names of the key's columns, because the relation may have been created with other names. A
    hidden column is last; by its name alone it could be a user's column."""
    key = output.key or ()
    hidden = key[-1:] if any(column.name in key[-1:] for column in output.desc.hidden) else ()
    called = dict(zip(output.desc.names, physical_names(stored), strict=True))
    return (*(called[name] for name in key[: len(key) - len(hidden)]), *hidden)
