"""Keys of an upsert collection: which rows belong together.

Shared by the envelope and by the state that it looks up. Keys follow row identity (`types.identity`): NULL is
an ordinary key, NaN = NaN, -0.0 = 0.0, and jsonb compares by its canonical text, as stored. Equal hashes only
suggest equal keys; keys are always compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidemill.errors import Internal
from tidemill.sources.contract import TOMBSTONE_COLUMN
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN, TIME_COLUMN, hidden_fields, storage_schema
from tidemill.types.columns import contiguous, valid_mask
from tidemill.types.hash import SEED, fold, hash_column
from tidemill.types.identity import comparable
from tidemill.types.kernels import pc
from tidemill.types.model import RelationDesc
from tidemill.types.names import RESERVED_PREFIX
from tidemill.types.same import same_rows

# uint64: the hash of a record's key, added where records part by key, so that it is computed once.
HASH_COLUMN = "mz_key_hash"


@dataclass(frozen=True)
class KeyShape:
    """The rows of an upsert collection: the columns of its shard without time and diff, and the positions of
    its key among them. If the relation has hidden columns, the error and the hidden columns follow its own
    columns; they may be part of the key. `order`: positions of the hidden columns by which a record must be
    greater than its key's row to replace it. Without them, the later record wins."""

    schema: pa.Schema
    key: tuple[int, ...]
    order: tuple[int, ...] = ()

    @staticmethod
    def of(desc: RelationDesc, key: Sequence[str], order: Sequence[str] = ()) -> KeyShape:
        """`key` and `order` are names: physical ones, or of hidden columns."""
        fields = [f.with_nullable(True) for f in storage_schema(desc)]
        if desc.hidden:
            fields += [pa.field(ERROR_COLUMN, pa.string()), *hidden_fields(desc)]
        names = [f.name for f in fields]
        unknown = {*key, *order} - set(names)
        if unknown or not key:
            raise Internal(f"key {tuple(key)}, order {tuple(order)} of a relation of {names}")
        at = names.index
        return KeyShape(pa.schema(fields), tuple(map(at, key)), tuple(map(at, order)))

    @cached_property
    def names(self) -> list[str]:
        return self.schema.names

    @cached_property
    def key_names(self) -> list[str]:
        return [self.schema.names[i] for i in self.key]

    @cached_property
    def error(self) -> int | None:
        """The position of the error; None if there cannot be one."""
        return self.names.index(ERROR_COLUMN) if ERROR_COLUMN in self.names else None

    @cached_property
    def kept_schema(self) -> pa.Schema:
        """How the state keeps rows: behind the hash of their key, and with a mark where a key has none."""
        hash_field, mark = pa.field(HASH_COLUMN, pa.uint64()), pa.field(TOMBSTONE_COLUMN, pa.bool_())
        return pa.schema([hash_field, *self.schema, mark])

    @cached_property
    def update_schema(self) -> pa.Schema:
        """The shard's: the relation's columns, time, diff, hidden ones."""
        fields = list(self.schema)
        fields[self.visible : self.visible] = [
            pa.field(TIME_COLUMN, pa.int64(), nullable=False),
            pa.field(DIFF_COLUMN, pa.int64(), nullable=False),
        ]
        return pa.schema(fields)

    @cached_property
    def visible(self) -> int:
        """How many columns are the relation's own."""
        return sum(not name.startswith(RESERVED_PREFIX) for name in self.names)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal shapes, on every machine: names what was kept for rows of this shape."""
        told = f"{[(f.name, str(f.type)) for f in self.schema]} {self.key} {self.order}"
        return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


def key_hash(rows: pa.Table | pa.RecordBatch, key: Sequence[int]) -> np.ndarray:
    """One uint64 per row over the columns at `key`: `types.identity.row_hash` of the key."""
    if not key:
        return np.full(rows.num_rows, SEED, dtype=np.uint64)
    return fold([hash_column(rows.column(i)) for i in key])


def rows_equal(left: Sequence[pa.Array], right: Sequence[pa.Array], count: int) -> np.ndarray:
    """For each row whether all columns on the left equal those on the right."""
    result: np.ndarray | None = None
    for a, b in zip(left, right, strict=True):
        same = _equal(a, b)
        result = same if result is None else result & same
    return np.ones(count, dtype=np.bool_) if result is None else result


def _equal(a: pa.Array, b: pa.Array) -> np.ndarray:
    t = a.type
    nulls = a.null_count or b.null_count
    if pa.types.is_nested(t):
        both = comparable(pa.concat_arrays([a, b]))
        first = np.arange(len(a))
        return same_rows(both, first, first + len(a))
    if not nulls and (pa.types.is_integer(t) or pa.types.is_floating(t)):
        # numpy's call is a third of Arrow's: what counts for the few rows of a tick.
        x, y = a.to_numpy(), b.to_numpy()
        return (x == y) | ((x != x) & (y != y)) if pa.types.is_floating(t) else x == y
    equal = pc.equal(a, b)
    if pa.types.is_floating(t):
        equal = pc.or_(equal, pc.and_(pc.is_nan(a), pc.is_nan(b)))
    if not nulls:
        return equal.to_numpy(zero_copy_only=False)
    left, right = valid_mask(a), valid_mask(b)
    return np.where(left & right, pc.fill_null(equal, False).to_numpy(zero_copy_only=False), left == right)


def first_of_each_key(
    hashes: np.ndarray, keys: Sequence[pa.Array], order: np.ndarray | None = None
) -> np.ndarray:
    """The positions of the first row of each key, in the order of their hashes. Fast where rows of a hash
    follow each other already in sorted runs. `order` sorts by hash, and says which row of a key is first."""
    return _chosen(hashes, keys, np.argsort(hashes, kind="stable") if order is None else order)


def last_of_each_key(hashes: np.ndarray, keys: Sequence[pa.Array]) -> np.ndarray:
    """As `first_of_each_key`, but the last row counts."""
    backwards = np.argsort(hashes[::-1], kind="stable")
    return _chosen(hashes, keys, len(hashes) - 1 - backwards)


def _chosen(hashes: np.ndarray, keys: Sequence[pa.Array], order: np.ndarray) -> np.ndarray:
    """`order` sorts by hash, with the winning row first. Of each run of equal hashes the first row is kept
    and the other rows of its key are dropped. The rest of the run (other keys with the same hash) is
    processed in another round."""
    stays = np.ones(len(hashes), dtype=np.bool_)
    left = order
    while left.size:
        ordered = hashes[left]
        first = np.empty(len(left), dtype=np.bool_)
        first[0] = True
        np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
        followers = (~first).nonzero()[0]
        if not followers.size:
            break
        heads = left[first][np.cumsum(first)[followers] - 1]
        rows = left[followers]
        at, head = pa.array(rows), pa.array(heads)
        same = rows_equal([k.take(at) for k in keys], [k.take(head) for k in keys], len(rows))
        stays[rows[same]] = False
        left = rows[~same]
    return order[stays[order]]


def one_batch(table: pa.Table, names: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """The named columns of a table as one batch."""
    return pa.RecordBatch.from_arrays([contiguous(table.column(name)) for name in names], schema=schema)
