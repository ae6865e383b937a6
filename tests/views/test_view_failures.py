"""The error that a view holds: since when it is there, and what its readers are shown."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from support.shards import DESC
from tidemill.catalog.items import MaterializedView
from tidemill.inputs.view_failures import (
    FAILURE_HINT,
    LASTING_HINT,
    error_since,
    explain_failure,
    failure_hint,
)
from tidemill.persist.environment import Environment
from tidemill.query.multiset import SourceError
from tidemill.sources.postgres.row_changes import table_error
from tidemill.types.arrow import shard_schema

CREATED = 1_795_011_172_000


def test_an_error_is_there_since_it_came_last(tmp_path: Path) -> None:
    environment = Environment.open(str(tmp_path / "data"))
    shard = environment.create_shard("v", DESC)
    times = {"it broke": [(5, 1), (7, -1), (9, 1), (12, -1)], "else": [(3, 1)]}
    for lower, upper in ((1, 8), (8, 20)):
        given = [
            {"mz_timestamp": at, "mz_diff": diff, "mz_error": text}
            for text, changes in times.items()
            for at, diff in changes
            if lower <= at < upper
        ]
        rows = pa.Table.from_pylist(given, schema=shard_schema(DESC))
        shard.compare_and_append([shard.write_part(rows, job="test")], lower, upper)
    for at, text, since in ((6, "it broke", 5), (10, "it broke", 9), (10, "else", 3)):
        with shard.snapshot(at) as snapshot:
            assert error_since(snapshot, text) == since
    environment.close()


@pytest.mark.parametrize(
    ("since", "earliest", "said"),
    [
        (CREATED, CREATED, "since 1795011172000 (2026-11-18 14:12:52+00)."),
        (CREATED + 500, CREATED, "since 1795011172500 (2026-11-18 14:12:52.5+00)."),
        # Compaction has moved it: it may have come before.
        (CREATED + 500, CREATED + 500, "since 1795011172500 (2026-11-18 14:12:52.5+00) or earlier."),
    ],
)
def test_readers_are_shown_the_view_and_the_time(since: int, earliest: int, said: str) -> None:
    view = MaterializedView("u1", "m", "u2", "", DESC, "v", CREATED, (), ())
    error = SourceError("it broke")
    explain_failure(view, error, since, earliest)
    assert (error.primary, error.detail) == ("it broke", f'Materialized view "m" has this error {said}')
    assert (error.hint or "").startswith(FAILURE_HINT)


def test_what_the_error_said_itself_stays() -> None:
    view = MaterializedView("u1", "m", "u2", "", DESC, "v", CREATED, (), ())
    error = SourceError('bad message\nTopic "t", partition 0, offset 5.')
    hint = error.hint
    explain_failure(view, error, CREATED)
    assert error.detail == (
        'Topic "t", partition 0, offset 5. Materialized view "m" has this error since 1795011172000 '
        "(2026-11-18 14:12:52+00)."
    )
    assert error.hint == hint and hint is not None and "mz_source_errors" in hint


def test_an_error_that_lasts_is_not_said_to_end() -> None:
    detail = table_error("table t was truncated upstream", "Nobody knows more.").split("\n")[1]
    assert failure_hint(detail) == LASTING_HINT
    assert failure_hint("A row is wrong.") == failure_hint(None) == FAILURE_HINT
