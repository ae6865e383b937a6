"""The tasks of a compaction that is too large for one process (sent by `compaction`).

One task merges a group that it can hold (`merge_group`). A larger group goes through a shuffle. Tasks of the
first kind read a piece of the inputs each and cut it by ranges of the row identity's hash (`cut`). Each task
of the second kind gets all of one range and consolidates it (`merge_range`). Equal rows have equal hashes, so
they meet. Written parts are invisible until the driver commits them, so a task may be killed, retried or run
twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from tidemill import failpoints
from tidemill.ingest.exchange import bucket_of, decode, encode, split
from tidemill.persist.blob import Blobs
from tidemill.persist.compact import merge, write_parts
from tidemill.persist.part import Part, group_rows, part_schema, read_groups, read_part
from tidemill.types.identity import row_hash
from tidemill.types.model import RelationDesc

FP_CUT = failpoints.register("compact.task.cut", "a compaction's task has cut its piece, nobody has it yet")
FP_WRITTEN = failpoints.register(
    "compact.task.written", "a compaction's task has written parts, the driver does not know"
)

# The input of a cutting task, in memory, but at least one row group: about 300 ms, the time that a tick may
# have to wait for a core.
PIECE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class CompactionWork:
    """The common input of all tasks of one compaction: the shard of the parts, the time to which earlier
    updates move, the job that names the output, the number of updates per part, and whether invisible rows
    may be dropped (`persist.compact.Plan`)."""

    blobs: Blobs
    shard: str
    desc: RelationDesc
    since: int
    job: str
    part_rows: int
    forget: bool = False


@dataclass(frozen=True, slots=True)
class CompactionPiece:
    """The `index`-th of `of` pieces of one part, in units of row groups."""

    part: Part
    index: int = 0
    of: int = 1


def ranges(parts: Sequence[Part], target: int) -> int:
    """The number of hash ranges into which a group is cut, so that each has about the target's size before
    equal rows are consolidated."""
    return max(1, -(-sum(part.weight for part in parts) // target))


def shares(parts: Sequence[Part]) -> list[list[CompactionPiece]]:
    """The input of each task of the first stage: about PIECE_BYTES, of a large part or of several small
    ones."""
    shares: list[list[CompactionPiece]] = []
    room = 0
    for part in parts:
        of = min(-(-part.weight // PIECE_BYTES), -(-part.rows // group_rows(part.rows, part.weight)))
        for index in range(of):
            size = part.weight // of
            if room < size:
                shares.append([])
                room = PIECE_BYTES
            shares[-1].append(CompactionPiece(part, index, of))
            room -= size
    return shares


def merge_group(work: CompactionWork, parts: Sequence[Part]) -> tuple[Part, ...]:
    """Merge parts that fit into a task's memory."""
    tables = (read_part(work.blobs, work.shard, part, work.desc) for part in parts)
    return _write(work, _merged(work, tables, forget=work.forget))


def cut(work: CompactionWork, pieces: Sequence[CompactionPiece], of: int) -> Iterator[tuple[int, bytes]]:
    """The pieces' updates as (one of `of` ranges, slice). They are already consolidated: updates that cancel
    out here need no shuffle, and a row that occurs a million times does not enlarge its range."""
    names = part_schema(work.desc).names
    tables = (
        table
        for piece in pieces
        for _, table in read_groups(
            work.blobs, work.shard, piece.part, work.desc, names, (piece.index, piece.of)
        )
    )
    table = _merged(work, tables)
    if table is None:
        return
    ranged = bucket_of(row_hash(table, work.desc).view(np.uint64), of)
    failpoints.hit(FP_CUT)
    for number, rows in split(table, ranged, of).items():
        yield number, encode(rows, (0, 0))


def merge_range(work: CompactionWork, slices: Iterable[bytes]) -> tuple[Part, ...]:
    """Merge all updates of one range."""
    return _write(work, _merged(work, (decode(data)[1] for data in slices), forget=work.forget))


def _merged(work: CompactionWork, tables: Iterator[pa.Table], *, forget: bool = False) -> pa.Table | None:
    first = next(tables, None)
    return None if first is None else merge(chain((first,), tables), work.desc, work.since, forget=forget)


def _write(work: CompactionWork, table: pa.Table | None) -> tuple[Part, ...]:
    if table is None:
        return ()
    parts = write_parts(work.blobs, work.shard, work.desc, table, work.job, work.part_rows)
    failpoints.hit(FP_WRITTEN)
    return parts
