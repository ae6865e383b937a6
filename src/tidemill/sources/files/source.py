"""Folder source: lists the files and their lengths.

Created by `sources.definition` from the catalog's definition. Each file is a partition, and its offsets count
kilobytes: a message belongs to the kilobyte in which it begins. Files and folders whose names begin with . or
_ are ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tidemill.cdcv2.wording import sentence
from tidemill.decode.contract import legible
from tidemill.errors import LimitExceeded
from tidemill.files_root import below_root
from tidemill.sources.contract import (
    Gauge,
    ReadLimits,
    SourcePiece,
    SourceReader,
    UpstreamError,
    UpstreamLost,
    UpstreamSource,
)
from tidemill.sources.files.fingerprints import FileMark, Stamp, digest
from tidemill.sources.files.fingerprints import read as marks_read
from tidemill.sources.files.fingerprints import written as marks_written
from tidemill.sources.files.reader import KIB, WORDS, FilesReader, unreadable
from tidemill.sources.offsets import Offsets
from tidemill.sources.stream_rows import stream_output
from tidemill.types.model import TEXT, UINT8, Column

KILOBYTES = Gauge(Column("kilobytes", UINT8, nullable=False), Column("file", TEXT, nullable=False))

# The maximum number of files of one source. Each is a row of its bindings and of its marks, and is checked
# with every tick: this many take about a second.
MAX_FILES = 100_000
# What one binding covers: some seconds of work, held by no task as a whole. Its digest takes some tenths of a
# second on the driver, which reads it first.
BINDING_KIB = 256 << 10
# Size of the piece of a large file that a task reads: some tenths of a second.
PIECE_KIB = 4 << 10


@dataclass(frozen=True, slots=True)
class Known:
    """State of a file: its stamp (None where only `kibs`, the bound length, is known), and the marks of the
    data read."""

    stamp: Stamp | None
    kibs: int = 0
    marks: tuple[FileMark, ...] = ()

    def fits(self, size: int) -> bool:
        return _kib(size) >= self.kibs if self.stamp is None else size == self.stamp.size

    @property
    def told(self) -> str:
        return f"{self.kibs} kilobytes" if self.stamp is None else f"{self.stamp.size} bytes"


class FilesSource(UpstreamSource):
    """Raises KeyError, TypeError or ValueError for an invalid definition, and InvalidValue or Unsupported if
    the folder is not below `files_root`."""

    gauge = KILOBYTES

    def __init__(self, definition: Mapping[str, Any], files_root: str) -> None:
        spec = definition["output"]
        self._path = str(definition["path"])
        self._folder = below_root(files_root, definition["path"])
        self.outputs = (stream_output(spec, WORDS),)
        self._reader = FilesReader(str(self._folder), json.dumps(spec, sort_keys=True))
        # Each file at its last successful check.
        self._known: dict[str, Known] = {}
        # Known errors, with the state that was checked, so a file is not read repeatedly.
        self._wrong: dict[str, Stamp] = {}

    def recall(self, bound: Offsets, marks: Mapping[str, str]) -> None:
        kept: dict[str, list[FileMark]] = {}
        for name, mark in marks_read(marks):
            kept.setdefault(name, []).append(mark)
        for name, kibs in bound.items():
            found = sorted(kept.get(str(name), ()), key=lambda m: m.lower)
            stamp = found[-1].stamp if found else None
            self._known[str(name)] = Known(stamp, kibs, tuple(found))

    def frontier(self, now: int) -> Offsets:
        files = dict(found_in(self._folder))
        touched: list[str] = []
        for name, known in self._known.items():
            stamp = files.get(name)
            if stamp is None or not known.fits(stamp.size):
                is_now = "is gone" if stamp is None else f"has {stamp.size} bytes"
                raise _changed(name, f"It had {known.told}; now it {is_now}.")
            if known.stamp != stamp:
                touched.append(name)
        self._look_into(touched, files)
        for name, stamp in files.items():
            if name not in self._known:
                self._known[name] = Known(stamp)
        self.waits = None if files else self._nothing()
        return Offsets({name: _kib(stamp.size) for name, stamp in files.items()})

    def _look_into(self, touched: Sequence[str], files: Mapping[str, Stamp]) -> None:
        """Check that touched files still hold the data that was read: some now, more with each further check.
        Raises UpstreamError."""
        room = BINDING_KIB * KIB
        for name in touched:
            known, stamp = self._known[name], files[name]
            if room <= 0:
                break
            room -= sum(mark.upper - mark.lower for mark in known.marks)
            if self._wrong.get(name) == stamp or not self._same(name, known):
                self._wrong[name] = stamp
                raise _changed(name, f"It has {stamp.size} bytes as before, but not the same ones.")
            self._wrong.pop(name, None)
            self._known[name] = replace(known, stamp=stamp)

    def _same(self, name: str, known: Known) -> bool:
        path = self._folder / name
        try:
            return all(digest(path, mark.lower, mark.upper) == mark.digest for mark in known.marks)
        except OSError as e:
            raise _lost(name, e) from e

    def _nothing(self) -> str:
        is_there = os.path.isdir(self._folder)
        return f'folder "{legible(self._path)}" {"has no files" if is_there else "is not there"} yet'

    def mark(self, lower: Offsets, upper: Offsets) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, more in upper.increments(lower).items():
            begin = lower[name] * KIB
            path = self._folder / str(name)
            try:
                # In this order: what changes meanwhile has another stamp.
                stamp = Stamp.of(os.stat(path, follow_symlinks=False))
                end = min(stamp.size, begin + more * KIB)
                key, value = marks_written(str(name), FileMark(begin, end, digest(path, begin, end), stamp))
            except OSError as e:
                raise _lost(str(name), e) from e
            found[key] = value
        return found

    def confirm(self, marks: Mapping[str, str]) -> None:
        added: dict[str, Known] = {}
        for name, mark in marks_read(marks):
            try:
                stamp = Stamp.of(os.stat(self._folder / name, follow_symlinks=False))
            except OSError as e:
                raise _lost(name, e) from e
            if stamp != mark.stamp:
                raise _changed(name, "It was written to while it was read.", UpstreamError)
            known = self._known.get(name, Known(stamp))
            before = (m for m in known.marks if m.lower != mark.lower)
            added[name] = replace(known, marks=(*before, mark))
        self._known |= added

    def reader(self) -> SourceReader:
        return self._reader

    def cut(self, lower: Offsets, upper: Offsets, limits: ReadLimits) -> Offsets:
        """One file after the other, ordered by name: writers name files in writing order, and reading in that
        order waits least."""
        room = min(limits.records, BINDING_KIB)
        values = lower.as_dict()
        for name, more in sorted(upper.increments(lower).items(), key=lambda item: str(item[0])):
            values[name] = values.get(name, 0) + min(more, room)
            room -= min(more, room)
        return Offsets(values)

    def split(self, lower: Offsets, upper: Offsets, ways: int) -> list[SourcePiece]:
        pieces = max(1, upper.records_since(lower) // PIECE_KIB)
        return super().split(lower, upper, min(ways, pieces))


def _kib(size: int) -> int:
    return -(-size // KIB)


def _lost(name: str, error: OSError) -> UpstreamError:
    if isinstance(error, FileNotFoundError):
        return _changed(name, "It was there; now it is gone.")
    return unreadable(name, error)


def _changed(name: str, detail: str, kind: type[UpstreamError] = UpstreamLost) -> UpstreamError:
    return kind(
        f'file "{legible(name)}" has changed since it was read',
        detail=detail,
        hint="Files that a source reads must stay as they are: put it back as it was, or drop the source and "
        "create it again. Write files under a name that begins with a dot, and rename them when they are "
        "complete.",
    )


def found_in(folder: Path) -> Iterator[tuple[str, Stamp]]:
    """The files by their paths relative to the folder, with their metadata. A missing folder has no files.
    Raises UpstreamError, LimitExceeded."""
    count = 0
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            entries = sorted(os.scandir(folder / below), key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        except OSError as e:
            error = UpstreamError(
                f'folder "{legible(str(folder / below))}" cannot be read', detail=sentence(e)
            )
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
                try:
                    yield name, Stamp.of(entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue  # it went while we looked
