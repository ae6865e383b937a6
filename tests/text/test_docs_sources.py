"""The page on sources names what there is: every column of every relation about sources, and every metric."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.core import Metric

from tidemill.engine.relations.system import SYSTEM_RELATIONS
from tidemill.engine.serve.ingest_metrics import IngestCollector
from tidemill.ingest import slot, status
from tidemill.ingest.compaction import CompactionCounts
from tidemill.sources.contract import ReadLimits

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sources.md").read_text()
RELATIONS = (
    "mz_catalog.mz_sources",
    "mz_catalog.mz_source_progresses",
    "mz_internal.mz_source_bindings",
    "mz_internal.mz_source_statuses",
    "mz_internal.mz_source_errors",
    "mz_internal.mz_source_statistics",
    "mz_internal.mz_hydration_statuses",
    "mz_internal.mz_frontiers",
)


def section(title: str) -> str:
    found = re.search(rf"^##+ {re.escape(title)}$(.*?)(?=^##|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def test_every_column_is_told() -> None:
    for full in RELATIONS:
        schema, name = full.split(".")
        relation = SYSTEM_RELATIONS[schema, name]
        told = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section(full), flags=re.MULTILINE)
        columns = [
            (c.name, str(c.type).replace("timestamp with time zone", "timestamptz"))
            for c in relation.desc.columns
        ]
        assert told == columns, full


class _Nothing:
    """As a server without sources, that has compacted nothing."""

    counts = CompactionCounts()
    running = False

    def all(self) -> list[object]:
        return []

    def now(self) -> int:
        return 0


def test_every_metric_is_told() -> None:
    nothing = _Nothing()
    families: list[Metric] = list(IngestCollector(nothing, nothing).collect())  # pyright: ignore[reportArgumentType]
    expected = {f.name + ("_total" if f.type == "counter" else ""): f.type for f in families}
    told = dict(re.findall(r"^\| `(tidemill_\w+)` \| (\w+) \|", section("Metrics"), flags=re.MULTILINE))
    assert told == expected
    for phase in status.PHASES:
        assert f"`{phase}`" in section("Metrics")


def test_numbers_and_words_are_those_of_the_code() -> None:
    assert f"{ReadLimits().records:,} records" in section("Times")
    first, last = slot.FIRST_RETRY_SECONDS, slot.LAST_RETRY_SECONDS
    retries = f"after {first:.0f}, {2 * first:.0f}, {4 * first:.0f}, ... and at most {last:.0f} seconds"
    assert retries in section("When it fails")
    for state in status.RunState:
        assert f"`{state.value}`" in section("mz_internal.mz_source_statuses")


def test_the_python_is_that_of_the_example() -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert block in (ROOT / "examples" / "storage.py").read_text()
