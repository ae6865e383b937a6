"""Committer of log entries: a strict put-if-absent of version n+1 by a writer that knows version n.

Called by `Shard` for every kind of entry. The caller passes a function that proposes an entry for the current
state, or raises. If another writer commits first, its entries are applied and the function is called again.
Every check thus applies to the version that the entry follows. A commit ends in one of the four outcomes of
`outcome`.

Hazard: log clean-up. Suppose a writer sleeps for longer than the log is retained. Meanwhile others write
version n+1, write a checkpoint past it and delete it, so its name is free again. An entry written after we
last knew version n to be the newest is younger than that moment, and clean-up deletes only entries older than
the retention age. A put that ends within that age is therefore safe. A later one is checked against the last
checkpoint.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from tidemill.errors import DataCorrupted, Internal
from tidemill.persist.blob import BlobError, BlobExists, BlobFailed, Blobs, BlobUnknown
from tidemill.persist.entry import Entry, Metadata, Operation, encode
from tidemill.persist.log import cleaned_past, entry_path, load, read_entry
from tidemill.persist.outcome import CommitFailed, CommitUnknown, Fenced, LostRace
from tidemill.persist.part import Part
from tidemill.persist.state import ShardState

# Waits between tries to find out what became of a put without an answer: together 3.1 s, which outlasts a
# dropped connection or a leader's change in the store.
RESOLVE_DELAYS = (0.0, 0.1, 0.5, 1.0, 1.5)
# No retry begins later than this. Each retry on an unreachable store takes additional time, and waiting
# writers need an answer.
RESOLVE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class EntryDraft:
    """An entry without what the committer adds."""

    operation: Operation
    adds: tuple[Part, ...] = ()
    removes: tuple[str, ...] = ()
    upper: int | None = None
    since: int | None = None
    epoch: int | None = None
    metadata: Metadata | None = None


def check_epoch(shard_id: str, state: ShardState, epoch: int | None) -> int:
    """The epoch under which a handle may commit to this state; raises where it may not."""
    if epoch is None:
        raise Internal(f"shard {shard_id} was opened for reading only")
    if state.epoch > epoch:
        raise Fenced(shard_id, epoch, state.epoch)
    if state.epoch < epoch:
        raise Internal(f"shard {shard_id} is at epoch {state.epoch}: fence it to {epoch} before writing")
    return epoch


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


_stamped = 0
_stamping = threading.Lock()


def _stamp() -> int:
    """The wall clock, but greater than any stamp that this process has given, to whichever log. An entry is
    stamped when all that it builds on is durable: so stamps have the order of cause and effect over all logs
    of a server, which `backup.cut` relies on."""
    global _stamped
    with _stamping:
        _stamped = max(_stamped + 1, wall_ms())
        return _stamped


def stamps_ms() -> int:
    """Now, by the clock of the stamps: ahead of the wall clock after more than one entry in a millisecond."""
    return max(_stamped, wall_ms())


def _since_boot() -> float:
    # Counts while the machine sleeps, unlike the monotonic clock.
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Committer:
    """Owns the state of one open shard."""

    def __init__(self, blobs: Blobs, shard_id: str, state: ShardState, log_keep_seconds: float) -> None:
        self.blobs = blobs
        self.shard_id = shard_id
        self.writer = uuid.uuid4().hex
        # The newest state we know. Read and changed only under `changed`, which is notified when it moves.
        self.state = state
        self.changed = threading.Condition()
        self.log_keep_seconds = log_keep_seconds
        # One put at a time; held over I/O. Taken before `changed`, never after.
        self._order = threading.Lock()
        # When `state.version` was last known to be the newest, by two clocks: see the hazard above.
        self._known = (_since_boot(), time.time())

    def commit(self, propose: Callable[[ShardState], EntryDraft | None]) -> Entry | None:
        """Put the proposed entry as the next version and apply it. `propose` runs under the state's lock
        and does no I/O; it returns None when there is nothing to do (any more), and raises to give up."""
        with self._order:
            if self._stale():
                self._catch_up()
            while True:
                try:
                    with self.changed:
                        draft = propose(self.state)
                        if draft is None:
                            return None
                        version = self.state.version + 1
                        entry = self._entry(draft)
                        objection = self.state.objection(version, entry)
                except LostRace:
                    # Lost according to the state we knew. Check again with the current state: the commit may
                    # not have lost.
                    if self._catch_up():
                        continue
                    raise
                if objection is not None:
                    raise Internal(f"a wrong entry for shard {self.shard_id}", detail=objection)
                began = (_since_boot(), time.time())
                if self._put(version, entry) and not self._taken_back(version):
                    self._apply(version, entry)
                    self._known = began
                    return entry
                self._catch_up()

    def refresh(self) -> bool:
        """Follow what others have committed; True when there was something."""
        with self._order:
            return self._catch_up()

    def _entry(self, draft: EntryDraft) -> Entry:
        return Entry(
            operation=draft.operation,
            writer=self.writer,
            nonce=uuid.uuid4().hex,
            timestamp=_stamp(),
            adds=draft.adds,
            removes=draft.removes,
            upper=draft.upper,
            since=draft.since,
            epoch=draft.epoch,
            metadata=draft.metadata,
        )

    def _put(self, version: int, entry: Entry) -> bool:
        """True: the entry is version `version`, durably. False: another entry is."""
        path = entry_path(self.shard_id, version)
        data = encode(entry, version)
        try:
            self.blobs.put_if_absent(path, data)
        except BlobExists as error:
            try:
                return self._is_ours(version, entry)
            except BlobError:
                return self._resolve(version, entry, data, error)
        except BlobFailed as error:
            raise CommitFailed.because(self.shard_id, error) from error
        except BlobUnknown as error:
            return self._resolve(version, entry, data, error)
        return True

    def _taken_back(self, version: int) -> bool:
        """Whether our version had existed before and was cleaned away; then our entry is deleted. No process
        has read it, because readers skip entries older than a checkpoint."""
        if not self._stale() or not cleaned_past(self.blobs, self.shard_id, version):
            return False
        self.blobs.delete([entry_path(self.shard_id, version)])
        return True

    def _is_ours(self, version: int, entry: Entry) -> bool:
        """Whether the existing entry is ours: a store may refuse the repetition of a put whose answer was
        lost."""
        there = read_entry(self.blobs, self.shard_id, version)
        return there is not None and there.nonce == entry.nonce

    def _resolve(self, version: int, entry: Entry, data: bytes, cause: BlobError) -> bool:
        """Find out by putting the same bytes again: put-if-absent and the nonce make that harmless, and
        unlike a look it settles the matter even when the first put is still under way."""
        deadline = time.monotonic() + RESOLVE_SECONDS
        for delay in RESOLVE_DELAYS:
            if time.monotonic() + delay > deadline:
                break
            time.sleep(delay)
            try:
                self.blobs.put_if_absent(entry_path(self.shard_id, version), data)
                return True
            except BlobExists:
                try:
                    return self._is_ours(version, entry)
                except BlobError:
                    continue
            except BlobError:
                continue
        raise CommitUnknown(
            f"a commit to shard {self.shard_id} may or may not have happened",
            detail=": ".join(filter(None, (cause.primary, cause.detail))),
            hint="Look at the shard's upper before trying again.",
        ) from cause

    def _stale(self) -> bool:
        # Half of the age: the store's clock, which dates the entries, may differ from ours.
        booted, wall = self._known
        idle = max(_since_boot() - booted, time.time() - wall)
        return idle >= self.log_keep_seconds / 2

    def _catch_up(self) -> bool:
        moved = False
        while True:
            began = (_since_boot(), time.time())
            version = self.state.version + 1
            # Checked before the entry is read: another delayed writer may just have put one under a cleaned
            # name.
            if self._stale() and cleaned_past(self.blobs, self.shard_id, version):
                self._reload()
                moved = True
                continue
            entry = read_entry(self.blobs, self.shard_id, version)
            if entry is None:
                self._known = began
                return moved
            self._apply(version, entry)
            moved = True

    def _apply(self, version: int, entry: Entry) -> None:
        with self.changed:
            self.state.apply(version, entry, entry_path(self.shard_id, version))
            self.changed.notify_all()

    def _reload(self) -> None:
        state = load(self.blobs, self.shard_id).state
        with self.changed:
            if state.version < self.state.version:
                raise DataCorrupted(f"the log of shard {self.shard_id} became shorter")
            self.state = state
            self.changed.notify_all()
