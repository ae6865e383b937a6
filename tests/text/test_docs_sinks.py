"""The page on sinks names what there is: every column, metric, status, option and limit."""

from __future__ import annotations

import re
from pathlib import Path

from tidemill import stepping
from tidemill.engine.relations.system import SYSTEM_RELATIONS
from tidemill.engine.serve.sink_metrics import SinksCollector
from tidemill.ingest.status import RunState
from tidemill.sinks import files_target, kafka_target, kafka_transactions, known_keys
from tidemill.sinks.kafka_progress import progress_topic
from tidemill.sql.parser import sinks as grammar

DOCS = Path(__file__).resolve().parents[2] / "docs" / "sql"
PAGE, ROWS = ((DOCS / name).read_text() for name in ("create-sink.md", "create-sink-rows.md"))


def section(title: str) -> str:
    found = re.search(rf"^##+ {re.escape(title)}$(.*?)(?=^##|\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def test_every_column_is_told() -> None:
    for full in ("mz_catalog.mz_sinks", "mz_internal.mz_sink_statuses", "mz_internal.mz_sink_statistics"):
        schema, name = full.split(".")
        told = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section(full), flags=re.MULTILINE)
        columns = SYSTEM_RELATIONS[schema, name].desc.columns
        expected = [(c.name, str(c.type).replace("timestamp with time zone", "timestamptz")) for c in columns]
        assert told == expected, full


class _Nothing:
    def all(self) -> list[object]:
        return []


def test_every_metric_is_told() -> None:
    families = list(SinksCollector(_Nothing(), lambda: 0).collect())  # pyright: ignore[reportArgumentType]
    expected = {f.name + ("_total" if f.type == "counter" else ""): f.type for f in families}
    assert dict(re.findall(r"^\| `(tidemill_\w+)` \| (\w+) \|", PAGE, flags=re.MULTILINE)) == expected


def test_numbers_and_words_are_those_of_the_code() -> None:
    for state in (RunState.CREATED, RunState.STARTING, RunState.RUNNING, RunState.STALLED):
        assert f"`{state.value}`" in section("How it is")
    assert stepping.FIRST_RETRY_SECONDS == 0.5 and f"{stepping.LAST_RETRY_SECONDS:.0f} seconds" in PAGE
    assert f"At most {kafka_target.MAX_IN_FLIGHT_BYTES >> 20} MB" in PAGE
    assert f"{files_target.FILE_BYTES >> 20} MB is published" in PAGE
    assert f"every {files_target.FilesTarget.pace.idle_seconds:.0f} seconds in a folder" in PAGE
    assert kafka_target.KafkaTarget.pace.idle_seconds == 1.0
    for words in grammar._WITH:  # pyright: ignore[reportPrivateUsage]
        assert f"| `{' '.join(words).upper()}" in section("Options")


def test_numbers_and_words_of_keyed_sinks_are_those_of_the_code() -> None:
    assert f"`{kafka_transactions.TIME_HEADER}`" in ROWS and f"`{progress_topic('<topic>')}`" in ROWS
    assert f"at most {known_keys.MAX_KEYS // 10**6} million keys" in ROWS
    assert f"within {kafka_transactions.TRANSACTION_SECONDS // 60} minutes" in ROWS
    assert f"transactions of {kafka_transactions.TRANSACTION_SECONDS} seconds" in ROWS
    assert f"more than {known_keys.MAX_KEYS} keys" in ROWS
