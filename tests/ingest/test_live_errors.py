"""The errors that stand in a relation, counted and listed from its shard."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from support.shards import DESC, updates
from tidemill.ingest import live_errors
from tidemill.ingest.live_errors import NO_ERRORS, ErrorFinder, LiveError
from tidemill.persist.local import LocalBlobs
from tidemill.persist.shard import Shard

# The text, or None for a row; the time; the diff.
Said = tuple[str | None, int, int]


def append(shard: Shard, of: Iterable[Said], upper: int) -> None:
    listed = list(of)
    table = updates([((1, None), time, diff) for _, time, diff in listed])
    table = table.append_column("mz_error", pa.array([text for text, _, _ in listed], pa.string()))
    shard.compare_and_append([shard.write_part(table, job="j")], shard.upper, upper)


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return Shard.create(LocalBlobs(str(tmp_path)), "u1", DESC, epoch=1)


def test_errors_come_and_go(shard: Shard) -> None:
    finder = ErrorFinder()
    assert finder.find(shard, 0) is NO_ERRORS
    append(shard, [(None, 0, 1), (None, 0, 1)], 1)
    assert finder.find(shard, 1) is NO_ERRORS
    # A row that nobody sees is no error.
    append(shard, [("bad\nIn row 7.", 1, 1), ("worse", 1, 1), ("worse", 1, 1), ("", 1, 1)], 2)
    found = finder.find(shard, 5)
    assert (found.count, found.complete) == (3, True)
    assert found.first == (LiveError("bad", "In row 7.", 1), LiveError("worse", None, 1, 2))
    append(shard, [("bad\nIn row 7.", 5, -1), ("worse", 5, -1), ("late", 5, 1)], 6)
    # One that was partly taken back is as old as it was.
    found = finder.find(shard, 6)
    assert [(e.text, e.count) for e in found.first] == [("worse", 1), ("late", 1)]
    append(shard, [("worse", 6, -1), ("late", 6, -1)], 7)
    assert finder.find(shard, 7).count == 0


def test_what_was_found_is_kept_until_it_changes(shard: Shard) -> None:
    finder = ErrorFinder()
    append(shard, [("bad", 0, 1)], 1)
    found = finder.find(shard, 1)
    append(shard, [(None, 1, 1)], 2)
    assert finder.find(shard, 2) is found
    finder.keep(())
    again = finder.find(shard, 2)
    assert again == found and again is not found
    append(shard, [("bad", 2, 1)], 3)
    assert finder.find(shard, 3).count == 2


def test_limits(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    append(shard, [(f"bad {n}", 0, 1) for n in range(8)], 1)
    monkeypatch.setattr(live_errors, "MAX_LISTED", 3)
    found = ErrorFinder().find(shard, 1)
    assert (found.count, [e.text for e in found.first]) == (8, ["bad 0", "bad 1", "bad 2"])
    monkeypatch.setattr(live_errors, "MAX_SCANNED_ROWS", 10)
    append(shard, [(f"late {n}", 1, 1) for n in range(8)], 2)
    found = ErrorFinder().find(shard, 2)
    assert (found.count, found.complete) == (8, False)
