"""A PostgreSQL source on a real server, driven as the tick drives it, but without Spark and shards.

`SourceWorld` keeps what the catalog keeps (the definition, with what was learned) and what the bindings keep
(how far was bound). `crash` forgets all else. Rows are counted: a range gives a `Counter` of rows by output,
and adding up the ranges gives the tables.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from support.upstream_postgres import UpstreamDatabase
from tidemill.errors import TidemillError
from tidemill.sources.contract import SourceBatch, SourcePiece, UpstreamError
from tidemill.sources.offsets import Offsets
from tidemill.sources.postgres.describe import Published, look, replicated
from tidemill.sources.postgres.lsn import parse_lsn
from tidemill.sources.postgres.source import PostgresSource
from tidemill.types.arrow import DIFF_COLUMN, ERROR_COLUMN
from tidemill.types.parse_name import parse_type
from tidemill.types.wire import encode_text

WAIT_SECONDS = 60.0
_SLOTS = itertools.count(1)

Row = tuple[Any, ...]
Rows = dict[int, Counter[Row]]


class SourceWorld:
    """`names` are the tables, in the order of the outputs."""

    def __init__(
        self, upstream: UpstreamDatabase, *names: str, publication: str = "p", **connection: Any
    ) -> None:
        self.upstream = upstream
        published = look(upstream.options, publication)
        self.slot = f"{upstream.name}_{next(_SLOTS)}"
        self.definition: dict[str, Any] = {
            "connection": {**upstream.options, **connection},
            "publication": publication,
            "slot": self.slot,
            "system": published.system,
            "lsn": None,
            "timeline": None,
            "outputs": [_table(published, name) for name in names],
            "started": 0,
        }
        # Rows are those of the session's COPY: every value has a text, not every one an object of Python.
        self.texts = False
        # What was bound, and what the shards have of it.
        self.bound = Offsets()
        self.kept: Rows = {n: Counter() for n in range(len(names))}
        self.errors: dict[int, list[str]] = {n: [] for n in range(len(names))}
        self.source = self._open()

    def _open(self) -> PostgresSource:
        source = PostgresSource(self.definition)
        source.recall(self.bound, {})
        return source

    def crash(self) -> None:
        """Nothing but what is durable survives."""
        self.source.close()
        self.source = self._open()

    def add(self, name: str) -> None:
        """Another table, as CREATE TABLE ... FROM SOURCE adds it."""
        self.definition["outputs"] = [
            *self.definition["outputs"],
            _table(look(self.upstream.options, self.definition["publication"]), name),
        ]
        output = len(self.kept)
        self.kept[output], self.errors[output] = Counter(), []
        self.crash()

    def now(self) -> int:
        """The end of the upstream's log. (Where it is inserted may be behind the header of an empty page,
        which is no end of anything.)"""
        return parse_lsn(str(self.upstream.query("SELECT pg_current_wal_flush_lsn()::text")[0][0]))

    # -- as the machine does

    def bind(self, least: int | None = None) -> tuple[Offsets, Offsets]:
        """Bind what there is, when it has reached `least` (else the present end of the log)."""
        wanted = self.now() if least is None else least
        deadline = time.monotonic() + WAIT_SECONDS
        last: TidemillError | None = None
        while time.monotonic() < deadline:
            try:
                found = self.source.frontier(0)
            except UpstreamError as e:
                if not e.transient:
                    raise
                last = e
            else:
                self._learn()
                if found[None] >= wanted:
                    lower, self.bound = self.bound, found
                    return lower, found
            time.sleep(0.02)
        raise AssertionError(f"the frontier did not reach {wanted}") from last

    def _learn(self) -> None:
        if self.source.learned is not None:
            self.definition.update(self.source.learned)
            self.source.learned = None

    def read(
        self, lower: Offsets, upper: Offsets, *, ways: int = 2, outputs: frozenset[int] | None = None
    ) -> tuple[Rows, dict[int, list[str]]]:
        """The rows of a bound range, and the errors, by output."""
        wanted = frozenset(self.kept) if outputs is None else outputs
        reader, pieces = self.retry(lambda: self.source.plan(lower, upper, ways, wanted))
        rows: Rows = {n: Counter() for n in wanted}
        errors: dict[int, list[str]] = {n: [] for n in wanted}
        for piece in pieces:
            assert isinstance(piece, SourcePiece)
            for batch in reader.read(piece):
                values = self._values(batch)
                diffs: Sequence[int] = values.pop(DIFF_COLUMN)
                faults: Sequence[str | None] = values.pop(ERROR_COLUMN, [None] * len(diffs))
                for row, diff, fault in zip(zip(*values.values(), strict=True), diffs, faults, strict=True):
                    if fault is not None:
                        errors[batch.output].append(fault)
                    else:
                        rows[batch.output][row] += diff
        return rows, errors

    def _values(self, batch: SourceBatch) -> dict[str, Any]:
        if not self.texts:
            return batch.rows.to_pydict()
        columns: Sequence[Mapping[str, Any]] = self.definition["outputs"][batch.output]["columns"]
        types = [parse_type(column["type"]) for column in columns]
        found = dict(zip(batch.rows.schema.names, batch.rows.columns, strict=True))
        for (name, array), t in zip(list(found.items()), types, strict=False):
            found[name] = encode_text(array, t).cast(pa.string())
        return {name: array.to_pylist() for name, array in found.items()}

    def retry(self, attempt: Callable[[], Any]) -> Any:
        """Repeat while it fails for the moment."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                return attempt()
            except UpstreamError as e:
                if not e.transient or time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def keep(self, lower: Offsets, upper: Offsets, **how: Any) -> None:
        """Read a range and keep it; it is durable then."""
        rows, errors = self.retry(lambda: self.read(lower, upper, **how))
        for output, found in rows.items():
            self.kept[output].update(found)
            self.errors[output] += errors[output]
        self.source.durable(upper)

    def catch_up(self, least: int | None = None) -> None:
        """Everything that was committed upstream is here."""
        self.keep(*self.bind(least))

    # -- looking

    def table(self, output: int = 0) -> dict[Row, int]:
        """The rows that are there, each with its count. A negative count is shown too."""
        return {row: count for row, count in self.kept[output].items() if count}

    def wanted(self, query: str) -> dict[Row, int]:
        return dict(Counter(self.upstream.query(query)))

    def failure(self) -> UpstreamError:
        """Why there is no stream."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            try:
                self.source.frontier(0)
            except UpstreamError as e:
                if e.sqlstate != "57P03":
                    return e
            time.sleep(0.02)
        raise AssertionError("there is a stream")

    def close(self) -> None:
        self.source.close()


def _table(published: Published, name: str) -> Mapping[str, Any]:
    table = next(t for t in published.tables if name in (t.table, f"{t.schema}.{t.table}"))
    return replicated(published, table).spec()
