"""FROM FILES: the files of a folder as rows. Files of lines may grow; what is complete is read."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from tidemill.decode.contract import legible
from tidemill.files_root import below_root
from tidemill.sources.objects.compression import NONE, compression_of
from tidemill.sources.objects.folder import CALLED, FolderListing, FolderStore
from tidemill.sources.objects.patterns import is_shown, pattern
from tidemill.sources.objects.source import ObjectSource, check_same
from tidemill.sources.objects.store import ObjectStat, Stamp, changed
from tidemill.sources.offsets import Offsets

# A file that is read as a whole is complete if it was not written to for so long.
SETTLED_SECONDS = 1.0


class FolderSource(ObjectSource):
    """Raises as `ObjectSource`, and InvalidValue or Unsupported if the folder is not below `files_root`."""

    def __init__(self, definition: Mapping[str, Any], files_root: str) -> None:
        self._path = str(definition["path"])
        folder = str(below_root(files_root, self._path))
        glob = definition.get("matching")
        wanted = None if glob is None else pattern(str(glob))
        self._folder = FolderStore(folder)
        self._tailed = bool(definition["tailed"])
        # Files of which nothing, or not all, is complete.
        self._unsettled: dict[str, ObjectStat] = {}
        self._unended: dict[str, int] = {}
        listing = FolderListing(
            folder, lambda key: is_shown(key) and (wanted is None or wanted.fullmatch(key) is not None)
        )
        super().__init__(definition, self._folder, listing, f'folder "{legible(self._path)}"')

    def frontier(self, now: int) -> Offsets:
        for key, stat in list(self._unsettled.items()):
            if self._listing.found.get(key) == stat:
                self._note(key, stat)
        return super().frontier(now)

    def _note(self, key: str, stat: ObjectStat | None) -> None:
        if stat is None:
            self._unsettled.pop(key, None)
            self._unended.pop(key, None)
        super()._note(key, stat)

    def _end(self, key: str, stat: ObjectStat, bound: int, stamp: Stamp | None) -> int:
        check_same(CALLED, key, stat, bound)
        if bound and stamp is not None and (stat.size, stat.modified) != (stamp.size, stamp.modified):
            self._check(key, bound, stamp)
        if self._tailed and compression_of(self._compression, key) == NONE:
            end = self._folder.line_end(key, bound, stat.size)
            left = stat.size - (bound if end is None else end)
            if left:
                self._unended[key] = left
            else:
                self._unended.pop(key, None)
            return bound if end is None else end
        if bound and stamp is not None and stat.size != stamp.size:
            raise changed(CALLED, key, f"It had {stamp.size} bytes; now it has {stat.size} bytes.")
        if not bound and time.time() - stat.modified / 1e6 < SETTLED_SECONDS:
            self._unsettled[key] = stat
            return 0
        self._unsettled.pop(key, None)
        return stat.size

    def _check(self, key: str, bound: int, stamp: Stamp) -> None:
        if self._folder.print_of(key, bound) != stamp.print:
            raise changed(CALLED, key, f"Its first {bound} bytes are others than those that were read.")

    def _print(self, key: str, upper: int, stat: ObjectStat | None) -> str:
        return self._folder.print_of(key, upper)

    def mark(self, lower: Offsets, upper: Offsets) -> dict[str, str]:
        return {str(key): str(upper[key]) for key in upper.increments(lower)}

    def confirm(self, marks: Mapping[str, str]) -> None:
        """A file that was written to while it was read must still have what was read."""
        for key, upper in marks.items():
            stamp, stat = self._stamps.get(key), self._folder.stat(key)
            if stamp is not None and (stat.size, stat.modified) != (stamp.size, stamp.modified):
                check_same(CALLED, key, stat, int(upper))
                self._check(key, int(upper), stamp)

    def _waits(self) -> str | None:
        if not self._listing.found and not self._bound:
            is_there = os.path.isdir(self._folder.folder)
            return f"{self._name} {'has no files' if is_there else 'is not there'} yet"
        for key, left in self._unended.items():
            return f'the last {left} bytes of file "{legible(key)}" have no line end yet'
        return None
