"""Compaction: rewrites parts into fewer and larger ones with the same contents at every time >= since.

Called by `Shard.compact` and `Shard.maintain`, off the hot path. There are two kinds. Tiered compaction ranks
parts by their number of updates (`state.rank`) and merges a full rank into one part of the next rank. A
growing shard needs no more than that. Full compaction consolidates all parts that lie wholly at or before
since into one run, when enough updates cancel out. Updates before since move to since.

The commit replaces the inputs only if all of them are live at the previous version, so concurrent compactions
never duplicate a row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill import failpoints
from tidemill.errors import DataCorrupted
from tidemill.persist.blob import Blobs
from tidemill.persist.committer import Committer, EntryDraft, check_epoch
from tidemill.persist.entry import CLOSED, Operation
from tidemill.persist.outcome import CommitUnknown, InputsReplaced
from tidemill.persist.part import Part, part_path, write_part
from tidemill.persist.reading import PartReader
from tidemill.persist.settings import Settings
from tidemill.persist.state import FANOUT, ShardState
from tidemill.types.arrow import ERROR_COLUMN, HIDDEN_ROW, TIME_COLUMN
from tidemill.types.identity import consolidate
from tidemill.types.kernels import pc
from tidemill.types.model import RelationDesc

FP_PART_WRITTEN = failpoints.register(
    "persist.compact.part_written", "compaction wrote its output, nothing committed"
)
FP_COMMITTED = failpoints.register(
    "persist.compact.committed", "compaction committed, its caller does not know"
)

# Maximum number of parts in one merge: a backlog is worked off in steps of bounded memory.
MAX_INPUTS = 16 * FANOUT


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What to merge, the version at which it was live, its relation, and the time to which earlier updates
    move. The log must record since there before the plan is executed. `forget`: the inputs have every update
    up to that time, so invisible rows may be dropped (`types.arrow.HIDDEN_ROW`)."""

    version: int
    desc: RelationDesc
    inputs: tuple[Part, ...]
    since: int
    forget: bool = False


@dataclass(frozen=True, slots=True)
class Compacted:
    """What one compaction did."""

    inputs: int
    outputs: int
    rows_before: int
    rows_after: int


def plan_tier(
    state: ShardState, since: int, settings: Settings, busy: Collection[str] = frozenset()
) -> CompactionPlan | None:
    """The lowest full rank, oldest parts first, but for those whose paths are `busy`. Looks at ranks, not at
    parts, unless there is work."""
    for rank in sorted(state.ranks):
        ranked = state.ranks[rank]
        if len(ranked) < FANOUT:
            continue
        inputs = tier_inputs(ranked, settings, busy)
        if len(inputs) >= FANOUT:
            return make_plan(state, inputs, since)
    return None


def tier_inputs(
    ranked: Mapping[str, Part], settings: Settings, busy: Collection[str] = frozenset()
) -> tuple[Part, ...]:
    """What of a full rank is merged in memory; too few of them are left alone."""
    small = [p for p in ranked.values() if p.weight < settings.part_target_bytes and p.path not in busy]
    return _within(small, settings.compact_max_bytes)


def plan_full(state: ShardState, since: int, settings: Settings) -> CompactionPlan | None:
    """Everything that is settled, when enough would go and it fits in memory."""
    settled = settled_parts(state, since, settings)
    if not settled or sum(part.weight for part in settled) > settings.compact_max_bytes:
        return None
    return make_plan(state, settled, since)


def settled_parts(state: ShardState, since: int, settings: Settings) -> tuple[Part, ...]:
    """Everything wholly at or before since, if enough of it would go: each retraction there takes an
    insertion with it. Else nothing."""
    target = target_time(state, since)
    settled = tuple(part for part in state.parts.values() if part.max_time <= target)
    gone = 2 * sum(part.retractions for part in settled)
    if gone == 0 or gone < settings.compact_min_gain * sum(part.rows for part in settled):
        return ()
    if len(settled) == 1 and settled[0].min_time >= target:
        return ()  # consolidated already, and still negative
    return settled


def plan_all(state: ShardState, since: int, settings: Settings) -> CompactionPlan | None:
    """Every part that fits, regardless of the gain."""
    inputs = _within(list(state.parts.values()), settings.compact_max_bytes)
    alone = len(inputs) == 1 and inputs[0].min_time >= target_time(state, since)
    return make_plan(state, inputs, since) if inputs and not alone else None


def make_plan(state: ShardState, inputs: tuple[Part, ...], since: int) -> CompactionPlan:
    target, desc = target_time(state, since), state.metadata.desc
    forget = False
    if desc.hidden:
        paths = {part.path for part in inputs}
        forget = all(part.path in paths or part.min_time > target for part in state.parts.values())
    return CompactionPlan(state.version, desc, inputs, target, forget)


def target_time(state: ShardState, since: int) -> int:
    """Where updates before since move: to since, but never out of the times that the shard already covers."""
    if state.upper == CLOSED:
        return since
    return max(0, min(since, state.upper - 1))


