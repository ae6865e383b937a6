"""Damaged files: each is a clear error that names the file, never a wrong answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from support.shards import DESC, append, contents, updates
from tidemill.errors import DataCorrupted
from tidemill.persist.blob import Blobs
from tidemill.persist.cache import PartCache
from tidemill.persist.entry import Entry, Operation, encode
from tidemill.persist.log import checkpoint_path, entry_path, hint_path
from tidemill.persist.part import Part, part_path, read_part, write_part
from tidemill.persist.settings import Ages
from tidemill.persist.shard import Shard


@pytest.fixture
def shard(folder: Blobs) -> Shard:
    made = Shard.create(folder, "u1", DESC, epoch=1, ages=Ages(0, 0))
    for t in range(5):
        append(made, [((t, "x" * 100), t, 1)], t + 1)
    return made


def at(shard: Shard, path: str) -> Path:
    return Path(shard.blobs.url) / path


def reopen(shard: Shard, epoch: int | None = 1) -> Shard:
    return Shard.open(shard.blobs, "u1", epoch=epoch, cache=PartCache())


def test_no_flipped_bit_passes(folder: Blobs) -> None:
    part = write_part(folder, "u1", DESC, updates([((t, "x" * 9), t, 1) for t in range(9)]), "j")
    file = Path(folder.url) / part_path("u1", part)
    whole = file.read_bytes()
    for bit in range(0, len(whole) * 8, 23):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << (bit % 8)
        file.write_bytes(flipped)
        with pytest.raises(DataCorrupted):
            read_part(folder, "u1", part, DESC)


def test_a_large_part_is_checked_too(blobs: Blobs) -> None:
    """Its pages carry checksums, its footer is within the part's; on S3 it is read in ranges."""
    rows = 900_000
    noise = np.random.default_rng(1).integers(0, 2**62, rows)
    table = pa.table(
        {
            "k": pa.array(noise),
            "v": pa.nulls(rows, pa.string()),
            "mz_timestamp": pa.array(np.arange(rows)),
            "mz_diff": pa.array(np.ones(rows, dtype=np.int64)),
        }
    )
    part = write_part(blobs, "u1", DESC, table, "j")
    assert part.bytes > 8 << 20
    found = read_part(blobs, "u1", part, DESC, ["k"], (1000, 2000))
    assert found.column("k").to_pylist() == noise[1000:2000].tolist()
    if not blobs.url.startswith("s3"):
        file = Path(blobs.url) / part_path("u1", part)
        data = bytearray(file.read_bytes())
        data[100_000] ^= 1
        file.write_bytes(data)
        with pytest.raises(DataCorrupted):
            read_part(blobs, "u1", part, DESC)


