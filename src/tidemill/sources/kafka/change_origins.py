"""Origins of Debezium's changes: phase, position, time and timeline, from the fields of `source`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.decode.debezium.positions import CONNECTORS, SourceFields
from tidemill.errors import TidemillError
from tidemill.sources.contract import UNKNOWN_POSITION, ChangePhase
from tidemill.sources.kafka.change_faults import Faults
from tidemill.sources.kafka.envelopes.debezium import unknown_connector
from tidemill.types.columns import constant, numbers, valid_mask
from tidemill.types.kernels import pc

POSITION_TYPE = pa.list_(pa.int64(), 3)

# By `snapshot`, as releases of Debezium since 1.0 write it.
_PHASES = {
    "false": ChangePhase.STREAMED,
    "incremental": ChangePhase.INCREMENTAL,
    "true": ChangePhase.SNAPSHOT,
    "first": ChangePhase.SNAPSHOT,
    "first_in_data_collection": ChangePhase.SNAPSHOT,
    "last_in_data_collection": ChangePhase.SNAPSHOT,
    "last": ChangePhase.SNAPSHOT,
}
_WORDS = pa.array(list(_PHASES))
_ORDINALS = np.array(list(_PHASES.values()), np.uint8)
_MICROS = 1000


@dataclass(frozen=True, slots=True)
class ChangeOrigins:
    """Columns of a batch; only rows of changes have values."""

    phases: np.ndarray
    positions: pa.Array
    committed: pa.Array
    timelines: pa.Array


def origins_of(source: SourceFields, live: np.ndarray, faults: Faults) -> ChangeOrigins:
    """`live` marks the changes; the other rows say nothing."""
    phases = _phases(source.text("snapshot"), live, faults)
    streamed = live & (phases == ChangePhase.STREAMED)
    beside = live & (phases == ChangePhase.INCREMENTAL)
    # Of incremental rows the position helps, but is not needed.
    needed, placed = live & ~beside, live.copy()
    names = source.text("connector")
    numbers_of = np.zeros((len(live), 3), np.int64)
    timelines = pa.nulls(len(live), pa.string())
    one = constant(names)
    for name in (names if one is None else one).unique().to_pylist():
        connector = CONNECTORS.get(name or "")
        mine = live
        if one is None:
            mine = live & _true(names.is_null() if name is None else pc.equal(names, name))
        if connector is None:
            faults.note(mine, lambda row: unknown_connector(names[row].as_py()))
            continue
        found, wrong = connector.positions(source, streamed, beside, UNKNOWN_POSITION)
        faults.note(
            mine & needed & wrong, lambda row, of=connector: _ill_placed(of.fields, source, row, of.since)
        )
        placed &= ~(mine & wrong)
        others = not mine.all()
        numbers_of = np.where(mine[:, None], found, numbers_of) if others else found
        told = connector.timelines(source)
        only = others or not streamed.all()
        timelines = pc.if_else(pa.array(mine & streamed), told, timelines) if only else told
        whole = mine & needed & ~streamed
        if whole.any():
            timelines = pc.if_else(pa.array(whole), connector.origins(source), timelines)
    positions = pa.FixedSizeListArray.from_arrays(
        pa.array(numbers_of.ravel()), type=POSITION_TYPE, mask=pa.array(~placed)
    )
    committed = _committed(source, live)
    faults.note(streamed & ~valid_mask(committed), lambda row: _ill_placed(("ts_us", "ts_ms"), source, row))
    return ChangeOrigins(np.where(live, phases, np.uint8(0)), positions, committed, timelines)


def _phases(snapshot: pa.Array, live: np.ndarray, faults: Faults) -> np.ndarray:
    """What `snapshot` says; nothing means false, the default in Debezium's schemas."""
    one = constant(snapshot)
    if one is not None and one[0].as_py() in _PHASES:
        return np.full(len(snapshot), _PHASES[one[0].as_py()], np.uint8)
    at = pc.index_in(snapshot, _WORDS)
    if at.null_count:
        unknown = live & _true(at.is_null()) & valid_mask(snapshot)
        faults.note(unknown, lambda row: _unknown_phase(snapshot[row].as_py()))
        at = at.fill_null(0)
    return _ORDINALS[at.to_numpy(zero_copy_only=False)]


def _committed(source: SourceFields, live: np.ndarray) -> pa.Array:
    """Microseconds. Older releases say milliseconds alone."""
    micros = source.number("ts_us")
    known = valid_mask(micros)
    found = numbers(micros, np.int64)
    if not known[live].all():
        millis = source.number("ts_ms")
        found = np.where(known, found, numbers(millis, np.int64) * _MICROS)
        known = known | valid_mask(millis)
    return pa.array(found, mask=~(known & live))


def _true(found: pa.Array) -> np.ndarray:
    return pc.fill_null(found, False).to_numpy(zero_copy_only=False)


def _unknown_phase(said: str) -> TidemillError:
    return TidemillError(
        "a change does not tell whether it belongs to a snapshot",
        detail=f'snapshot of source is "{said}".',
        hint=f"Known are {', '.join(_PHASES)}. ENVELOPE DEBEZIUM UPSERT does not need it.",
        sqlstate="22000",
    )


def _ill_placed(
    fields: Sequence[str], source: SourceFields, row: int, since: str = "Debezium 1.0"
) -> TidemillError:
    return TidemillError(
        "a change has no position in the log of its upstream",
        detail=f"source has {_shown(fields, source, row)}.",
        hint=f"{since} and later write it. ENVELOPE DEBEZIUM UPSERT does not need it.",
        sqlstate="22000",
    )


def _shown(fields: Sequence[str], source: SourceFields, row: int) -> str:
    said: list[str] = []
    for name in fields:
        value = source.text(name)[row].as_py()
        value = source.number(name)[row].as_py() if value is None else value
        said.append(f"{name} {'null' if value is None else value}")
    return ", ".join(said)
