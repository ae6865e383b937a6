"""Shard: the durable form of one collection, as its writers and readers see it.

Called by `txns`, `catalog`, `query` and the sources. All calls are synchronous and thread-safe. Share one
object per shard within a process, because holds and wake-ups work through it. Two processes with one handle
each are safe too. Readers rely on `since`: it advances when `downgrade_since` grants it, and the next commit
records it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from tidemill import failpoints
from tidemill.errors import DuplicateObject, Internal
from tidemill.persist.blob import Blobs
from tidemill.persist.cache import SHARED_CACHE, PartCache
from tidemill.persist.committer import Committer, EntryDraft, check_epoch, wall_ms
from tidemill.persist.compact import Compacted
from tidemill.persist.entry import CLOSED, Metadata, Operation
from tidemill.persist.holds import Hold, Holds
from tidemill.persist.listen import Listen
from tidemill.persist.log import checkpoint_path, cleaned_past, hint_path, load
from tidemill.persist.maintain import Carry, Maintained, Maintenance
from tidemill.persist.outcome import Fenced, UpperMismatch
from tidemill.persist.part import Part, part_path, write_part
from tidemill.persist.reading import PartReader
from tidemill.persist.recent_updates import Recent
from tidemill.persist.settings import DEFAULT_AGES, DEFAULT_SETTINGS, Ages, Settings, ages_of
from tidemill.persist.snapshot import InvalidAsOf, NotYetReadable, Snapshot
from tidemill.persist.state import ShardState, upper_reaches
from tidemill.persist.sweep import drop_shard
from tidemill.types.arrow import shard_schema
from tidemill.types.model import RelationDesc

ShardId = str

FP_CREATED = failpoints.register(
    "persist.create.after_entry0", "a shard's first entry is durable, its creator does not know"
)
FP_FENCED = failpoints.register(
    "persist.fence.written", "a shard's new epoch is durable, its owner does not know"
)

_PROPERTY = "tidemill.property."
_INITIAL_SINCE = "tidemill.initialSince"


class ShardExists(DuplicateObject):
    """The id is taken."""

    sqlstate = "42710"


class Shard:
    """One open shard. `Shard.create` makes one, `Shard.open` reads its log."""

    def __init__(
        self,
        committer: Committer,
        *,
        epoch: int | None,
        settings: Settings,
        cache: PartCache,
        checkpoint: int | None,
    ) -> None:
        self.id: ShardId = committer.shard_id
        self.blobs = committer.blobs
        self.settings = settings
        self.reader = PartReader(committer.blobs, committer.shard_id, cache)
        self._committer = committer
        self._holds = Holds()
        # For those who follow the shard.
        self.recent = Recent()
        # The epoch under which we write; None for a handle that only reads.
        self._ours = epoch
        # The latest requested since, and the one in force: equal except for holds. Never before the log's.
        self._wanted = self._granted = committer.state.since
        self._maintenance = Maintenance(self, committer, self._holds, checkpoint)
        # Updates that this handle has appended: a figure of the system relations.
        self.appended = 0

    @classmethod
    def create(
        cls,
        blobs: Blobs,
        shard_id: ShardId,
        desc: RelationDesc,
        *,
        epoch: int,
        since: int = 0,
        upper: int | None = 0,
        properties: Mapping[str, str] | None = None,
        ages: Ages = DEFAULT_AGES,
        settings: Settings = DEFAULT_SETTINGS,
        cache: PartCache = SHARED_CACHE,
    ) -> Shard:
        """Make the shard durable; raises ShardExists, or a commit's other outcomes."""
        configuration = {**ages.configuration(), _INITIAL_SINCE: str(since)}
        configuration.update({_PROPERTY + key: value for key, value in (properties or {}).items()})
        metadata = Metadata(str(uuid.uuid4()), desc, wall_ms(), configuration)
        # Before the first entry: everything at its least.
        committer = Committer(blobs, shard_id, ShardState(-1, metadata, 0, 0, 0), ages.log_keep_seconds)
        first = EntryDraft(
            Operation.CREATE,
            upper=CLOSED if upper is None else upper,
            since=since,
            epoch=epoch,
            metadata=metadata,
        )

        def propose(state: ShardState) -> EntryDraft:
            if state.version >= 0:
                raise ShardExists(f'shard "{shard_id}" exists already')
            return first

        # An old shard's first entry may have been cleaned away, and its name be free.
        if cleaned_past(blobs, shard_id, 0):
            raise ShardExists(f'shard "{shard_id}" exists already')
        committer.commit(propose)
        failpoints.hit(FP_CREATED)
        return cls(committer, epoch=epoch, settings=settings, cache=cache, checkpoint=None)

    @classmethod
    def open(
        cls,
        blobs: Blobs,
        shard_id: ShardId,
        *,
        epoch: int | None,
        settings: Settings = DEFAULT_SETTINGS,
        cache: PartCache = SHARED_CACHE,
    ) -> Shard:
        """Read the shard's log. A handle with an epoch may write once the shard is at that epoch
        (`fence`); one with None only reads. Raises ShardMissing, DataCorrupted, or Fenced when the shard
        is at a later epoch already."""
        loaded = load(blobs, shard_id)
        state = loaded.state
        if epoch is not None:
            if state.epoch > epoch:
                raise Fenced(shard_id, epoch, state.epoch)
            if loaded.broken:
                # Torn by a power cut and not needed: other readers (and delta-rs, for the next checkpoint)
                # would stumble over it.
                blobs.delete([hint_path(shard_id), *(checkpoint_path(shard_id, v) for v in loaded.broken)])
        ages = ages_of(state.metadata.configuration)
        committer = Committer(blobs, shard_id, state, ages.log_keep_seconds)
        return cls(committer, epoch=epoch, settings=settings, cache=cache, checkpoint=loaded.checkpoint)

    # The current state.

    @property
    def changed(self) -> threading.Condition:
        """Notified when `state` moves; `state` is read under it."""
        return self._committer.changed

    @property
    def state(self) -> ShardState:
        return self._committer.state

    @property
    def desc(self) -> RelationDesc:
        return self.state.metadata.desc

    @property
    def schema(self) -> pa.Schema:
        """The columns of its parts: the relation's under their physical names, then time, diff and error."""
        return shard_schema(self.desc)

    @property
    def version(self) -> int:
        return self.state.version

    @property
    def upper(self) -> int | None:
        """The shard is complete before it; None: closed, no more updates can appear."""
        upper = self.state.upper
        return None if upper == CLOSED else upper

    @property
    def since(self) -> int:
        """Readable from it."""
        with self.changed:
            return max(self._granted, self.state.since)

    @property
    def epoch(self) -> int:
        """The log's; ours may be later (not yet fenced) or earlier (fenced out)."""
        return self.state.epoch

    @property
    def parts(self) -> tuple[Part, ...]:
        with self.changed:
            return tuple(self.state.parts.values())

    @property
    def properties(self) -> dict[str, str]:
        """The description that its creator gave it."""
        configuration = self.state.metadata.configuration
        return {k.removeprefix(_PROPERTY): v for k, v in configuration.items() if k.startswith(_PROPERTY)}

    @property
    def ages(self) -> Ages:
        return ages_of(self.state.metadata.configuration)

    # Writing.

    def write_part(self, table: pa.Table, *, job: str) -> Part:
        """Write updates durably and invisibly; see `part.write_part` for the columns. `job` names the
        writer for the sweeper."""
        part = write_part(self.blobs, self.id, self.desc, table, job)
        self.reader.cache.put(PartCache.key(self.blobs, self.id, part), table)
        return part

    def delete_part(self, part: Part) -> None:
        """Delete a part that was written and will never be appended. The caller knows that no commit of it
        is under way."""
        with self.changed:
            if part.path in self.state.parts or part.path in self.state.removed:
                raise Internal(f'part "{part.path}" of shard {self.id} was appended')
        self.reader.cache.drop(PartCache.key(self.blobs, self.id, part))
        self.blobs.delete([part_path(self.id, part)])

    def compare_and_append(self, parts: Iterable[Part], lower: int | None, upper: int | None) -> None:
        """Add the parts and move upper from `lower` to `upper` (None closes the shard), all or nothing.
        Raises UpperMismatch, Fenced, CommitFailed (nothing happened) or CommitUnknown (only when it cannot
        be found out)."""
        adds = tuple(parts)
        if lower is None:
            raise Internal(f"shard {self.id} is closed: nothing can be appended")
        if upper is not None and upper <= lower:
            raise Internal(f"an append must move upper forward, not from {lower} to {upper}")
        for part in adds:
            if part.min_time < lower or (upper is not None and part.max_time >= upper):
                raise Internal(
                    f"the times of a part for shard {self.id} are not in [{lower}, {upper})",
                    detail=f'"{part.path}" has times from {part.min_time} to {part.max_time}.',
                )
        moved = CLOSED if upper is None else upper

        def propose(state: ShardState) -> EntryDraft:
            epoch = check_epoch(self.id, state, self._ours)
            if state.upper != lower:
                raise UpperMismatch(self.id, lower, None if state.upper == CLOSED else state.upper)
            return EntryDraft(
                Operation.APPEND, adds=adds, upper=moved, since=self._pending(state), epoch=epoch
            )

        self._committer.commit(propose)
        self.appended += sum(part.rows for part in adds)

    def fence(self, epoch: int, upper: int = 0, *, new: bool = False) -> None:
        """Take the shard for `epoch`, and move its upper to at least `upper` (the earlier lease). From then
        on every handle of an earlier epoch is refused. Raises Fenced when a later epoch has it and, where the
        epoch must be `new`, when this epoch already has it: another process was faster. Nothing is written
        when nothing changes."""

        def propose(state: ShardState) -> EntryDraft | None:
            if state.epoch > epoch or (new and state.epoch == epoch):
                raise Fenced(self.id, epoch, state.epoch)
            raised = None if upper_reaches(state.upper, upper) else upper
            if state.epoch == epoch and raised is None:
                return None
            return EntryDraft(Operation.FENCE, upper=raised, since=self._pending(state), epoch=epoch)

        self._committer.commit(propose)
        self._ours = epoch
        failpoints.hit(FP_FENCED)

    def evolve(self, desc: RelationDesc, parts: Iterable[Part] = (), upper: int | None = None) -> None:
        """Append columns; parts written before have nulls there. With `parts` (updates with the new columns,
        at times from the shard's upper on) the same entry appends them and moves upper to `upper`, so readers
        never see the columns without their contents. Idempotent: nothing is written when the columns
        exist."""
        now = self.desc
        if desc.columns[: len(now.columns)] != now.columns:
            raise Internal(f"shard {self.id} can only get new columns behind the others")
        adds = tuple(parts)

        def propose(state: ShardState) -> EntryDraft | None:
            epoch = check_epoch(self.id, state, self._ours)
            if state.metadata.desc == desc:
                return None
            if state.metadata.desc != now:
                raise Internal(f"shard {self.id} was evolved by another writer")
            metadata = replace(state.metadata, desc=desc)
            if not adds:
                return EntryDraft(Operation.EVOLVE, epoch=epoch, metadata=metadata)
            return EntryDraft(Operation.APPEND, adds=adds, upper=upper, epoch=epoch, metadata=metadata)

        self._committer.commit(propose)

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set some of what `create` was given; the others stay."""

        def propose(state: ShardState) -> EntryDraft:
            epoch = check_epoch(self.id, state, self._ours)
            named = {_PROPERTY + key: value for key, value in properties.items()}
            metadata = replace(state.metadata, configuration={**state.metadata.configuration, **named})
            return EntryDraft(Operation.EVOLVE, epoch=epoch, metadata=metadata)

        self._committer.commit(propose)

    def refresh(self) -> bool:
        """Follow other processes' commits; True when there were any."""
        return self._committer.refresh()

    # Reading.

    def snapshot(self, as_of: int, *, readable: int | None = None) -> Snapshot:
        """The contents at `as_of`. `readable` is the leased idle frontier: the collection is known to be
        complete before it even where the log's upper lags. Raises InvalidAsOf (before since) or
        NotYetReadable."""
        with self.changed:
            state = self.state
            since = max(self._granted, state.since)
            if as_of < since:
                raise InvalidAsOf(self.id, as_of, since, self.upper)
            if state.upper != CLOSED and as_of >= max(state.upper, readable or 0):
                raise NotYetReadable(self.id, as_of, max(state.upper, readable or 0))
            parts = tuple(part for part in state.parts.values() if part.min_time <= as_of)
            hold = self._holds.acquire(as_of, state.version)
            return Snapshot(self.reader, state.metadata.desc, as_of, parts, hold)

    def listen(self, from_: int) -> Listen:
        """All updates at times >= `from_`. Raises InvalidAsOf where earlier updates may already have moved
        to that time: since must be before it, unless the shard's history begins there."""
        with self.changed:
            since = max(self._granted, self.state.since)
            initial = int(self.state.metadata.configuration[_INITIAL_SINCE])
            if from_ < since or (from_ == since and since != initial):
                raise InvalidAsOf(self.id, from_, since, self.upper)
            hold = self._holds.acquire(max(since, from_ - 1))
            return Listen(self, from_, hold)

    def hold(self, at: int) -> Hold:
        """Keep `at` readable until released. Raises InvalidAsOf where it is not."""
        with self.changed:
            since = max(self._granted, self.state.since)
            if at < since:
                raise InvalidAsOf(self.id, at, since, self.upper)
            return self._holds.acquire(at)

    # History, files.

    def downgrade_since(self, to: int, *, record: bool = False) -> int:
        """Let history before `to` go, as far as holds allow; returns the since in force. The log learns it
        with the next commit, or at once with `record`."""
        with self.changed:
            self._wanted = max(self._wanted, to)
            self._grant()
            granted = self._granted
        if record:
            self.record_since()
        return granted

    def record_since(self) -> None:
        """Write the since in force to the log, unless the log has it."""

        def propose(state: ShardState) -> EntryDraft | None:
            since = self._pending(state)
            if since is None:
                return None
            return EntryDraft(Operation.DOWNGRADE, since=since, epoch=check_epoch(self.id, state, self._ours))

        self._committer.commit(propose)

    def _grant(self) -> None:
        """Under the lock."""
        earliest = self._holds.earliest()
        allowed = self._wanted if earliest is None else min(self._wanted, earliest)
        self._granted = max(self._granted, self.state.since, allowed)

    def _pending(self, state: ShardState) -> int | None:
        """The since that a commit should record. Call under the lock. Once granted it never goes back, so a
        reader that starts during the put is refused."""
        self._grant()
        return self._granted if self._granted > state.since else None

    def compact(self, *, everything: bool = False) -> Compacted | None:
        """Merge what is worth merging (or, with `everything`, all that fits in memory); None when there was
        nothing to merge."""
        return self._maintenance.compact(self._epoch_of_writer(), everything=everything)

    def compact_large(self, carry: Carry) -> Compacted | None:
        """Merge what does not fit in memory, with `carry`; None when there is nothing to merge. Blocks while
        `carry` runs, but blocks no other caller. Raises what `carry` raises, InputsReplaced, and the outcomes
        of a commit."""
        return self._maintenance.compact_large(self._epoch_of_writer(), carry)

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version."""
        self._maintenance.checkpoint()

    def clean(self) -> int:
        """Delete log entries behind the checkpoints that are old enough; returns how many."""
        return self._maintenance.clean()

    def sweep(self, finished: Callable[[str], bool] | None = None) -> int:
        """Delete removed parts that are due; with `finished`, which returns whether a job is over, orphans
        too. Returns the number of files."""
        return self._maintenance.sweep(finished)

    def maintain(self, finished: Callable[[str], bool] | None = None, *, hurry: bool = False) -> Maintained:
        """One round of maintenance: compacts, checkpoints, cleans and sweeps what is due. Cheap when nothing
        is. In a `hurry`, non-urgent work is postponed."""
        return self._maintenance.run(self._epoch_of_writer(), finished, hurry=hurry)

    def drop(self) -> None:
        """Delete the whole shard. It must not be used afterwards."""
        drop_shard(self.blobs, self.id)

    def _epoch_of_writer(self) -> int:
        with self.changed:
            return check_epoch(self.id, self.state, self._ours)
