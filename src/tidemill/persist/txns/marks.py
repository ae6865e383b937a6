"""Marks: the log version that each shard is known to have reached; they reveal a lost end of a log.

A gap in the middle of a log is self-evident; a missing end is not. The txns shard therefore keeps one row per
shard, (shard, version): the log had durably reached that version before the row was written. The entry that
retracts the rows of applied parts also advances the marks of their shards. An applied part is therefore
always covered, either by its row (recovery applies it again) or by the mark (`Environment.open_shard` refuses
the shard). After a crash at any point, a mark is at or below the written version, never above. Writes that
bypass txns (the catalog, the contents of a new table) are marked by their writer with `Txns.note`.

Owned by `Txns`; thread-safe. Memory: one or two small values per shard, including dropped shards.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemill.persist.txns.record import TxnMark

ShardId = str


@dataclass(frozen=True, slots=True)
class Moves:
    """Changes to the marks in the next entry of the txns shard."""

    added: list[TxnMark] = field(default_factory=list[TxnMark])
    retracted: list[TxnMark] = field(default_factory=list[TxnMark])

    def __bool__(self) -> bool:
        return bool(self.added or self.retracted)


class Marks:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The marks in the txns shard.
        self._written: dict[ShardId, TxnMark] = {}
        # Shard -> the version that its log has durably reached, if it is not written yet.
        self._reached: dict[ShardId, int] = {}
        # Dropped shards: their logs are no longer checked.
        self._forgotten: set[ShardId] = set()
        # Dropped shards whose marks still exist. The next entry retracts them.
        self._doomed: set[ShardId] = set()

    def recover(self, written: Mapping[ShardId, TxnMark]) -> None:
        with self._lock:
            self._written = dict(written)

    def expected(self, shard_id: ShardId) -> int | None:
        """The version that the shard's log must have reached; None without a mark."""
        with self._lock:
            mark = None if shard_id in self._forgotten else self._written.get(shard_id)
            return None if mark is None else mark.version

    def reach(self, shard_id: ShardId, version: int) -> None:
        """The shard's log is completely durable up to `version`: the caller has put an entry at or after
        this version, or has read the log after such a put by this process."""
        with self._lock:
            if shard_id not in self._forgotten and version > self._reached.get(shard_id, -1):
                self._reached[shard_id] = version

    def forget(self, shard_id: ShardId) -> None:
        with self._lock:
            self._forgotten.add(shard_id)
            self._reached.pop(shard_id, None)
            if shard_id in self._written:
                self._doomed.add(shard_id)

    def shards(self) -> list[ShardId]:
        """The shards that have a mark and are not dropped."""
        with self._lock:
            return list(self._written.keys() - self._forgotten)

    def moves(self) -> Moves:
        """Changes to write. Confirm with `wrote`; otherwise they are returned again."""
        moves = Moves()
        with self._lock:
            for shard_id, version in self._reached.items():
                old = self._written.get(shard_id)
                if old is not None and old.version >= version:
                    continue
                moves.added.append(TxnMark.of(shard_id, version))
                if old is not None:
                    moves.retracted.append(old)
            moves.retracted.extend(self._written[shard_id] for shard_id in self._doomed)
        return moves

    def wrote(self, moves: Moves) -> None:
        """Called when the entry with these moves is durable."""
        with self._lock:
            for mark in moves.retracted:
                del self._written[mark.shard_id]
                self._doomed.discard(mark.shard_id)
            for mark in moves.added:
                self._written[mark.shard_id] = mark
                if self._reached.get(mark.shard_id) == mark.version:
                    del self._reached[mark.shard_id]
                if mark.shard_id in self._forgotten:
                    # Dropped while the entry was written.
                    self._doomed.add(mark.shard_id)
