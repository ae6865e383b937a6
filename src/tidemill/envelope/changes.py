"""ENVELOPE DEBEZIUM: each change of the upstream's log once, however often it is delivered.

Called by the tick (`ingest.changes`) in the tasks. A connector that restarts delivers a stretch of the log
again. Every change has a position, and the changes of one partition arrive in the order of their positions,
except for what is repeated. So one position per partition, the greatest so far, decides: a change below it is
a repetition. Several changes may share a position, therefore those seen at the greatest one are kept, by key
and operation.

Rows of a snapshot have one position in common, that of the snapshot. They are upserts by key (the caller's
part), which needs no memory here. A snapshot with another position begins the relation anew; rows of the same
one behind streamed changes are repetitions. So are rows of incremental snapshots, if the log stood before the
mark when they were read.

`ChangeFilter` reads one piece of a partition, from the mark at which the piece is assumed to begin.
`ChangeSummary` says what must be known of a piece to check the assumption; `settle` checks it for all pieces
of a unit, and says where those that were wrong really begin.

Promises: the kept changes are a function of the records alone, not of batches or pieces. The mark's size
depends neither on the table nor on the number of changes.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from tidemill.envelope.keys import first_of_each_key, key_hash
from tidemill.sources.contract import (
    COMMITTED_COLUMN,
    OFFSET_COLUMN,
    OP_COLUMN,
    PHASE_COLUMN,
    POSITION_COLUMN,
    TIMELINE_COLUMN,
    ChangePhase,
    UpstreamError,
    UpstreamLost,
)
from tidemill.sources.offsets import PartitionKey
from tidemill.types.columns import valid_mask
from tidemill.types.kernels import pc

# A position in the upstream's log.
Position = tuple[int, int, int]

# Changes of one position that are remembered. A page of COPY has at most 226; more than this is no log.
MAX_AT_POSITION = 10_000


@dataclass(frozen=True, slots=True)
class ChangeMark:
    """How far the changes of one partition are known."""

    # The greatest position since the snapshot, and the changes that were seen there.
    position: Position | None = None
    at: frozenset[str] = frozenset()
    # The latest commit: what is dropped as a repetition was committed no later.
    committed: int | None = None
    # Positions of another timeline cannot be compared. Behind a snapshot it is the beginning of the text.
    timeline: str | None = None
    # The position of the snapshot that the relation began with.
    snapshot: Position | None = None

    @property
    def empty(self) -> bool:
        return self.position is None and self.snapshot is None

    def within(self, other: ChangeMark) -> bool:
        """Whether all that is a repetition behind this mark is one behind the other."""
        if self.position is None:
            return True
        if other.position is None or other.position < self.position:
            return False
        return other.position > self.position or self.at <= other.at


@dataclass(slots=True)
class ChangeSummary:
    """What a piece found. `start` is the mark that it assumed, `end` the mark behind it."""

    start: ChangeMark
    end: ChangeMark
    # The first position that was kept, and the changes kept there: it must be beyond the true start.
    first: Position | None = None
    first_at: frozenset[str] = frozenset()
    # Of the changes that were dropped, the latest commit and its offset.
    dropped: tuple[int, int] | None = None
    # Whether rows of snapshots were dropped, for the mark.
    passed: bool = False
    # Whether rows of the snapshot were kept, and of incremental rows that were, the lowest position.
    held: bool = False
    lowest: Position | None = None
    # The first snapshot of which there are rows, and the timeline up to and with the next snapshot.
    snapshot: Position | None = None
    timeline: str | None = None
    # Whether a new snapshot emptied the relation.
    emptied: bool = False
    # Whether there are rows that are upserts by key: of a snapshot, or incremental ones.
    upserts: bool = False

    def begins_at(self, mark: ChangeMark) -> bool:
        """Whether the piece's result is the same if it begins at `mark`."""
        if mark == self.start:
            return True
        # (Of a relation that was empty, the first snapshot is no new one.)
        same = mark.snapshot == self.start.snapshot or (self.start.empty and self.snapshot == mark.snapshot)
        if self.snapshot is not None and not same:
            return False
        if (self.dropped is not None or self.passed) and not self.start.within(mark):
            return False
        if mark.position is not None and (self.held or (self.lowest or mark.position) < mark.position):
            return False
        if self.emptied and mark.empty != self.start.empty:
            return False
        if self.first is None or mark.position is None or self.first > mark.position:
            return True
        return self.first == mark.position and not (self.first_at & mark.at)

    def after(self, mark: ChangeMark) -> ChangeMark:
        """The mark behind the piece if it begins at `mark`."""
        if self.emptied:
            return self.end
        end = self.end
        if mark.position is not None and (end.position is None or mark.position > end.position):
            end = replace(end, position=mark.position, at=mark.at)
        elif mark.position is not None and mark.position == end.position:
            end = replace(end, at=mark.at | end.at)
        return replace(
            end,
            committed=_later(mark.committed, end.committed),
            timeline=_longer(mark.timeline, end.timeline),
            snapshot=mark.snapshot if self.snapshot is None else end.snapshot,
        )


