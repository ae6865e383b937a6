"""File fingerprints: the size, the file system's metadata, and a digest of the contents that were read.

Used by `source`. The size and the times show at no cost, on each check, that a file is untouched. A touched
file is read again, and its digests show whether it is unchanged. A file may thus be copied, restored or
touched, and changed contents are detected, even with the same size.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

# Bytes per read.
_READ = 1 << 20


@dataclass(frozen=True, slots=True)
class Stamp:
    """The file system's metadata of a file. It changes when a file is written or replaced, as far as the file
    system keeps such times, and sometimes without a change of contents."""

    size: int
    modified: int
    changed: int
    inode: int

    @staticmethod
    def of(stat: os.stat_result) -> Stamp:
        return Stamp(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


@dataclass(frozen=True, slots=True)
class FileMark:
    """The bytes [lower, upper) of a file, as they were when they were bound."""

    lower: int
    upper: int
    digest: str
    stamp: Stamp


def digest(path: Path, lower: int, upper: int) -> str:
    """Of the bytes [lower, upper), or as many as there are. Raises OSError."""
    found = blake2b(digest_size=16)
    with open(path, "rb") as file:
        file.seek(lower)
        left = upper - lower
        while left > 0 and (data := file.read(min(left, _READ))):
            found.update(data)
            left -= len(data)
    return found.hexdigest()


def written(name: str, mark: FileMark) -> tuple[str, str]:
    """A mark as it is kept: two texts, of which the first is different for each."""
    stamp = mark.stamp
    about = [mark.upper, mark.digest, stamp.size, stamp.modified, stamp.changed, stamp.inode]
    return json.dumps([name, mark.lower]), json.dumps(about, separators=(",", ":"))


def read(kept: Mapping[str, str]) -> Iterable[tuple[str, FileMark]]:
    """The marks that were kept, by the names of their files."""
    for key, value in kept.items():
        name, lower = json.loads(key)
        upper, said, *stamp = json.loads(value)
        yield name, FileMark(lower, upper, said, Stamp(*stamp))
