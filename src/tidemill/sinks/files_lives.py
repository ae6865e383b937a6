"""Lives of a folder sink: ensure that only the process with the latest life writes its files.

Called by `files_target`. A life is a number that is greater than that of every earlier server (the epoch of
its environment). A suspended process may wake up after a later one has continued its sinks. Both must not
write, or one takes the other's file for its own.

Correctness depends on the order only. A starting process publishes its life, and then removes the unfinished
files of earlier lives. A writer first creates its file, and then checks for a later life. Either the earlier
process sees the later life, or its file is gone when it renames the file to publish it, and the rename fails.
"""

from __future__ import annotations

import os
from pathlib import Path

from tidemill.sinks.target import SinkError


class Lives:
    """The lives of one writer in one folder."""

    def __init__(self, folder: Path, writer: str, life: int) -> None:
        self._folder = folder
        # One file for each. Readers ignore names that begin with a dot.
        self._known = folder / f".{writer}.lives"
        self._making = f".{writer}-"
        self._life = life

    def begin(self) -> None:
        """Publishes this life, and ends earlier ones. Raises SinkError in an earlier one, and OSError."""
        self._known.mkdir(exist_ok=True)
        with open(self._known / f".{self._life}", "wb"):
            pass
        self.check()
        for life in self._lives():
            if life < self._life:
                _remove(self._known / f".{life}")
        for name in os.listdir(self._folder):
            if name.startswith(self._making) and _life_of(name) <= self._life:
                # A file of an attempt that was interrupted or must not finish: no reader has seen it.
                _remove(self._folder / name)

    def path(self, number: int) -> Path:
        """The path of an unfinished file."""
        return self._folder / f"{self._making}{self._life}-{number}"

    def check(self) -> None:
        """Raises SinkError if a later life exists, and OSError."""
        later = max(self._lives(), default=-1)
        if later > self._life:
            raise SinkError(
                "another server has gone on with the sink",
                detail=f"It is server {later} of this data directory, this one is {self._life}.",
                hint="Stop this server if it lost its data directory. If that was restored from a backup, "
                "the folder holds another history: DROP the sink, and CREATE it anew with another path.",
            )

    def _lives(self) -> list[int]:
        return [int(name[1:]) for name in os.listdir(self._known) if name[1:].isdecimal()]


def _life_of(name: str) -> int:
    parts = name.rsplit("-", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else -1


def _remove(path: Path) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass  # another one was faster
