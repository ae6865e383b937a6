"""Environment of a data directory: the clock, the txns shard, the epoch, and the open shards of the process.

A server opens it once, before it serves clients. Promises: only one server writes at a time, whatever the
others believe. A second server gets an error that names the holder. A server that was taken over detects it
within seconds, and its writes fail at once. No time that an earlier holder may have used is issued again.

Order of opening, and why:
1. The LOCK file (folder) or the heartbeat of the lease (s3) shows whether a holder is alive. The logs of the
   clock and the txns shard are checked against each other (`log_ends`) before anything is written to them.
2. The clock shard is fenced. From now on no earlier holder can lease more time. Its upper is the end of all
   time ever leased (`start`). Its rows name us as the holder.
3. A holder that was taken over gets a moment to notice and to release the LOCK.
4. The txns shard is fenced at `start` or later. From now on no earlier holder can commit.
5. The oracle starts at `start`. Unapplied commits of txns are applied in the background.

Every other shard, including the catalog, is handled when it is first opened here. It is checked against its
mark in txns and fenced. Its commits in txns are applied before its upper moves to `start`. The upper of a
shard that a source writes does not move. After a crash at any point, the next server opens the directory in
the same way.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from tidemill import failpoints
from tidemill.errors import Internal, TidemillError, Unavailable
from tidemill.persist import formats
from tidemill.persist.blob import Blobs, open_blobs
from tidemill.persist.history import history_of
from tidemill.persist.lease import CLOCK_DESC, CLOCK_SHARD, ClockShard, Holder
from tidemill.persist.lock import DirectoryLock
from tidemill.persist.log import ShardMissing, check_reached
from tidemill.persist.log_ends import check_clock_gone, check_system
from tidemill.persist.outcome import CommitUnknown, Fenced
from tidemill.persist.settings import DEFAULT_SETTINGS, Ages, Settings
from tidemill.persist.shard import Shard, ShardExists
from tidemill.persist.sweep import drop_shard
from tidemill.persist.txns import Txns
from tidemill.persist.txns.record import TXNS_DESC, TXNS_SHARD
from tidemill.time.clock import Clock, SystemClock
from tidemill.time.oracle import LEASE_MS, Oracle
from tidemill.time.steering import Jump
from tidemill.types.model import RelationDesc

log = logging.getLogger(__name__)

FP_BEFORE_FENCE = failpoints.register(
    "epoch.before_fence", "the holder's absence is known, the epoch is not raised"
)
FP_FENCED = failpoints.register("epoch.fenced", "the clock shard has the new epoch, the txns shard not yet")

# Other programs do not read the system shards, so old files and log entries are kept for a short time only.
SYSTEM_AGES = Ages(log_keep_seconds=1800, removed_keep_seconds=300)
# How long a take-over waits for the old holder to notice it and release the lock.
TAKE_OVER_WAIT_SECONDS = 10.0
# How often a holder checks whether it was taken over. A check is one attempt to read a missing file. On s3 it
# is a request, and the renewal of the lease detects a take-over too.
WATCH_SECONDS = 0.5
WATCH_SECONDS_REMOTE = 5.0
# How often the versions of all logs are marked in txns (`txns.marks`), and that of the txns shard's log in
# the clock shard. Each is a row of about 200 bytes.
MARK_SECONDS = 60.0
# Prefix of the ids of jobs on Spark.
JOB_KIND = "ingest"
# After a heartbeat this old, three leases, a new server need not wait for another one.
HEARTBEAT_STALE_MS = 3 * LEASE_MS
_HEARTBEAT_POLL_SECONDS = 0.5


class DirectoryHeld(Unavailable):
    """Another server holds the data directory."""

    sqlstate = "55006"

    def __init__(self, holder: Holder | None) -> None:
        if holder is None:
            primary = "data directory is held by another process"
        else:
            where = ", ".join(f"{what} on {address}" for what, address in holder.addresses)
            started = datetime.datetime.fromtimestamp(holder.started / 1000, datetime.UTC)
            primary = (
                f"data directory is held by pid {holder.pid} on host {holder.host}"
                f"{f' ({where})' if where else ''} since {started.isoformat(' ', 'seconds')}"
            )
        super().__init__(primary, hint="Stop that server, or start this one with --take-over.")
        self.holder = holder


class Environment:
    """See the module. Thread-safe."""

    def __init__(
        self,
        blobs: Blobs,
        lock: DirectoryLock,
        clock_shard: ClockShard,
        epoch: int,
        holder: Holder,
        clock: Clock,
        settings: Settings,
        on_lost: Callable[[TidemillError], None] | None,
        on_jump: Callable[[Jump], None] | None,
    ) -> None:
        """Use `Environment.open`. The clock shard is fenced."""
        self.blobs = blobs
        self.epoch = epoch
        self.holder = holder
        self.settings = settings
        # Whatever is kept outside of shards, but follows from them, is of this history.
        self.history = history_of(clock_shard.shard)
        self._lock_file = lock
        self._clock = clock_shard
        self._on_lost = on_lost
        self._closed = threading.Event()
        # Set when the directory was taken over: why.
        self.lost: TidemillError | None = None
        self._shards_lock = threading.Lock()
        # The process-wide shard objects; a value is set once the shard is fenced. Opening one holds only its
        # own lock.
        self._shards: dict[str, Shard] = {}
        self._opening: dict[str, threading.Lock] = {}
        self._jobs_lock = threading.Lock()
        # Jobs of this process that may still write parts or append them, and the number of the last one.
        self._jobs: set[str] = set()
        self._last_job = 0
        # When (monotonic) all logs were last marked in txns, and the txns shard's log in the clock shard.
        self._marked = self._recorded = time.monotonic()
        # Every time below it may have been used by an earlier holder; shards are fenced here.
        self.start = clock_shard.leased
        self._txns_shard = txns = _fenced(blobs, TXNS_SHARD, TXNS_DESC, epoch, self.start, settings)
        self.oracle = Oracle(clock_shard, clock, on_jump=on_jump, on_lost=self._lose)
        self.txns = Txns(txns, self.oracle, self.open_shard, on_lost=self._lose)
        self.txns.start()
        self.oracle.start()
        self._watcher = threading.Thread(target=self._watch, name="environment-watch", daemon=True)
        self._watcher.start()

    @classmethod
    def open(
        cls,
        url: str,
        *,
        options: Mapping[str, str] | None = None,
        take_over: bool = False,
        holder: Holder | None = None,
        clock: Clock | None = None,
        settings: Settings = DEFAULT_SETTINGS,
        on_lost: Callable[[TidemillError], None] | None = None,
        on_jump: Callable[[Jump], None] | None = None,
    ) -> Environment:
        """Take the data directory. Raises DirectoryHeld when another server is alive, unless `take_over` is
        set. `on_lost` is called once, from some thread, when another server takes over from this one."""
        clock = clock or SystemClock()
        blobs = open_blobs(url, options)
        lock = DirectoryLock(blobs)
        locked = lock.acquire()
        try:
            shard = _open_clock(blobs, settings)
            formats.check(shard)
            if not locked and not take_over:
                raise DirectoryHeld(ClockShard(shard, 0).holder())
            if not lock.supported and not take_over:
                _wait_for_heartbeat(shard, clock)
            check_system(blobs, shard)
            failpoints.hit(FP_BEFORE_FENCE)
            epoch = shard.epoch + 1
            # If two servers start at once, only one gets the epoch: with the same number, neither would be
            # fenced.
            shard.fence(epoch, new=True)
            failpoints.hit(FP_FENCED)
            formats.migrate(blobs, shard)
            clock_shard = ClockShard(shard, epoch)
            mine = replace(
                holder or Holder.this_process(), epoch=epoch, started=clock.wall_us() // 1000, released=None
            )
            clock_shard.record(mine)
            if not locked and not lock.acquire(TAKE_OVER_WAIT_SECONDS):
                log.warning("the process that was taken over still runs; its writes are refused")
            return cls(blobs, lock, clock_shard, epoch, mine, clock, settings, on_lost, on_jump)
        except BaseException:
            lock.release()
            raise

    @property
    def id(self) -> str:
        """The id of this data directory. A new directory at the same place gets another id."""
        return self._clock.shard.state.metadata.table_id

    # -- shards

    def open_shard(self, shard_id: str) -> Shard:
        """The shard, opened for writing: fenced, complete up to our start, one object per process. Raises
        DataCorrupted when its log is shorter than its mark."""
        return self._open(shard_id, self._take)

    def open_ingested(self, shard_id: str) -> Shard:
        """A shard that the ticks of a source write: fenced, but its upper does not move. Data bound at later
        times is read again and must still be appendable."""
        return self._open(shard_id, lambda shard: shard.fence(self.epoch), transactions=False)

    def _open(self, shard_id: str, take: Callable[[Shard], None], *, transactions: bool = True) -> Shard:
        with self._shards_lock:
            shard = self._shards.get(shard_id)
            if shard is not None:
                return shard
            opening = self._opening.setdefault(shard_id, threading.Lock())
        with opening:
            with self._shards_lock:
                shard = self._shards.get(shard_id)
            if shard is not None:
                return shard
            expected = self.txns.marks.expected(shard_id)
            try:
                shard = Shard.open(self.blobs, shard_id, epoch=self.epoch, settings=self.settings)
            except ShardMissing:
                check_reached(shard_id, -1, expected)
                raise
            check_reached(shard_id, shard.version, expected)
            take(shard)
            return self._publish(shard, transactions=transactions)

    def create_shard(
        self,
        shard_id: str,
        desc: RelationDesc,
        *,
        since: int = 0,
        properties: Mapping[str, str] | None = None,
    ) -> Shard:
        """A new, empty shard, readable from `since`."""
        shard = Shard.create(
            self.blobs,
            shard_id,
            desc,
            epoch=self.epoch,
            since=since,
            upper=max(since, self.start),
            properties=properties,
            settings=self.settings,
        )
        return self._publish(shard)

    def create_foreign(self, shard_id: str, desc: RelationDesc) -> Shard:
        """A new, empty shard on another timeline, whose times begin at 0. It is only ever opened by
        `open_ingested`: its upper is unrelated to our clock."""
        shard = Shard.create(self.blobs, shard_id, desc, epoch=self.epoch, settings=self.settings)
        return self._publish(shard, transactions=False)

    def drop_shard(self, shard_id: str, error: TidemillError | None = None) -> None:
        """Stop writes to the shard and delete its files. Later commits fail with `error`."""
        self.txns.forget(shard_id, error)
        with self._shards_lock:
            self._shards.pop(shard_id, None)
        # Not through the shard, so that a shard that cannot be opened can be dropped, too.
        drop_shard(self.blobs, shard_id)

    def shard_ids(self) -> list[str]:
        """All shards that have a folder or a mark."""
        return sorted({*self.blobs.folders("shards"), *self.txns.marks.shards()})

    def open_shards(self) -> list[Shard]:
        """The shards that are open in this process."""
        with self._shards_lock:
            return list(self._shards.values())

    def _take(self, shard: Shard) -> None:
        """Fence a shard of an earlier epoch. Its pending parts in txns are applied in the entry that moves
        its upper past their times, because a shard whose upper is past T must hold all of T."""
        if self.txns.pending.oldest(shard.id) is None:
            shard.fence(self.epoch, self.start)
        else:
            shard.fence(self.epoch)
            self.txns.pending.apply_to(shard, upper=self.start)

    def _publish(self, shard: Shard, *, transactions: bool = True) -> Shard:
        with self._shards_lock:
            self._shards[shard.id] = shard
            self._opening.pop(shard.id, None)
        self.txns.marks.reach(shard.id, shard.version)
        if transactions:
            self.txns.register(shard)
        return shard

    # -- maintenance

    def maintain(self, hurried: Collection[str] = ()) -> None:
        """One round: the txns and clock shards, then every open shard. Errors of one shard are logged and do
        not stop the others. Non-urgent work of the `hurried` shards is postponed."""
        if time.monotonic() - self._marked >= MARK_SECONDS:
            self._mark_all()
        shards = [self._maintainer(s, s.id in hurried) for s in self.open_shards()]
        for what in (lambda: self.txns.maintain(self.job_finished), self._maintain_clock, *shards):
            try:
                what()
            except Fenced as e:
                self._lose(e)
                return
            except (TidemillError, OSError) as e:
                log.warning("maintenance failed, it is tried again: %s", e)

    def _mark_all(self) -> None:
        """Note the version of every open shard's log, whichever writer advanced it. The next entry of txns
        writes the marks."""
        self._marked = time.monotonic()
        for shard in self.open_shards():
            self.txns.marks.reach(shard.id, shard.version)

    def _maintain_clock(self) -> None:
        if time.monotonic() - self._recorded >= MARK_SECONDS and self._txns_shard.version != self.holder.txns:
            self._record(self.holder)
        self._clock.shard.downgrade_since(max(0, self._clock.leased - 1))
        self._clock.shard.maintain(self.job_finished)

    def _maintainer(self, shard: Shard, hurry: bool) -> Callable[[], object]:
        return lambda: shard.maintain(self.job_finished, hurry=hurry)

    def job_finished(self, job: str) -> bool:
        """Whether the writer of a part has surely ended: `txns-e7` and `clock-e7` have in epoch 8, and a job
        of this epoch has after `end_job`. Commits of an ended writer were applied before the shard was opened
        here."""
        kind, _, rest = job.partition("-e")
        epoch, _, number = rest.partition("-")
        if not epoch.isdigit():
            return False
        if kind == JOB_KIND and int(epoch) == self.epoch and number.isdigit():
            with self._jobs_lock:
                return int(number) <= self._last_job and job not in self._jobs
        return kind in ("txns", "clock", "catalog", "subscriptions", JOB_KIND) and int(epoch) < self.epoch

    def begin_job(self) -> str:
        """The id of a new job whose parts Spark's tasks write. They are not swept while it runs."""
        with self._jobs_lock:
            self._last_job += 1
            job = f"{JOB_KIND}-e{self.epoch}-{self._last_job}"
            self._jobs.add(job)
            return job

    def end_job(self, job: str) -> None:
        """End a job: its parts are appended, or never will be."""
        with self._jobs_lock:
            self._jobs.discard(job)

    def announce(self, addresses: Mapping[str, str]) -> None:
        """Publish our addresses, for the error of a second server."""
        self._record(replace(self.holder, addresses=tuple(addresses.items())))

    def _record(self, holder: Holder) -> None:
        """Record us as the holder, with the version of the txns shard's log."""
        with self.oracle.exclusive():
            self.holder = replace(holder, txns=self._txns_shard.version)
            self._clock.record(self.holder)
            self._recorded = time.monotonic()

    def close(self) -> None:
        """Commit and apply the queue, and, unless the directory was taken over, mark it as released.
        Idempotent."""
        if self._closed.is_set():
            return
        self._mark_all()
        self.txns.close()
        self._closed.set()
        self.oracle.close()
        self._watcher.join()
        if self.lost is None:
            try:
                self._record(replace(self.holder, released=time.time_ns() // 1_000_000))
            except (TidemillError, OSError) as e:
                log.warning("the data directory could not be marked as released: %s", e)
        self._lock_file.release()

    def _watch(self) -> None:
        seconds = WATCH_SECONDS if self._lock_file.supported else WATCH_SECONDS_REMOTE
        while not self._closed.wait(seconds):
            try:
                self._clock.shard.refresh()
            except (TidemillError, OSError) as e:
                log.warning("could not look whether the data directory is still ours: %s", e)
                continue
            if self._clock.shard.epoch > self.epoch:
                self.oracle.lose(Fenced(CLOCK_SHARD, self.epoch, self._clock.shard.epoch))
                return

    def _lose(self, error: TidemillError) -> None:
        with self._shards_lock:
            if self.lost is not None:
                return
            self.lost = error
        log.error("the data directory was taken over by another server: %s", error)
        # Servers that wait for the directory can take it now.
        self._lock_file.release()
        self.oracle.lose(error)
        if self._on_lost is not None:
            self._on_lost(error)


def _open_clock(blobs: Blobs, settings: Settings) -> Shard:
    """The clock shard; created if the directory is new. Its epoch is set by fencing."""
    for _ in range(3):
        try:
            return Shard.open(blobs, CLOCK_SHARD, epoch=None, settings=settings)
        except ShardMissing:
            check_clock_gone(blobs)
            try:
                Shard.create(
                    blobs, CLOCK_SHARD, CLOCK_DESC, epoch=0, properties=formats.PROPERTIES, ages=SYSTEM_AGES
                )
            except (ShardExists, CommitUnknown):
                continue
    raise Internal("the clock shard can neither be opened nor created")


def _fenced(
    blobs: Blobs, shard_id: str, desc: RelationDesc, epoch: int, upper: int, settings: Settings
) -> Shard:
    """A system shard, fenced to our epoch and to `upper` or later; created if it does not exist."""
    try:
        shard = Shard.open(blobs, shard_id, epoch=epoch, settings=settings)
    except ShardMissing:
        try:
            return Shard.create(
                blobs, shard_id, desc, epoch=epoch, upper=upper, ages=SYSTEM_AGES, settings=settings
            )
        except ShardExists:
            shard = Shard.open(blobs, shard_id, epoch=epoch, settings=settings)
    shard.fence(epoch, upper)
    return shard


def _wait_for_heartbeat(shard: Shard, clock: Clock) -> None:
    """For a store without locks, where a running holder renews its lease. Returns if no holder is running,
    and raises DirectoryHeld if one is. If this is not known, waits for the length of one lease."""
    holder = ClockShard(shard, 0).holder()
    upper = shard.upper or 0
    if holder is None or holder.released is not None or clock.wall_us() // 1000 > upper + HEARTBEAT_STALE_MS:
        return
    log.info("the data directory was not released; waiting to see whether its holder lives")
    deadline = time.monotonic() + LEASE_MS / 1000
    version = shard.version
    while time.monotonic() < deadline:
        time.sleep(_HEARTBEAT_POLL_SECONDS)
        shard.refresh()
        if shard.version != version:
            latest = ClockShard(shard, 0).holder()
            if latest is not None and latest.released is not None:
                return
            raise DirectoryHeld(latest)
