"""Snapshot: the contents of a shard at one time.

Created by `Shard.snapshot`. It is read whole here with Arrow, or part by part by the query layer on Spark.
Until it is closed, it holds `since` at its time and keeps its files in place. Compaction therefore does not
affect its contents.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from types import TracebackType

import pyarrow as pa

from tidemill.errors import Internal, TidemillError
from tidemill.persist.holds import Hold
from tidemill.persist.outcome import show_upper
from tidemill.persist.part import Part, project, read_groups
from tidemill.persist.reading import PartReader
from tidemill.time.shown import show_time
from tidemill.types.arrow import TIME_COLUMN, shard_schema
from tidemill.types.identity import consolidate
from tidemill.types.model import RelationDesc


class InvalidAsOf(TidemillError):
    """The time is before since: its history may be compacted already."""

    sqlstate = "22000"

    def __init__(self, shard_id: str, as_of: int, since: int, upper: int | None) -> None:
        super().__init__(
            "could not find a valid timestamp for the query",
            detail=f"Shard {shard_id} is readable from {show_time(since)} to before {show_upper(upper)}; "
            f"{show_time(as_of)} was asked for.",
            hint="Ask for a later time, or keep more history with RETAIN HISTORY FOR.",
        )
        self.as_of = as_of
        self.since = since
        self.upper = upper


class NotYetReadable(TidemillError):
    """The time is not complete yet; wait for the upper to pass it and ask again."""

    sqlstate = "57P03"
    transient = True

    def __init__(self, shard_id: str, as_of: int, readable: int) -> None:
        super().__init__(
            f"shard {shard_id} is not yet readable at {show_time(as_of)}",
            detail=f"It is complete before {show_time(readable)}.",
        )
        self.as_of = as_of
        self.readable = readable


class Snapshot:
    """Use as a context manager, or `close` it."""

    def __init__(
        self, reader: PartReader, desc: RelationDesc, as_of: int, parts: tuple[Part, ...], hold: Hold
    ) -> None:
        self.as_of = as_of
        self.desc = desc
        # The parts with any update at or before as_of, in the order of the log.
        self.parts = parts
        # Set by callers that know more of the collection: completes the error that it holds, which has this
        # text in the error column. May block.
        self.on_error: Callable[[TidemillError, str], None] | None = None
        self._reader = reader
        self._hold = hold

    @property
    def needs_consolidation(self) -> bool:
        """False when every update is an insertion of one row: then the rows, cut off at as_of, are the
        collection."""
        return any(not part.all_inserts for part in self.parts)

    @property
    def has_errors(self) -> bool:
        return any(part.errors for part in self.parts)

    @property
    def rows(self) -> int:
        """Updates in the parts: an upper bound of the rows."""
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def weight(self) -> int:
        """Memory size of the parts, as far as known."""
        return sum(part.weight for part in self.parts)

    def locate(self, part: Part) -> str:
        """Location of the part, as a path or URL for another reader."""
        return self._reader.locate(part)

    def read_part(self, part: Part, columns: Sequence[str] | None = None) -> pa.Table:
        """The updates of one part at or before as_of, with time, diff and error; for callers that consolidate
        themselves."""
        self._check_open()
        return self._reader.read(part, self.desc, columns, (None, self.as_of + 1))

    def read_groups(
        self, part: Part, columns: Sequence[str], piece: tuple[int, int] = (0, 1)
    ) -> Generator[tuple[int, pa.Table]]:
        """See `part.read_groups`; includes all times."""
        self._check_open()
        return read_groups(self._reader.blobs, self._reader.shard_id, part, self.desc, columns, piece)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The multiset: the relation's columns (or `columns`, by physical name), `mz_diff` and `mz_error`.
        Rows are distinct and diffs not zero when `needs_consolidation`; else every diff is 1 and equal
        rows may repeat."""
        self._check_open()
        tables = self._reader.read_all(self.parts, self.desc, columns, (None, self.as_of + 1))
        if tables:
            table = pa.concat_tables(tables)
        else:
            table = project(shard_schema(self.desc), columns).empty_table()
        if not self.needs_consolidation:
            return table.drop_columns([TIME_COLUMN])
        # All existing columns count; those of a projection need not be a valid relation.
        return consolidate(table, RelationDesc(()), time=False)

    def close(self) -> None:
        """Idempotent."""
        self._hold.release()

    def _check_open(self) -> None:
        if self._hold.released:
            raise Internal("the snapshot is closed")

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
