"""The rows of a stage's input in several versions: before and at each time at which keys were touched.

Version 2i has the rows of the keys that are touched at the i-th time as they were just before it, version
2i + 1 as they are at it. Works on Arrow tables and numpy arrays; no loop over rows or times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidemill.errors import Internal
from tidemill.query.multiset import check_counts
from tidemill.sql.plan.versions import VERSION
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.columns import contiguous
from tidemill.types.identity import consolidate
from tidemill.types.model import RelationDesc


@dataclass(frozen=True, slots=True)
class Touched:
    """The touched keys of each time: pairs of a key hash and the number of the time, sorted, no pair twice.
    `times` are all times, sorted."""

    times: np.ndarray
    hashes: np.ndarray
    numbers: np.ndarray

    @staticmethod
    def of(times: np.ndarray, hashes: Sequence[np.ndarray], stamps: Sequence[np.ndarray]) -> Touched:
        """`hashes` and `stamps`: of the changes of each input."""
        if not hashes:
            return Touched(times, np.zeros(0, np.uint64), np.zeros(0, np.int64))
        touched, numbers = np.concatenate(hashes), np.searchsorted(times, np.concatenate(stamps))
        order = np.lexsort((numbers, touched))
        touched, numbers = touched[order], numbers[order]
        first = np.ones(len(touched), np.bool_)
        first[1:] = (touched[1:] != touched[:-1]) | (numbers[1:] != numbers[:-1])
        return Touched(times, touched[first], numbers[first])

    @property
    def keys(self) -> np.ndarray:
        """Sorted, each once."""
        return np.unique(self.hashes)

    def where(self, chosen: np.ndarray) -> Touched:
        """The pairs of the chosen times, a mask of `times`."""
        kept = chosen[self.numbers]
        return Touched(self.times, self.hashes[kept], self.numbers[kept])

    def pairs(self, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For rows with these key hashes: the row and the number of the time, for each time at which its key
        is touched."""
        low = np.searchsorted(self.hashes, hashes, side="left")
        counts = np.searchsorted(self.hashes, hashes, side="right") - low
        rows = np.repeat(np.arange(len(hashes)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, self.numbers[np.repeat(low, counts) + within]


def versions(
    touched: Touched,
    before: pa.Table,
    before_hashes: np.ndarray,
    changes: pa.Table,
    change_hashes: np.ndarray,
) -> pa.Table:
    """The versions of one input: `before` are its rows just before the first time, with their counts,
    `changes` its updates at the times. The columns, `VERSION` and `mz_diff` as the count of each row, which
    is positive. Raises NegativeMultiplicity."""
    rows, numbers = touched.pairs(before_hashes)
    tables = [_taken(before, rows, 2 * numbers), _taken(before, rows, 2 * numbers + 1)]
    if changes.num_rows:
        at = np.searchsorted(touched.times, contiguous(changes.column(TIME_COLUMN)).to_numpy())
        bare = changes.drop_columns([TIME_COLUMN])
        rows, numbers = touched.pairs(change_hashes)
        own = at[rows]
        earlier, until = own < numbers, own <= numbers
        tables.append(_taken(bare, rows[earlier], 2 * numbers[earlier]))
        tables.append(_taken(bare, rows[until], 2 * numbers[until] + 1))
    found = consolidate(pa.concat_tables(tables), RelationDesc())
    check_counts(found, [n for n in found.schema.names if n not in (VERSION, DIFF_COLUMN)])
    return found


def signed_versions(touched: Touched, changes: pa.Table, hashes: np.ndarray) -> pa.Table:
    """The changes before each version, and those at it, as rows with a count; `VERSION` is twice the version,
    plus one where the rows go."""
    at = np.searchsorted(touched.times, contiguous(changes.column(TIME_COLUMN)).to_numpy())
    bare = changes.drop_columns([TIME_COLUMN])
    place = bare.schema.get_field_index(DIFF_COLUMN)
    diffs = contiguous(changes.column(DIFF_COLUMN)).to_numpy()
    bare = bare.set_column(place, DIFF_COLUMN, pa.array(np.abs(diffs)))
    rows, numbers = touched.pairs(hashes)
    own, gone = at[rows], diffs[rows] < 0
    earlier, until = own < numbers, own <= numbers
    before = _taken(bare, rows[earlier], 4 * numbers[earlier] + gone[earlier])
    return pa.concat_tables([before, _taken(bare, rows[until], 4 * numbers[until] + 2 + gone[until])])


def unchanged_versions(touched: Touched, before: pa.Table, hashes: np.ndarray) -> pa.Table:
    """Rows as they were before the first time, in each version."""
    rows, numbers = touched.pairs(hashes)
    return pa.concat_tables([_taken(before, rows, 2 * numbers), _taken(before, rows, 2 * numbers + 1)])


def same_in_all(times: int, rows: pa.Table) -> pa.Table:
    """Rows (their count last) that are the same in all versions of so many times."""
    which = np.tile(np.arange(rows.num_rows), 2 * times)
    return _taken(rows, which, np.repeat(np.arange(2 * times), rows.num_rows))


def loose_versions(times: np.ndarray, changes: pa.Table) -> pa.Table:
    """The versions of an input whose rows are independent of each other: a row that goes was there before,
    one that comes is there now."""
    numbers = np.searchsorted(times, contiguous(changes.column(TIME_COLUMN)).to_numpy())
    diffs = contiguous(changes.column(DIFF_COLUMN)).to_numpy()
    bare = changes.drop_columns([TIME_COLUMN])
    made = _taken(bare, np.arange(len(diffs)), 2 * numbers + (diffs > 0))
    place = made.schema.get_field_index(DIFF_COLUMN)
    return made.set_column(place, DIFF_COLUMN, pa.array(np.abs(diffs)))


def _taken(rows: pa.Table, which: np.ndarray, version: np.ndarray) -> pa.Table:
    taken = rows.take(pa.array(which))
    place = taken.schema.get_field_index(DIFF_COLUMN)
    return taken.add_column(place, VERSION, pa.array(version.astype(np.int32)))


def replaced(
    touched: Touched,
    found: tuple[pa.Table, np.ndarray],
    numbers: np.ndarray,
    before: tuple[pa.Table, np.ndarray],
) -> pa.Table:
    """The changes of the answers of the touched keys: `found` are their rows at the times of these numbers,
    with the hashes of their keys, `before` those just before the first time. Each row has its count. The
    answer of a key stays until the next time at which it is touched."""
    (rows, hashes), (old, old_hashes) = found, before
    keys, size = touched.keys, len(touched.times)
    codes = np.searchsorted(keys, touched.hashes) * size + touched.numbers
    place = np.searchsorted(codes, np.searchsorted(keys, hashes) * size + numbers)
    inside = place < len(codes)
    known = np.zeros(len(hashes), np.bool_)
    known[inside] = (touched.hashes[place[inside]] == hashes[inside]) & (
        touched.numbers[place[inside]] == numbers[inside]
    )
    if not known.all() or not np.isin(old_hashes, keys).all():
        raise Internal("a stage gave rows of other keys than were asked for")
    after = np.minimum(place + 1, max(len(codes) - 1, 0))
    gone = (after > place) & (touched.hashes[after] == hashes)
    first = touched.numbers[np.searchsorted(touched.hashes, old_hashes)]
    parts = [
        _at(rows, touched.times[numbers], 1),
        _at(rows.filter(pa.array(gone)), touched.times[touched.numbers[after[gone]]], -1),
        _at(old, touched.times[first], -1),
    ]
    return consolidate(pa.concat_tables(parts), RelationDesc()).sort_by(TIME_COLUMN)


def _at(rows: pa.Table, times: np.ndarray, sign: int) -> pa.Table:
    """The rows (their count last) as updates at these times."""
    place = rows.num_columns - 1
    counts = contiguous(rows.column(place)).to_numpy()
    rows = rows.set_column(place, DIFF_COLUMN, pa.array(counts * sign))
    return rows.add_column(place, TIME_COLUMN, pa.array(times.astype(np.int64)))


def difference(found: pa.Table, times: np.ndarray, names: Sequence[str]) -> pa.Table:
    """The answers over the versions, `VERSION` last, as updates: what is there at a time and was not before,
    and the other way. Each row of a time once, in the order of time."""
    version = contiguous(found.column(found.num_columns - 1)).to_numpy()
    columns = [
        *found.columns[:-1],
        pa.array(times[version // 2]),
        pa.array(2 * (version.astype(np.int64) & 1) - 1),
    ]
    updates = pa.table(columns, names=[*names, TIME_COLUMN, DIFF_COLUMN])
    return consolidate(updates, RelationDesc()).sort_by(TIME_COLUMN)