def test_a_part_that_is_missing_truncated_or_flipped(shard: Shard) -> None:
    part = shard.parts[2]
    file = at(shard, part_path("u1", part))
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 4] ^= 0x10
    for damage in (
        None,
        b"",
        whole[:-1],
        whole[: len(whole) // 2],
        whole + b"x",
        bytes(flipped),
        b"x" * len(whole),
    ):
        if damage is None:
            file.unlink()
        else:
            file.write_bytes(damage)
        damaged = reopen(shard)
        with pytest.raises(DataCorrupted) as found:
            contents(damaged, 4)
        assert part.path in found.value.primary
        assert found.value.sqlstate == "XX001"
        # The damage has the scope of its part: earlier times are read without it.
        assert len(contents(damaged, 1)) == 2
        # And the shard goes on.
        with pytest.raises(DataCorrupted):
            damaged.compact(everything=True)
    file.write_bytes(whole)
    append(shard, [((9, "y"), 5, 1)], 6)
    assert len(contents(reopen(shard), 5)) == 6


@pytest.mark.parametrize("version", [0, 3, 5])
def test_a_log_entry_that_is_truncated_or_flipped(shard: Shard, version: int) -> None:
    file = at(shard, entry_path("u1", version))
    whole = file.read_bytes()
    middle = whole.index(b"txn") + 1
    for damage in (b"", whole[: len(whole) // 2], whole[:middle] + b"?" + whole[middle + 1 :]):
        file.write_bytes(damage)
        with pytest.raises(DataCorrupted) as found:
            reopen(shard)
        assert f"{version:020d}.json" in found.value.primary


@pytest.mark.parametrize("version", [0, 3])
def test_a_log_entry_that_is_missing(shard: Shard, version: int) -> None:
    at(shard, entry_path("u1", version)).unlink()
    with pytest.raises(DataCorrupted) as found:
        reopen(shard)
    assert f"{version:020d}.json" in found.value.primary


IMPOSSIBLE = {
    "skips a version": (7, {"upper": 9}),
    "removes what is not live": (6, {"removes": ("parts/test/none.parquet",)}),
    "moves upper back": (6, {"upper": 4}),
    "moves since back": (6, {"since": 0}),
    "moves the epoch back": (6, {"epoch": 0}),
    "takes the epoch without saying so": (6, {"epoch": 2}),
    "has no epoch": (6, {"epoch": None}),
    "appends outside of its times": (
        6,
        {"adds": (Part("parts/j/p.parquet", 1, 9, 5, 6, 1, 1, 0, 0, 0),), "upper": 7},
    ),
    "appends beyond its upper": (
        6,
        {"adds": (Part("parts/j/p.parquet", 1, 9, 6, 7, 1, 1, 0, 0, 0),), "upper": 7},
    ),
}


@pytest.mark.parametrize("what", IMPOSSIBLE)
def test_an_entry_that_no_writer_wrote(shard: Shard, what: str) -> None:
    shard.downgrade_since(2)
    append(shard, [], 6)
    version, changes = IMPOSSIBLE[what]
    version += 1
    entry = replace(Entry(Operation.APPEND, "w", "n", 0, epoch=1), **changes)
    with pytest.raises(DataCorrupted) as found:
        shard.state.apply(version, entry, entry_path("u1", version))
    assert f"{version:020d}.json" in found.value.primary
    assert found.value.detail
    assert (shard.version, shard.upper, len(shard.parts)) == (6, 6, 5)


def test_a_double_remove_is_found(shard: Shard, folder: Blobs) -> None:
    """What delta-rs accepts in silence: a second compaction that removes what was removed."""
    other = Shard.open(folder, "u1", epoch=1)
    assert shard.compact(everything=True) is not None
    removed = next(iter(shard.state.removed))
    at(shard, entry_path("u1", shard.version + 1)).write_bytes(
        encode(Entry(Operation.COMPACT, "w", "n", 0, removes=(removed,), epoch=1), shard.version + 1)
    )
    for attempt in (other.refresh, shard.refresh, lambda: reopen(shard)):
        with pytest.raises(DataCorrupted, match="not live"):
            attempt()


def test_a_torn_checkpoint_is_not_needed(shard: Shard) -> None:
    """A power cut before the sync: the entries are still there, and the next writer takes the wreck away."""
    shard.checkpoint()
    append(shard, [((9, "y"), 5, 1)], 6)
    file = at(shard, checkpoint_path("u1", 5))
    whole = file.read_bytes()
    for damage in (b"", whole[:-20]):
        file.write_bytes(damage)
        at(shard, hint_path("u1")).write_bytes(b'{"version":5,"size":1}')
        assert len(contents(reopen(shard, epoch=None), 5)) == 6
        assert file.exists()
        writer = reopen(shard)
        assert not file.exists()
        assert len(contents(writer, 5)) == 6
    writer.checkpoint()
    assert len(contents(reopen(shard), 5)) == 6


def test_a_torn_checkpoint_that_is_needed(shard: Shard) -> None:
    for t in range(5, 8):
        shard.checkpoint()
        append(shard, [((t, "y"), t, 1)], t + 1)
    shard.checkpoint()
    assert shard.clean() > 0
    for version in (7, 8):
        at(shard, checkpoint_path("u1", version)).write_bytes(b"junk")
    with pytest.raises(DataCorrupted) as found:
        reopen(shard)
    assert "checkpoint" in found.value.primary
    # The newest alone is no loss: the one before it and the entries behind it are kept.


def test_one_bad_checkpoint_loses_nothing(shard: Shard) -> None:
    for t in range(5, 8):
        shard.checkpoint()
        append(shard, [((t, "y"), t, 1)], t + 1)
    shard.checkpoint()
    assert shard.clean() > 0
    at(shard, checkpoint_path("u1", 8)).write_bytes(b"junk")
    assert len(contents(reopen(shard), 7)) == 8