class ChangeFilter:
    """For one piece. `key`: positions of the key's columns in its batches; `place` describes the partition in
    errors."""

    def __init__(self, start: ChangeMark, key: Sequence[int], place: str) -> None:
        self._key = key
        self._place = place
        # The start's timeline is for `settle` to compare.
        self._mark = replace(start, timeline=None)
        self.summary = ChangeSummary(start, self._mark)

    def keep(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, list[int]]:
        """The rows that count, and before which of them the relation is emptied. Raises UpstreamLost where
        the positions are not those of one log."""
        phases = rows.column(PHASE_COLUMN).to_numpy()
        positions = _positions(rows.column(POSITION_COLUMN))
        kept = np.ones(rows.num_rows, np.bool_)
        resets: list[int] = []
        snapshots = dict(self._snapshots(phases, positions))
        edges = np.flatnonzero(phases[1:] != phases[:-1]) + 1
        for begin, end in itertools.pairwise(sorted({0, *edges.tolist(), *snapshots, rows.num_rows})):
            if begin in snapshots:
                self._begin(snapshots[begin], rows, begin, resets)
            if phases[begin] != ChangePhase.STREAMED:
                if phases[begin] == ChangePhase.SNAPSHOT:
                    timeline = self._timeline(rows, np.arange(begin, end), self._mark.timeline)
                    self._mark = replace(self._mark, timeline=timeline)
                kept[begin:end] = self._beside(phases[begin], positions, slice(begin, end))
                continue
            streamed = begin + np.flatnonzero(positions.known[begin:end])
            if streamed.size:
                kept[streamed] = self._streamed(rows, streamed, positions.numbers[streamed])
        self.summary.upserts |= bool((kept & (phases != ChangePhase.STREAMED)).any())
        self.summary.end = self._mark
        if kept.all():
            return rows, resets
        before = np.concatenate([[0], np.cumsum(kept)])
        return rows.filter(pa.array(kept)), [int(before[at]) for at in resets]

    def _begin(self, snapshot: Position, rows: pa.RecordBatch, at: int, resets: list[int]) -> None:
        """A snapshot that is not the mark's begins. Its upstream may have another log, but is known by the
        same name: rows of two connectors would take turns to empty the relation."""
        self._timeline(rows, np.array([at]), self._mark.timeline)
        if not self._mark.empty:
            resets.append(at)
            self.summary.emptied, self.summary.dropped, self.summary.passed = True, None, False
        self._mark = ChangeMark(snapshot=snapshot, timeline=rows.column(TIMELINE_COLUMN)[at].as_py())

    def _beside(self, phase: int, positions: _Positions, at: slice) -> np.ndarray:
        """Which rows of a snapshot, all of one phase, count."""
        summary, mark = self.summary, self._mark.position
        if phase == ChangePhase.SNAPSHOT:
            kept = np.full(at.stop - at.start, mark is None)
            summary.held |= mark is None and not summary.emptied
        else:
            known, numbers = positions.known[at], positions.numbers[at]
            kept = np.ones(len(known), np.bool_) if mark is None else ~known | (_compare(numbers, mark) >= 0)
            told = [_position(each) for each in np.unique(numbers[kept & known], axis=0)[:1]]
            if told and not summary.emptied:
                summary.lowest = min(told[0], summary.lowest or told[0])
        summary.passed |= not kept.all()
        return kept

    def _snapshots(self, phases: np.ndarray, positions: _Positions) -> Iterable[tuple[int, Position]]:
        """Where snapshots begin that are not the mark's, and their positions."""
        at = np.flatnonzero(phases == ChangePhase.SNAPSHOT)
        if not at.size:
            return
        numbers = positions.numbers[at]
        changes = np.flatnonzero((numbers[1:] != numbers[:-1]).any(axis=1)) + 1
        current = self._mark.snapshot
        if self.summary.snapshot is None:
            self.summary.snapshot = _position(numbers[0])
        for first in (0, *changes.tolist()):
            snapshot = _position(numbers[first])
            if snapshot != current:
                yield int(at[first]), snapshot
            current = snapshot

    def _streamed(self, rows: pa.RecordBatch, at: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Which of the streamed changes at `at` count."""
        mark = self._mark
        mark = replace(mark, timeline=self._timeline(rows, at, mark.timeline))
        committed = rows.column(COMMITTED_COLUMN).to_numpy(zero_copy_only=False)[at]
        kept = _rising(numbers)
        if mark.position is not None:
            order = _compare(numbers, mark.position)
            kept &= order >= 0
            for row in np.flatnonzero(kept & (order == 0)).tolist():
                kept[row] = self._token(rows, int(at[row])) not in mark.at
        chosen = np.flatnonzero(kept)
        kept[chosen[self._repeated(rows, at[chosen], numbers[chosen])]] = False
        chosen = np.flatnonzero(kept)
        if len(chosen):
            mark = self._advanced(mark, rows, at[chosen], numbers[chosen])
            mark = replace(mark, committed=_later(mark.committed, int(committed[chosen].max())))
        if len(chosen) < len(at):
            gone = np.flatnonzero(~kept)
            last = gone[committed[gone].argmax()]
            dropped = int(committed[last]), int(rows.column(OFFSET_COLUMN)[int(at[last])].as_py())
            self.summary.dropped = max(dropped, self.summary.dropped or dropped)
        self._mark = mark
        return kept

    def _timeline(self, rows: pa.RecordBatch, at: np.ndarray, known: str | None) -> str | None:
        column = rows.column(TIMELINE_COLUMN)
        if len(at) < rows.num_rows:
            column = column.take(pa.array(at))
        for timeline in pc.unique(column).drop_null().to_pylist():
            if not _same_history(known, timeline):
                raise other_timeline(str(known), timeline, self._place)
            known = _longer(known, timeline)
        if not self.summary.emptied:
            self.summary.timeline = _longer(self.summary.timeline, known)
        return known

    def _repeated(self, rows: pa.RecordBatch, at: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Which of rows with rising positions repeat one of the same position, key and operation."""
        if len(at) < 2:
            return np.zeros(0, np.int64)
        same = (numbers[1:] == numbers[:-1]).all(axis=1)
        if not same.any():
            return np.zeros(0, np.int64)
        group = np.r_[False, same] | np.r_[same, False]
        among = np.flatnonzero(group)
        taken = pa.array(at[among])
        columns = [rows.column(column).take(taken) for column in self._key]
        columns.append(rows.column(OP_COLUMN).take(taken).cast(pa.int16()))
        columns += [pa.array(numbers[among, n]) for n in range(3)]
        named = pa.RecordBatch.from_arrays(columns, names=[str(n) for n in range(len(columns))])
        hashes = key_hash(named, range(len(columns)))
        first = np.zeros(len(among), np.bool_)
        first[first_of_each_key(hashes, columns)] = True
        return among[~first]

    def _advanced(
        self, mark: ChangeMark, rows: pa.RecordBatch, at: np.ndarray, numbers: np.ndarray
    ) -> ChangeMark:
        """The mark behind rows that were kept; takes note of the first position."""
        summary = self.summary
        last = _position(numbers[-1])
        seen = self._tokens(rows, at[(numbers == numbers[-1]).all(axis=1)])
        if summary.first is None:
            summary.first = _position(numbers[0])
        if not summary.emptied and summary.first == _position(numbers[0]):
            own = self._tokens(rows, at[(numbers == numbers[0]).all(axis=1)])
            summary.first_at = summary.first_at | own
        if mark.position == last:
            seen |= mark.at
        if len(seen) > MAX_AT_POSITION:
            raise _too_many(last, self._place)
        return replace(mark, position=last, at=seen)

    def _tokens(self, rows: pa.RecordBatch, at: np.ndarray) -> frozenset[str]:
        return frozenset(self._token(rows, int(row)) for row in at.tolist())

    def _token(self, rows: pa.RecordBatch, at: int) -> str:
        """A change among those of its position: the operation, and a digest of the key."""
        key = tuple(rows.column(column)[at].as_py() for column in self._key)
        digest = hashlib.blake2b(repr(key).encode(), digest_size=16).hexdigest()
        return f"{rows.column(OP_COLUMN)[at].as_py()} {digest}"


@dataclass(frozen=True, slots=True)
class SettledChanges:
    """The marks behind a unit; and, if some pieces began elsewhere than they assumed, where all begin."""

    marks: Mapping[PartitionKey, ChangeMark]
    starts: Mapping[tuple[PartitionKey, int], ChangeMark] = field(
        default_factory=dict[tuple[PartitionKey, int], ChangeMark]
    )
    # The unit has upserts by key.
    upserts: bool = False


def settle(
    marks: Mapping[PartitionKey, ChangeMark],
    summaries: Mapping[tuple[PartitionKey, int], ChangeSummary],
    several: bool,
    words: str,
) -> SettledChanges:
    """Check the pieces of a unit, which are known by partition and first offset, against the marks before it.
    `several`: the topic has several partitions. `words` describe the topic. Raises UpstreamLost."""
    ends = dict(marks)
    starts: dict[tuple[PartitionKey, int], ChangeMark] = {}
    right = True
    for piece in sorted(summaries, key=lambda p: (str(p[0]), p[1])):
        partition, _ = piece
        summary, mark = summaries[piece], ends.get(partition, ChangeMark())
        starts[piece] = mark
        right &= summary.begins_at(mark)
        ends[partition] = summary.after(mark)
        if right:
            _check(summary, mark, ends[partition], several, f"{words}, partition {partition}")
    snapshots = {mark.snapshot for mark in ends.values() if mark.snapshot is not None}
    if len(snapshots) > 1 and right:
        raise _snapshot_again(words)
    upserts = any(summary.upserts for summary in summaries.values())
    return SettledChanges(ends, {} if right else starts, upserts)


def _check(summary: ChangeSummary, mark: ChangeMark, end: ChangeMark, several: bool, place: str) -> None:
    if not _same_history(mark.timeline, summary.timeline):
        raise other_timeline(str(mark.timeline), str(summary.timeline), place)
    if summary.dropped is not None and end.committed is not None and summary.dropped[0] > end.committed:
        raise _went_back(end, summary.dropped[1], place)
    if summary.emptied and several:
        raise _snapshot_again(place)
    if len(end.at) > MAX_AT_POSITION:
        raise _too_many(end.position, place)


def _same_history(one: str | None, other: str | None) -> bool:
    """Whether one of the texts begins with the other."""
    if one is None or other is None:
        return True
    shorter, longer = sorted((one, other), key=len)
    return f"{longer}, ".startswith(f"{shorter}, ")


def _longer(one: str | None, other: str | None) -> str | None:
    return one if len(one or "") >= len(other or "") else other


def other_timeline(known: str, found: str, place: str) -> UpstreamError:
    return UpstreamLost(
        "the changes come from another upstream than before",
        detail=f"Until now they came from {known}; in {place} they come from {found}. "
        "Positions of different upstreams cannot be compared.",
        hint="Let Debezium take a new snapshot into a new topic, and create the source again; "
        "or use ENVELOPE DEBEZIUM UPSERT.",
    )


def _went_back(mark: ChangeMark, offset: int, place: str) -> UpstreamError:
    return UpstreamLost(
        "the positions of the changes went back",
        detail=f"The change at offset {offset} in {place} has a position before {mark.position}, like a "
        "repetition, but was committed later than all changes so far: it is new.",
        hint="The upstream was restored from a backup, or its log began again. Let Debezium take a new "
        "snapshot into a new topic, and create the source again.",
    )


def _too_many(position: Position | None, place: str) -> UpstreamError:
    return UpstreamLost(
        f"more than {MAX_AT_POSITION} changes have one position",
        detail=f"They are in {place}, at {position}.",
        hint="Positions of a log tell its changes apart. Use ENVELOPE DEBEZIUM UPSERT for other streams.",
    )


def _snapshot_again(place: str) -> UpstreamError:
    return UpstreamLost(
        "a second snapshot began in a topic of several partitions",
        detail=f"It is in {place}. Which changes of other partitions came before it is not known.",
        hint="Create the source again with START OFFSET or START TIMESTAMP where the snapshot begins; in a "
        "topic of one partition it is followed.",
    )


# -- positions by columns


@dataclass(frozen=True, slots=True)
class _Positions:
    """One row of three numbers for each record; zeros where it has none."""

    numbers: np.ndarray
    known: np.ndarray


def _positions(column: pa.FixedSizeListArray) -> _Positions:
    known = valid_mask(column)
    flat = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, 3)
    if known.all():
        return _Positions(flat, known)
    numbers = np.zeros((len(column), 3), np.int64)
    numbers[known] = flat
    return _Positions(numbers, known)


def _position(numbers: np.ndarray) -> Position:
    first, second, third = numbers.tolist()
    return first, second, third


def _compare(numbers: np.ndarray, with_: Position) -> np.ndarray:
    """Per row -1, 0 or 1: how it compares with a position."""
    return _first_sign(numbers - np.array(with_, np.int64))


def _first_sign(differences: np.ndarray) -> np.ndarray:
    signs = np.sign(differences)
    return np.where(signs[:, 0] != 0, signs[:, 0], np.where(signs[:, 1] != 0, signs[:, 1], signs[:, 2]))


def _rising(numbers: np.ndarray) -> np.ndarray:
    """Which rows are not below any row before them."""
    count = len(numbers)
    kept = np.ones(count, np.bool_)
    if count < 2:
        return kept
    steps = _first_sign(numbers[1:] - numbers[:-1])
    if (steps >= 0).all():
        return kept
    order = np.lexsort((numbers[:, 2], numbers[:, 1], numbers[:, 0]))
    rank = np.zeros(count, np.int64)
    ordered = numbers[order]
    rank[order[1:]] = np.cumsum((ordered[1:] != ordered[:-1]).any(axis=1))
    return rank == np.maximum.accumulate(rank)


def _later(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)
