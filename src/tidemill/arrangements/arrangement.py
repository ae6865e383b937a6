"""An arrangement as one reader sees it.

Made by `Arrangements`. A reader brings the changes of the collection that it has read, looks up the contents
at times that it has not given up, and gives up times. Several readers may share the contents: what one has
brought is there for all. Each reader is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from tidemill.arrangements.contents import Contents
from tidemill.errors import Internal, Unavailable


class ArrangementLost(Unavailable):
    """The contents are no longer kept for this reader. Opened again, they are built again."""

    def __init__(self, why: str) -> None:
        super().__init__("an arrangement is not kept any more", detail=why)


class Arrangement:
    def __init__(self, contents: Contents, reader: int, at: int, on_close: Callable[[], None]) -> None:
        self._contents = contents
        self._reader = reader
        self._on_close: Callable[[], None] | None = on_close
        # No lookup before it.
        self.since = at

    @property
    def schema(self) -> pa.Schema:
        """Of the result of a lookup: the columns, and `mz_diff`."""
        return self._contents.schema

    @property
    def upper(self) -> int:
        """The contents are complete before it. Other readers advance it too."""
        return self._contents.upper

    @property
    def kept(self) -> int | None:
        """The time that is on disk, where a later process would find the contents; None if there is none. Who
        computes one arrangement from another must not give up times of that one from this time on."""
        return self._contents.kept

    @property
    def rows(self) -> int:
        """About as many rows are kept."""
        return self._contents.rows

    @property
    def bytes(self) -> int:
        """Of memory and disk."""
        return self._contents.bytes

    def lookup(self, hashes: np.ndarray, before: int) -> pa.Table:
        """The contents just before a time in [since, upper], of all rows with one of the key hashes (sorted,
        unique, uint64): each row once, with its count, which is not zero. Raises ArrangementLost."""
        if not self.since <= before <= self.upper:
            raise Internal(f"an arrangement of [{self.since}, {self.upper}] was asked for {before}")
        found = self._contents.find(hashes, before)
        self._check()
        return found

    def count(self, hashes: np.ndarray) -> int:
        """How many rows a lookup of the hashes gives at most, about: rows that are added up there count
        separately, and retractions too."""
        return self._contents.count(hashes)

    def append(self, updates: pa.Table, hashes: np.ndarray, upper: int) -> None:
        """All changes of the collection from `self.upper` to `upper`: at least the columns, `mz_timestamp`
        and `mz_diff`, and the hash of each row's key. They may begin earlier: what is there already is
        ignored."""
        self._contents.append(updates, hashes, upper, self._reader)
        self._check()

    def compact(self, to: int) -> None:
        """No lookup before `to` will come from this reader."""
        if to > self.since:
            self.since = to
            self._contents.compact(self._reader, min(to, self.upper))

    def close(self) -> None:
        """Idempotent."""
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def _check(self) -> None:
        if self._on_close is None:
            raise Internal("the arrangement is closed")
        if not self._contents.reads(self._reader):
            raise ArrangementLost("Other readers are so far ahead that their changes do not fit into memory.")
