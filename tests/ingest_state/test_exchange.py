"""The exchange by key: nothing lost, everything in order, equal keys together."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.envelope.keys import HASH_COLUMN, key_hash
from tidemill.ingest.exchange import BUCKETS, bucket_of, decode, encode, gather, partition_by_key

KEYS = st.none() | st.sampled_from([0.0, -0.0, float("nan"), 1.0, 2.5]) | st.floats()


ROWS = st.lists(st.tuples(KEYS, st.none() | st.text(max_size=5)), max_size=60)


@given(ROWS, st.sampled_from([1, 4, BUCKETS]))
@settings(max_examples=100, deadline=None)
def test_partition(rows: list[tuple[float | None, str | None]], buckets: int) -> None:
    batch = pa.record_batch(
        {
            "v": pa.array([v for _, v in rows], pa.string()),
            "k": pa.array([k for k, _ in rows], pa.float64()),
            "at": pa.array(range(len(rows)), pa.int64()),
        }
    )
    parts = partition_by_key(batch, [1], buckets)
    assert all(part.num_rows for part in parts.values())
    home: dict[str, int] = {}
    seen: list[int] = []
    for bucket, part in parts.items():
        assert 0 <= bucket < buckets
        part.validate(full=True)
        at = part.column("at").to_pylist()
        assert at == sorted(at)
        seen += at
        whole = part.drop([HASH_COLUMN])
        assert str(whole.to_pylist()) == str(batch.take(pa.array(at, pa.int64())).to_pylist())
        hashes = part.column(HASH_COLUMN).combine_chunks().to_numpy()
        assert (hashes == key_hash(part, [1])).all()
        for key in part.column("k").to_pylist():
            one = str(key + 0.0) if key is not None else "null"
            assert home.setdefault(one.lstrip("-") if key == 0 else one, bucket) == bucket
    assert sorted(seen) == list(range(len(rows)))


def test_buckets_are_ranges_of_the_hash_and_equally_full() -> None:
    hashes = np.sort(key_hash(pa.table({"k": np.arange(100_000)}), [0]))
    buckets = bucket_of(hashes)
    assert (np.diff(buckets.astype(int)) >= 0).all()
    counts = np.bincount(buckets, minlength=BUCKETS)
    assert len(counts) == BUCKETS
    assert counts.min() > 0.9 * 100_000 / BUCKETS
    assert bucket_of(np.array([0, 2**64 - 1], np.uint64)).tolist() == [0, BUCKETS - 1]


def test_slices_come_back_in_the_order_of_their_records() -> None:
    table = pa.table({"k": pa.array([1, None, 3]), "v": pa.array(["a", None, "ccc"])})
    slices = {
        (1, 0): table.slice(1, 2),
        (0, 900): table.slice(0, 1),
        (0, 1000): table,
        (0, 30): table.slice(2),
    }
    encoded = [encode(piece, order) for order, piece in slices.items()]
    for order, data in zip(slices, encoded, strict=True):
        assert decode(data) == (order, slices[order])
    gathered = gather(encoded)
    assert gathered.equals(pa.concat_tables([slices[order] for order in sorted(slices)]))
    assert gathered.schema.metadata is None


def test_a_slice_carries_its_own_rows_only() -> None:
    table = pa.table({"v": pa.array(["x" * 1000] * 1000)})
    assert len(encode(table.slice(10, 1), (0, 0))) < 3000
