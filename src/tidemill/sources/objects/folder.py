"""A folder as a store of objects: reads files, and finds those that are new or have grown.

A folder is listed again when it has changed. A file that grows does not change its folder, so files are
looked at in turn, some with each call, and those that have grown of late with every call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from tidemill.cdcv2.wording import sentence
from tidemill.decode.contract import MAX_MESSAGE_BYTES, legible
from tidemill.sources.contract import UpstreamError
from tidemill.sources.objects.store import Listing, ObjectStat, Store, gone

CALLED = "file"
# A folder that has changed within this time may change again without another time of change.
_UNSURE_NS = 2_000_000_000
# Files that are looked at in turn, per call.
_IN_TURN = 10_000
# Files that grew are looked at with every call for so long; so many at most.
_LIVELY_SECONDS = 600.0
_MAX_LIVELY = 1_000
# What a print has of the beginning and of the end of the bytes.
_PRINT_BYTES = 64 << 10
_BACKWARDS = 64 << 10


def stat_of(stat: os.stat_result) -> ObjectStat:
    return ObjectStat(stat.st_size, stat.st_mtime_ns // 1000, f"{stat.st_ino}:{stat.st_mtime_ns}")


@dataclass(frozen=True, slots=True)
class FolderStore(Store):
    """`folder` with all links followed."""

    folder: str
    called = CALLED

    def path(self, key: str) -> Path:
        return Path(self.folder) / key

    def stat(self, key: str) -> ObjectStat:
        try:
            return stat_of(os.stat(self.path(key), follow_symlinks=False))
        except OSError as e:
            raise unreadable(key, e) from e

    def read(self, key: str, print_: str, lower: int, upper: int) -> bytes:
        try:
            with open(self.path(key), "rb") as file:
                file.seek(lower)
                data = file.read(upper - lower)
        except FileNotFoundError:
            raise gone(CALLED, key, lower, upper, "It is not there any more.") from None
        except OSError as e:
            raise unreadable(key, e) from e
        if len(data) != upper - lower:
            raise gone(CALLED, key, lower, upper, f"It has {lower + len(data)} bytes now.")
        return data

    def print_of(self, key: str, upper: int) -> str:
        """Identifies the bytes [0, upper) by their beginning and their end. Raises UpstreamError."""
        first = self.read(key, "", 0, min(upper, _PRINT_BYTES))
        last = self.read(key, "", max(len(first), upper - _PRINT_BYTES), upper)
        return blake2b(first + last, digest_size=12).hexdigest()

    def line_end(self, key: str, lower: int, size: int) -> int | None:
        """The end of the last complete line behind `lower`; None if there is none. Raises UpstreamError."""
        end = size
        while end > lower and size - end <= MAX_MESSAGE_BYTES:
            begin = max(lower, end - _BACKWARDS)
            found = self.read(key, "", begin, end).rfind(b"\n")
            if found >= 0:
                return begin + found + 1
            end = begin
        return None


def unreadable(name: str, error: OSError) -> UpstreamError:
    failed = UpstreamError(f'file "{legible(name)}" cannot be read', detail=sentence(error))
    failed.transient = True
    return failed


class FolderListing(Listing):
    def __init__(self, folder: str, wanted: Callable[[str], bool]) -> None:
        super().__init__()
        self._root = Path(folder)
        self._wanted = wanted
        # By folder: its time of change when it was listed (None: list it again), and its files.
        self._folders: dict[str, int | None] = {"": None}
        self._files: dict[str, set[str]] = {"": set()}
        self._lively: dict[str, float] = {}
        self._turn: Iterator[str] = iter(())

    def advance(self, seconds: float) -> Mapping[str, ObjectStat | None]:
        news: dict[str, ObjectStat | None] = {}
        waiting = list(self._folders)
        while waiting:
            waiting += self._folder(waiting.pop(), news)
        self.complete = True
        now = time.monotonic()
        self._lively = {
            k: t for k, t in self._lively.items() if now - t < _LIVELY_SECONDS and k in self.found
        }
        for key in [*self._lively, *self._next()]:
            if key not in news:
                self._look_at(key, news, now)
        return news

    def _next(self) -> Iterator[str]:
        for _ in range(min(_IN_TURN, len(self.found))):
            key = next(self._turn, None)
            if key is None:
                self._turn = iter(list(self.found))
                key = next(self._turn)
            yield key

    def _folder(self, below: str, news: dict[str, ObjectStat | None]) -> list[str]:
        """List a folder, if it may have changed; returns the folders in it that are new."""
        path = self._root / below
        try:
            changed = os.stat(path, follow_symlinks=not below).st_mtime_ns
            if self._folders[below] == changed:
                return []
            is_sure = time.time_ns() - changed > _UNSURE_NS
            with os.scandir(path) as entries:
                listed = list(entries)
        except (FileNotFoundError, NotADirectoryError):
            self._forget(below, news)
            return []
        except OSError as e:
            error = UpstreamError(f'folder "{legible(str(path))}" cannot be read', detail=sentence(e))
            error.transient = True
            raise error from e
        before, files = self._files[below], set[str]()
        folders: list[str] = []
        for entry in listed:
            if entry.name[0] in "._":
                continue
            key = f"{below}/{entry.name}" if below else entry.name
            if key in before:
                files.add(key)
            # Links could lead out of the folder.
            elif entry.is_dir(follow_symlinks=False):
                if key not in self._folders:
                    self._folders[key], self._files[key] = None, set()
                    folders.append(key)
            elif entry.is_file(follow_symlinks=False) and self._wanted(key):
                try:
                    stat = stat_of(entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue  # it went while we looked
                files.add(key)
                if self.note(key, stat):
                    news[key] = stat
        for key in before - files:
            self._gone(key, news)
        self._files[below] = files
        self._folders[below] = changed if is_sure else None
        return folders

    def _forget(self, below: str, news: dict[str, ObjectStat | None]) -> None:
        for key in self._files[below]:
            self._gone(key, news)
        if below:
            del self._folders[below], self._files[below]
        else:
            self._files[below] = set()

    def _gone(self, key: str, news: dict[str, ObjectStat | None]) -> None:
        if self.found.pop(key, None) is not None:
            news[key] = None

    def _look_at(self, key: str, news: dict[str, ObjectStat | None], now: float) -> None:
        try:
            stat = stat_of(os.stat(self._root / key, follow_symlinks=False))
        except FileNotFoundError:
            return  # the folder's change tells
        except OSError as e:
            raise unreadable(key, e) from e
        if self.note(key, stat):
            news[key] = stat
            if len(self._lively) < _MAX_LIVELY:
                self._lively[key] = now
