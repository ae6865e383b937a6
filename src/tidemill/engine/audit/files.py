"""The audit log on disk: bounded files of JSON lines per kind of event, read back at start.

Used by `AuditLog` only. A `Track` is one kind: `changes` of the catalog, or `logins`. Its files are named
after their first event. When a kind exceeds its share, its oldest files are deleted. Each kind has its own
share, so that millions of failed logins cannot displace the changes. `AuditFiles` writes from a thread,
because logins are recorded on the event loop.

Promises: after `flush` an event is on disk, or the failure is logged. A file that ends in half a line
(after a crash) loses only that line. A full disk delays no statement. Recovery does not need these files:
a server without them starts, and numbers events from one.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

from prometheus_client import Counter

from tidemill.errors import Unavailable

log = logging.getLogger(__name__)

Kind = Literal["changes", "logins"]
KINDS: tuple[Kind, ...] = ("changes", "logins")
# Files of one kind; so an eighth of the events, the oldest, is deleted at once.
FILES = 8
# The minimum size of a file, independent of the share: about 200 events.
MIN_FILE_BYTES = 64 * 1024
# Events that wait for the disk, some 500 bytes each. Logins beyond are counted and in the log alone.
MAX_WAITING = 10_000
# How long a statement waits for its events to be on the disk: it has happened in any case.
FLUSH_SECONDS = 10.0

UNWRITTEN = Counter(
    "tidemill_audit_unwritten_events",
    "Events of the audit log that could not be kept in its files; they are in the log.",
)


class Track:
    """The files of one kind. Used by one thread."""

    def __init__(self, folder: Path, kind: str, max_bytes: int) -> None:
        self._folder = folder
        self._kind = kind
        self._file_bytes = max(max_bytes // FILES, MIN_FILE_BYTES)
        self._open: BinaryIO | None = None
        self._size = 0

    def append(self, first_id: int, lines: bytes) -> None:
        """Appends whole lines. `first_id` is the id of the first, and names a new file. Raises OSError; the
        next call repairs the file."""
        try:
            if self._open is None or self._size >= self._file_bytes:
                self._begin(first_id)
            assert self._open is not None
            self._open.write(lines)
            self._size += len(lines)
        except OSError:
            self.close()
            raise

    def sync(self) -> None:
        if self._open is not None:
            os.fsync(self._open.fileno())

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def tail(self, count: int) -> list[dict[str, Any]]:
        """The last events, oldest first. Lines that are not events are skipped."""
        found: deque[dict[str, Any]] = deque()
        for path in reversed(self._files()):
            events = list(_events(path))
            found.extendleft(reversed(events[-(count - len(found)) :]))
            if len(found) >= count:
                break
        return list(found)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self._kind}-*.jsonl"))

    def _begin(self, first_id: int) -> None:
        """Continues the last file, or creates the next."""
        self.close()
        files = self._files()
        path = files[-1] if files else None
        if path is None or path.stat().st_size >= self._file_bytes:
            path = self._folder / f"{self._kind}-{first_id:020d}.jsonl"
            for old in files[: max(0, len(files) - (FILES - 1))]:
                old.unlink(missing_ok=True)
        # Unbuffered and to the end: a line is one write, also beside a server that is about to be fenced.
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._open = os.fdopen(descriptor, "ab", buffering=0)
        self._size = os.fstat(descriptor).st_size
        if self._size and os.pread(descriptor, 1, self._size - 1) != b"\n":
            # Half a line, of a process that died.
            self._open.write(b"\n")
        self._sync_folder()

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _events(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_bytes().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("id"), int):
            yield event


class AuditFiles:
    """Thread-safe. `max_bytes` is the limit for both kinds together."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise Unavailable(
                f"cannot make the folder of the audit log: {folder}",
                detail=e.strerror or str(e),
                hint="Set --audit-dir to a folder that the server can write, or --audit-max-size to 0.",
            ) from e
        self._tracks = {kind: Track(folder, kind, max_bytes // len(KINDS)) for kind in KINDS}
        self._changed = threading.Condition()
        # Guarded by the condition: what waits, and how much was ever put and ever dealt with.
        self._waiting: deque[tuple[Kind, int, bytes]] = deque()
        self._put = 0
        self._done = 0
        self._closing = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    def read(self, count: int) -> list[dict[str, Any]]:
        """The last events of each kind. Call before `start`."""
        try:
            events = [event for track in self._tracks.values() for event in track.tail(count)]
        except OSError as e:
            log.warning("the audit log of earlier servers cannot be read: %s", e)
            return []
        return sorted(events, key=lambda event: event["id"])

    def start(self) -> None:
        self._thread.start()

    def put(self, kind: Kind, event_id: int, event: Mapping[str, Any]) -> None:
        """Enqueues an event. Never blocks on the disk."""
        line = json.dumps(event, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"
        with self._changed:
            if len(self._waiting) >= MAX_WAITING and kind == "logins":
                UNWRITTEN.inc()
                return
            self._waiting.append((kind, event_id, line))
            self._put += 1
            self._changed.notify_all()

    def flush(self) -> None:
        """Blocks until all enqueued events are on disk."""
        with self._changed:
            until = self._put
            if not self._changed.wait_for(lambda: self._done >= until, FLUSH_SECONDS):
                log.warning("the disk of the audit log does not answer; its events are in the log alone")

    def close(self) -> None:
        """Writes the queued events and ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(FLUSH_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                batch = list(self._waiting)
                self._waiting.clear()
            for kind in KINDS:
                self._write(kind, [(event_id, line) for k, event_id, line in batch if k == kind])
            with self._changed:
                self._done += len(batch)
                self._changed.notify_all()
                if self._closing and not self._waiting:
                    break
        for track in self._tracks.values():
            track.close()

    def _write(self, kind: Kind, lines: list[tuple[int, bytes]]) -> None:
        if not lines:
            return
        track = self._tracks[kind]
        try:
            track.append(lines[0][0], b"".join(line for _, line in lines))
            if kind == "changes":
                track.sync()
        except OSError as e:
            UNWRITTEN.inc(len(lines))
            if not self._failing:
                log.error("the audit log cannot be written, its events are in the log alone: %s", e)
            self._failing = True
        else:
            self._failing = False