def _within(parts: list[Part], max_bytes: int) -> tuple[Part, ...]:
    chosen: list[Part] = []
    total = 0
    for part in parts[:MAX_INPUTS]:
        total += part.weight
        if total > max_bytes:
            break
        chosen.append(part)
    return tuple(chosen)


def merge(tables: Iterable[pa.Table], desc: RelationDesc, since: int, *, forget: bool = False) -> pa.Table:
    """One table with the same contents at every time >= since, sorted by time. `forget` as in
    `CompactionPlan`. Tables without other references are released early: there are never more than two copies
    of the rows."""
    table = pa.concat_tables(tables).combine_chunks()
    del tables
    times = table.column(TIME_COLUMN)
    index = table.schema.get_field_index(TIME_COLUMN)
    moved = pa.array(np.maximum(times.to_numpy(), since))
    table = consolidate(table.set_column(index, table.schema.field(index), moved), desc)
    if forget:
        hidden = pc.fill_null(pc.equal(table.column(ERROR_COLUMN), HIDDEN_ROW), False)
        old = pc.less_equal(table.column(TIME_COLUMN), since)
        table = table.filter(pc.invert(pc.and_(hidden, old)))
    times = table.column(TIME_COLUMN).to_numpy()
    return table if (times[1:] >= times[:-1]).all() else table.sort_by(TIME_COLUMN)


def compaction_job(epoch: int, writer: str) -> str:
    """The job id of a handle's compactions. Those of an earlier epoch than the log's are over: their
    commits would be fenced."""
    return f"compact-e{epoch}-{writer}"


def compact(
    plan: CompactionPlan,
    committer: Committer,
    reader: PartReader,
    *,
    epoch: int,
    job: str,
    settings: Settings,
) -> Compacted:
    """Execute the plan. Raises `InputsReplaced` (another compaction committed first) or another outcome of a
    commit. The parts it wrote are deleted unless they may have become visible."""
    table = merge(_read(plan, committer, reader), plan.desc, plan.since, forget=plan.forget)
    step = part_rows(plan.inputs, settings)
    outputs = write_parts(reader.blobs, reader.shard_id, plan.desc, table, job, step)
    return replace_inputs(plan, outputs, committer, reader, epoch=epoch)


def replace_inputs(
    plan: CompactionPlan, outputs: tuple[Part, ...], committer: Committer, reader: PartReader, *, epoch: int
) -> Compacted:
    """Put the outputs in the inputs' place; raises as `compact`."""
    failpoints.hit(FP_PART_WRITTEN)
    paths = tuple(part.path for part in plan.inputs)

    def propose(state: ShardState) -> EntryDraft:
        check_epoch(reader.shard_id, state, epoch)
        check_live(reader.shard_id, state, paths)
        return EntryDraft(Operation.COMPACT, adds=outputs, removes=paths, epoch=epoch)

    try:
        committer.commit(propose)
    except CommitUnknown:
        raise
    except Exception:
        reader.blobs.delete([part_path(reader.shard_id, part) for part in outputs])
        raise
    failpoints.hit(FP_COMMITTED)
    for part in plan.inputs:
        # Readers of an older version read the file; the cache is for live parts.
        reader.cache.drop(reader.cache.key(reader.blobs, reader.shard_id, part))
    before, after = (sum(part.rows for part in parts) for parts in (plan.inputs, outputs))
    return Compacted(len(paths), len(outputs), before, after)


def _read(plan: CompactionPlan, committer: Committer, reader: PartReader) -> list[pa.Table]:
    try:
        return reader.read_all(plan.inputs, plan.desc)
    except DataCorrupted:
        # A handle that slept may request a part that was replaced and swept long ago: that is a lost race.
        committer.refresh()
        with committer.changed:
            check_live(reader.shard_id, committer.state, [part.path for part in plan.inputs])
        raise


def check_live(shard_id: str, state: ShardState, paths: Sequence[str]) -> None:
    """The inputs are live at the version that is replaced. Otherwise rows would reappear or be duplicated."""
    for path in paths:
        if path not in state.parts:
            raise InputsReplaced(
                f"another compaction of shard {shard_id} came first", detail=f'"{path}" is no longer live.'
            )


def part_rows(inputs: Sequence[Part], settings: Settings) -> int:
    """How many updates make a part of the target's size, by the inputs' own density: the output compresses
    no worse."""
    density = sum(part.weight for part in inputs) / sum(part.rows for part in inputs)
    return max(1, int(settings.part_target_bytes / density))


def write_parts(
    blobs: Blobs, shard_id: str, desc: RelationDesc, table: pa.Table, job: str, step: int
) -> tuple[Part, ...]:
    """The table as parts of at most `step` updates."""
    return tuple(
        write_part(blobs, shard_id, desc, table.slice(start, step), job)
        for start in range(0, table.num_rows, step)
    )
