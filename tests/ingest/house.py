"""A data directory with one source, whose ticks run in this process, without Spark; and lives of it that end
with SIGKILL at a failpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from signal import SIGKILL
from typing import Any

from tidemill import failpoints
from tidemill.catalog.store import Catalog
from tidemill.ingest.machine import FP_BEFORE_COMMIT, FP_BETWEEN, SourceMachine
from tidemill.ingest.runner import LocalRunner
from tidemill.ingest.service import Ingestion
from tidemill.ingest.storage import CollectionType, SourceDescription, Storage, StorageCollectionId
from tidemill.persist.environment import Environment
from tidemill.persist.shard import Shard
from tidemill.reclock.progress import all_bindings
from tidemill.reclock.remap import FP_BEFORE_BIND, FP_BOUND, FP_PUT
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN

WAIT_SECONDS = 120.0
# Before and behind each step of a tick that makes something durable.
POINTS = [FP_BEFORE_BIND, FP_PUT, FP_BOUND, FP_BEFORE_COMMIT, FP_BETWEEN]


class House:
    """`folder` has the data, and in `files` what sources of files read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open()

    def create(self, definition: Mapping[str, Any]) -> None:
        schema = self.catalog.state.schema(self.catalog.state.database("materialize").id, "public").id
        self.storage.create_sources([SourceDescription(schema, "s", dict(definition), "", 100)])

    def open(self) -> None:
        self.environment = Environment.open(str(self.folder / "data"))
        self.catalog = Catalog.open(self.environment)
        runner, files = LocalRunner(str(self.folder / "state")), str(self.folder / "files")
        self.ingestion = Ingestion(self.environment, self.catalog, runner, files_root=files)
        self.storage = Storage(self.environment, self.catalog, self.ingestion)

    def close(self) -> None:
        self.ingestion.stop()
        self.environment.close()

    def killed(self, point: str) -> None:
        """One life, of a closed house, that ends at the point."""
        process = get_context("spawn").Process(target=_live, args=(self.folder, f"{point}=kill"))
        process.start()
        process.join(WAIT_SECONDS)
        assert process.exitcode == -SIGKILL

    @property
    def id(self) -> str:
        (source,) = self.catalog.state.sources()
        return source.id

    @property
    def machine(self) -> SourceMachine:
        (source,) = self.catalog.state.sources()
        machine = self.ingestion.machine(source)
        assert machine is not None
        return machine

    @property
    def remap(self) -> Shard:
        return self.storage.render(StorageCollectionId(self.id, CollectionType.REMAPPING)).shard

    def bindings(self) -> list[tuple[int, str | None, int, str | None]]:
        """Monotone."""
        found = all_bindings(self.remap, self.machine.source.gauge)
        last: dict[str | None, int] = {}
        for _, partition, end, _ in found:
            assert end >= last.get(partition, 0)
            last[partition] = end
        return found

    def rows(self) -> list[tuple[Any, ...]]:
        rendered = self.storage.render(StorageCollectionId(self.id))
        if not rendered.upper:
            return []
        with rendered.snapshot(rendered.upper - 1) as snapshot:
            table = snapshot.read()
        assert set(table.column(DIFF_COLUMN).to_pylist()) <= {1}
        if ERROR_COLUMN in table.column_names:
            assert table.column(ERROR_COLUMN).null_count == len(table)
        names = [n for n in table.column_names if not n.startswith("mz_")]
        return sorted(zip(*(table.column(n).to_pylist() for n in names), strict=True))

    def settle(self, wanted: Sequence[tuple[Any, ...]]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while self.rows() != wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        assert self.rows() == wanted


def _live(folder: Path, spec: str) -> None:
    failpoints.arm(spec)
    House(folder)
    time.sleep(WAIT_SECONDS)
