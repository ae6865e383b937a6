"""A folder of files as a source: which files there are, and how long they are.

Made by `sources.definition` from what the catalog keeps. Each file is a partition, whose records are counted
by kilobytes: a message belongs to the one in which it begins. Files whose names begin with . or _ are left
alone, as those in folders of such names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tidemill.decode.contract import legible
from tidemill.errors import LimitExceeded
from tidemill.files_root import below_root
from tidemill.sources.contract import Gauge, Limits, Piece, Reader, Source, SourceError
from tidemill.sources.files.reader import KIB, WORDS, FilesReader
from tidemill.sources.offsets import Offsets, PartitionKey
from tidemill.sources.stream_rows import stream_output
from tidemill.types.model import TEXT, UINT8, Column

KILOBYTES = Gauge(Column("kilobytes", UINT8, nullable=False), Column("file", TEXT, nullable=False))

# Files of one source. Each is a row of its bindings, and is looked at with every tick: so many take about a
# second.
MAX_FILES = 100_000
# What one binding covers: some seconds of work, held by no task as a whole.
BINDING_KIB = 256 << 10
# What a task reads of a large file: some tenths of a second.
PIECE_KIB = 4 << 10


class FilesSource(Source):
    """Raises KeyError, TypeError or ValueError for a definition that is none, and InvalidValue or Unsupported
    where the folder is not below `files_root`."""

    gauge = KILOBYTES

    def __init__(self, definition: Mapping[str, Any], files_root: str) -> None:
        spec = definition["output"]
        self._folder = below_root(files_root, definition["path"])
        self.outputs = (stream_output(spec, WORDS),)
        self._reader = FilesReader(str(self._folder), json.dumps(spec, sort_keys=True))
        # How long each file was when it was first seen, by this process.
        self._sizes: dict[PartitionKey, int] = {}

    def frontier(self, now: int) -> Offsets:
        sizes: dict[PartitionKey, int] = dict(found_in(self._folder))
        for name, size in self._sizes.items():
            if sizes.get(name) != size:
                is_now = f"{sizes[name]} bytes" if name in sizes else "gone"
                raise SourceError(
                    f'file "{legible(str(name))}" has changed since it was read',
                    detail=f"It had {size} bytes; now it is {is_now}.",
                    hint="Files that a source reads must stay as they are. Write them under a name that "
                    "begins with a dot, and rename them when they are complete.",
                )
        self._sizes = sizes
        return Offsets({name: -(-size // KIB) for name, size in sizes.items()})

    def reader(self) -> Reader:
        return self._reader

    def cut(self, lower: Offsets, upper: Offsets, limits: Limits) -> Offsets:
        """One file after the other, in the order of their names: writers name them in the order in which
        they were written, and what is read in that order waits the least."""
        room = min(limits.records, BINDING_KIB)
        values = lower.as_dict()
        for name, more in sorted(upper.increments(lower).items(), key=lambda item: str(item[0])):
            values[name] = values.get(name, 0) + min(more, room)
            room -= min(more, room)
        return Offsets(values)

    def split(self, lower: Offsets, upper: Offsets, ways: int) -> list[Piece]:
        pieces = max(1, upper.records_since(lower) // PIECE_KIB)
        return super().split(lower, upper, min(ways, pieces))


def found_in(folder: Path) -> Iterator[tuple[str, int]]:
    """The files by their paths from the folder on, and their sizes. A folder that is not there (yet) has
    none. Raises SourceError, LimitExceeded."""
    count = 0
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            entries = sorted(os.scandir(folder / below), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        except OSError as e:
            error = SourceError(f'folder "{legible(str(folder / below))}" cannot be read', detail=f"{e}.")
            error.transient = True
            raise error from e
        for entry in entries:
            if entry.name[0] in "._":
                continue
            name = f"{below}/{entry.name}" if below else entry.name
            # Links could lead out of the folder.
            if entry.is_dir(follow_symlinks=False):
                waiting.append(name)
            elif entry.is_file(follow_symlinks=False):
                count += 1
                if count > MAX_FILES:
                    raise LimitExceeded(
                        f"more than {MAX_FILES} files in one source",
                        hint="Write fewer and larger files, or several folders.",
                    )
                yield name, entry.stat(follow_symlinks=False).st_size
