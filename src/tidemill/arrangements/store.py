"""All arrangements of a server: which there are, and who reads them.

Readers of the same columns of a collection by the same key share one arrangement if it still has the time at
which they begin. An arrangement without readers is forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidemill.arrangements.arrangement import Arrangement
from tidemill.arrangements.base import Base
from tidemill.arrangements.contents import Contents
from tidemill.arrangements.keys import key_hash
from tidemill.persist.shard import Shard
from tidemill.persist.snapshot import Snapshot
from tidemill.query.multiset import check_counts, check_errors
from tidemill.types.arrow import DIFF_COLUMN, shard_schema

# Rows with `mz_diff`, and the hash of each one's key.
Rows: TypeAlias = tuple[pa.Table, np.ndarray]


@dataclass(slots=True)
class Filling:
    """How far an arrangement is built: updates of the collection that are to be read, and that were read."""

    known: int = 0
    read: int = 0


@dataclass(slots=True)
class _Named:
    """The arrangements of one name, newest first: several if a reader needs times that others have passed."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    contents: list[Contents] = field(default_factory=list[Contents])


class Arrangements:
    """One per server. Thread-safe."""

    def __init__(self, folder: str) -> None:
        """`folder` is a cache: it may be deleted at any time."""
        self.folder = folder
        self._lock = threading.Lock()
        self._named: dict[str, _Named] = {}

    def open(
        self,
        shard: Shard,
        snapshot: Callable[[int], Snapshot],
        columns: Sequence[str],
        key: Sequence[str],
        at: int,
        filling: Filling | None = None,
    ) -> Arrangement:
        """The named columns of a shard's collection by those of `key`; a reader from `at` on. `snapshot`
        returns the collection at a time, and is called with `at - 1`. Blocks while the arrangement is built.
        Raises the errors that a SELECT at `at - 1` would raise, and InvalidAsOf."""
        whole = shard_schema(shard.desc)
        schema = pa.schema([*(whole.field(name) for name in columns), whole.field(DIFF_COLUMN)])

        def fill() -> Iterable[Rows]:
            with snapshot(at - 1) as opened:
                if filling is not None:
                    filling.known = opened.rows
                rows = check_errors(opened.read(columns), opened)
                check_counts(rows, columns)
                if filling is not None:
                    filling.read = opened.rows
                yield rows, key_hash(rows, key)

        name = f"{shard.id} {list(columns)} {list(key)}"
        return self._open(name, schema, at, fill)

    def private(
        self, name: str, schema: pa.Schema, at: int, rows: Callable[[], Iterable[Rows]]
    ) -> Arrangement:
        """An arrangement that only one reader uses; `schema` is that of its columns. `rows` returns its
        contents at `at - 1`, and may be called more than once."""
        return self._open(f"private {name}", schema.append(pa.field(DIFF_COLUMN, pa.int64())), at, rows)

    def _open(self, name: str, schema: pa.Schema, at: int, rows: Callable[[], Iterable[Rows]]) -> Arrangement:
        with self._lock:
            named = self._named.setdefault(name, _Named())
        # Whoever comes while it is built waits for it, and shares it.
        with named.lock:
            for contents in named.contents:
                # (One that is behind `at` is brought there by its readers, not by the one that opens it.)
                reader = contents.join(at) if at <= contents.upper else None
                if reader is not None:
                    return self._reader(named, contents, reader, at)
            base = Base()
            for table, hashes in rows():
                base.add(table.select(schema.names), hashes, at)
            contents = Contents(schema, base, at)
            named.contents.insert(0, contents)
            reader = contents.join(at)
            assert reader is not None
            return self._reader(named, contents, reader, at)

    def _reader(self, named: _Named, contents: Contents, reader: int, at: int) -> Arrangement:
        def leave() -> None:
            with named.lock:
                if not contents.leave(reader) and contents in named.contents:
                    named.contents.remove(contents)

        return Arrangement(contents, reader, at, leave)
