"""All arrangements of a server: which there are, who reads them, and what stays on disk.

    <folder>/<format>/<digest of what it is>/<one>/manifest

Readers of the same columns of a collection by the same key share one arrangement if it still has the time at
which they begin. Without readers it stays for IDLE_SECONDS. What a process leaves on disk is used by the next
one if the collection still has the history from there on (`history`); otherwise, and when anything is missing
or damaged, it is built again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidemill import caches
from tidemill.arrangements.arrangement import Arrangement
from tidemill.arrangements.base import Base, Manifest, read_manifest
from tidemill.arrangements.contents import FOLD_ROWS, Contents, release
from tidemill.arrangements.fill import Filling, Rows, catch_up, fill, rewind, rows_of
from tidemill.errors import Internal, TidemillError
from tidemill.persist.holds import Hold
from tidemill.persist.shard import Shard
from tidemill.persist.snapshot import InvalidAsOf, Snapshot
from tidemill.types.arrow import DIFF_COLUMN, shard_schema

log = logging.getLogger(__name__)

# The version of the files and of the hashes; other versions are removed.
FORMAT = "3"

# An arrangement without readers stays for so long, and holds the collection's history: a subscription that is
# started again, or a view that had an error, continues with it.
IDLE_SECONDS = 60.0

# What nobody has opened is removed this long after the start: views are opened within seconds of it, unless
# Spark or a source is not available.
UNUSED_SECONDS = 600.0

# What those of rows of one collection are called; others say how their rows are computed.
_SHARED = "shared"

# How often the background looks for merges, ...
TEND_SECONDS = 1.0
# ... releases the memory of the files, which would otherwise grow to all that was ever looked up, ...
REST_SECONDS = 5.0
# ... and brings what is on disk to the present: so much of each collection's history is kept for a restart.
KEEP_SECONDS = 30.0


@dataclass(slots=True)
class _Named:
    """The arrangements of one name, newest first: several if a reader needs times that others have passed."""

    about: dict[str, Any]
    lock: threading.Lock = field(default_factory=threading.Lock)
    contents: list[Contents] = field(default_factory=list[Contents])
    # While one is built: how far, and for whom.
    building: tuple[Filling, str] | None = None


@dataclass(frozen=True, slots=True)
class ArrangementFacts:
    """An arrangement as one of its readers uses it. `collections` are the ids of the shards that its rows
    come from; `key` is that of rows of one collection, None for computed ones. `upper` is None while it is
    built: then `read` of `known` updates were read, as far as that is known."""

    reader: str
    name: str
    collections: tuple[str, ...]
    key: tuple[str, ...] | None
    rows: int
    bytes: int
    upper: int | None
    known: int = 0
    read: int = 0


@dataclass(slots=True)
class _Found:
    """On disk since an earlier process, and not opened yet."""

    manifest: Manifest
    until: float
    # By the ids of the collections, as far as they are open.
    holds: dict[str, Hold] = field(default_factory=dict[str, Hold])

    def release(self) -> None:
        release(self.holds.values())


class Arrangements:
    """One per server. Thread-safe."""

    def __init__(self, folder: str, *, background: bool = True) -> None:
        """`folder` is a cache of this server alone: it may be deleted at any time. Without `background`,
        someone must call `tend` now and then."""
        self.root = os.path.abspath(folder)
        self.folder = os.path.join(self.root, FORMAT)
        self._lock = threading.Lock()
        self._named: dict[str, _Named] = {}
        # When (monotonic) the last reader left.
        self._idle: dict[Contents, float] = {}
        # Shards that were dropped since the start.
        self._dropped: set[str] = set()
        self._background = background
        self._closed = threading.Event()
        self._worker: threading.Thread | None = None
        self._rested = self._kept = time.monotonic()
        # How many were computed, rather than found on disk.
        self.built = 0
        # By their folders.
        self._found: dict[str, _Found] = {}
        self._look()

    def open(
        self,
        shard: Shard,
        snapshot: Callable[[int], Snapshot],
        columns: Sequence[str],
        key: Sequence[str],
        at: int,
        filling: Filling | None = None,
        reader: str = "",
    ) -> Arrangement:
        """The named columns of a shard's collection by those of `key` (some of them); a reader from `at` on.
        `snapshot` returns the collection at a time, and is called with `at - 1`. Blocks while the arrangement
        is built. `reader` is shown. Raises the errors that a SELECT at `at - 1` would raise, InvalidAsOf, and
        DiskFull."""
        whole = shard_schema(shard.desc)
        schema = _plain(whole.field(name) for name in (*columns, DIFF_COLUMN))
        filling = filling or Filling()
        about = _about([shard], schema, _SHARED, list(key))

        def reach(contents: Contents) -> bool:
            if at < contents.since:
                holds = _hold([shard], at - 1)
                return holds is not None and rewind(contents, shard, columns, key, at, holds)
            if at <= contents.upper:
                return True
            with snapshot(at - 1) as opened:
                return catch_up(contents, opened, columns, key)

        def rows() -> Iterator[Rows]:
            with snapshot(at - 1) as opened:
                yield from rows_of(opened, columns, key, filling)

        return self._open(about, schema, [shard], at, at, rows, reach, reader, filling)

    def private(
        self,
        name: str,
        schema: pa.Schema,
        at: int,
        rows: Callable[[], Iterable[Rows]],
        inputs: Sequence[Shard] = (),
        earliest: int | None = None,
        reader: str = "",
    ) -> Arrangement:
        """An arrangement of computed rows; `schema` is that of their columns. `inputs` are all collections
        that they are computed from, and `name` says how (with the format of whatever computes them); without
        inputs it is of no use to any other reader. `rows` returns the contents at `at - 1`, and may be called
        more than once. With `earliest`, the upper of the result may be any time in [earliest, at] that is on
        disk: the caller brings the changes from there."""
        full = _plain([*schema, pa.field(DIFF_COLUMN, pa.int64())])
        about = _about(inputs, full, name, [])
        first = at if earliest is None else earliest
        return self._open(about, full, inputs, first, at, rows, None, reader, Filling())

    def _open(
        self,
        about: dict[str, Any],
        schema: pa.Schema,
        inputs: Sequence[Shard],
        earliest: int,
        at: int,
        rows: Callable[[], Iterable[Rows]],
        reach: Callable[[Contents], bool] | None,
        name: str,
        filling: Filling,
    ) -> Arrangement:
        digest = hashlib.blake2b(repr(sorted(about.items())).encode(), digest_size=16).hexdigest()
        with self._lock:
            named = self._named.setdefault(digest, _Named(about))
        # Whoever comes while it is built waits for it, and shares it.
        with named.lock:
            for contents in self._candidates(named, digest, schema, about, inputs, at):
                reader = self._join(contents, earliest, at, reach, name)
                if reader is not None:
                    if contents not in named.contents:
                        named.contents.insert(0, contents)
                    return self._reader(named, contents, reader)
                if contents not in named.contents:
                    self._discard(contents)
            named.building = (filling, name)
            try:
                contents = self._build(digest, schema, about, inputs, at, rows)
            finally:
                named.building = None
            named.contents.insert(0, contents)
            reader = contents.join(at, name)
            if reader is None:
                raise Internal("an arrangement was lost as soon as it was built")
            return self._reader(named, contents, (reader, at))

    def _candidates(
        self,
        named: _Named,
        digest: str,
        schema: pa.Schema,
        about: dict[str, Any],
        inputs: Sequence[Shard],
        at: int,
    ) -> Iterator[Contents]:
        if not caches.ENABLED or not inputs:
            return
        yield from list(named.contents)
        parent = os.path.join(self.folder, digest)
        with self._lock:
            there = {
                f: found.manifest.upper for f, found in self._found.items() if os.path.dirname(f) == parent
            }
        # The nearest first.
        for folder in sorted(there, key=lambda f: abs(there[f] - at)):
            base = self._opened(folder, schema, about, inputs)
            holds = None if base is None or base.kept is None else _hold(inputs, base.kept - 1)
            with self._lock:
                found = self._found.pop(folder, None)
            if found is not None:
                found.release()
            if base is None or base.kept is None or holds is None:
                shutil.rmtree(folder, ignore_errors=True)
                continue
            yield Contents(base, base.kept, holds, alone=about["name"] == _SHARED)

    def _opened(
        self, folder: str, schema: pa.Schema, about: dict[str, Any], inputs: Sequence[Shard]
    ) -> Base | None:
        """None if it is not complete, or of another history: a backup may be restored beside the cache."""
        with self._lock:
            found = self._found.get(folder)
        if found is None or not all(_has(shard, found.manifest) for shard in inputs):
            return None
        base = Base.open(folder, schema, about)
        if base is not None:
            base.marks = _marks(inputs)
        return base

    def _join(
        self,
        contents: Contents,
        earliest: int,
        at: int,
        reach: Callable[[Contents], bool] | None,
        name: str,
    ) -> tuple[int, int] | None:
        """A reader at `at`, or at an earlier upper from `earliest` on, and its time."""
        if (reach is not None and not reach(contents)) or contents.upper < earliest:
            return None
        begin = min(at, contents.upper)
        reader = contents.join(begin, name)
        return None if reader is None else (reader, begin)

    def _build(
        self,
        digest: str,
        schema: pa.Schema,
        about: dict[str, Any],
        inputs: Sequence[Shard],
        at: int,
        rows: Callable[[], Iterable[Rows]],
    ) -> Contents:
        base = Base(os.path.join(self.folder, digest, uuid.uuid4().hex), schema, about)
        base.marks = _marks(inputs)
        holds = [shard.hold(at - 1) for shard in inputs]
        try:
            fill(base, rows(), at)
        except BaseException as error:
            release(holds)
            if isinstance(error, TidemillError):
                shutil.rmtree(base.folder, ignore_errors=True)
            raise
        with self._lock:
            self.built += 1
        # Without inputs no later process uses it.
        return Contents(base, at, holds, alone=about["name"] == _SHARED or not inputs)

    def _reader(self, named: _Named, contents: Contents, reader: tuple[int, int]) -> Arrangement:
        number, at = reader
        with self._lock:
            self._idle.pop(contents, None)
            self._start()

        def leave() -> None:
            contents.leave(number)
            with self._lock:
                if not contents.readers:
                    dropped = self._dropped.intersection(contents.inputs)
                    self._idle[contents] = -IDLE_SECONDS if dropped else time.monotonic()

        return Arrangement(contents, number, at, leave)

    def hold(self, shard: Shard) -> None:
        """Hold the history of a collection that is needed to use what an earlier process has left on disk.
        Views call it before they hold their inputs at their own, later time."""
        with self._lock:
            for found in self._found.values():
                if shard.id in found.manifest.about["inputs"] and shard.id not in found.holds:
                    try:
                        found.holds[shard.id] = shard.hold(found.manifest.upper - 1)
                    except InvalidAsOf:
                        pass  # it will be built again

    def listed(self) -> list[ArrangementFacts]:
        """What is read, and what is built."""
        with self._lock:
            named = list(self._named.items())
        found: list[ArrangementFacts] = []
        for digest, each in named:
            about = each.about
            key = tuple(about["key"]) if about["name"] == _SHARED else None
            collections = tuple(about["inputs"])
            for contents in list(each.contents):
                of = (digest, collections, key, contents.rows, contents.bytes, contents.upper)
                found += [ArrangementFacts(reader, *of) for reader in list(contents.names.values())]
            building = each.building
            if building is not None:
                filling, reader = building
                found.append(
                    ArrangementFacts(
                        reader, digest, collections, key, 0, 0, None, filling.known, filling.read
                    )
                )
        return found

    # -- the background

    def _start(self) -> None:
        if self._background and self._worker is None and not self._closed.is_set():
            self._worker = threading.Thread(target=self._tend, name="arrangements", daemon=True)
            self._worker.start()

    def _tend(self) -> None:
        while not self._closed.wait(TEND_SECONDS):
            try:
                self.tend()
            except Exception:
                log.exception("arrangements could not be tended")

    def tend(self, *, keep: bool = False) -> None:
        """One round of the background's work; `keep`: bring all that is on disk to the present."""
        now = time.monotonic()
        contents = self._all()
        for each in contents:
            each.merge()
        keep = keep or now - self._kept >= KEEP_SECONDS
        if keep:
            self._kept = now
        for group in together(contents):
            if keep or (not group[0].alone and sum(each.unfolded for each in group) >= FOLD_ROWS):
                _keep(group)
        for each in contents:
            each.look()
        if now - self._rested >= REST_SECONDS:
            self._rested = now
            for each in contents:
                each.rest()
        self._sweep(now)

    def _all(self) -> list[Contents]:
        with self._lock:
            named = list(self._named.values())
        return [contents for each in named for contents in each.contents]

    def forget(self, shard_ids: Iterable[str]) -> None:
        """The collections were dropped: what nobody reads goes at once, and the rest with its readers."""
        with self._lock:
            self._dropped.update(shard_ids)
            for contents in self._idle:
                if self._dropped.intersection(contents.inputs):
                    self._idle[contents] = -IDLE_SECONDS

    def _sweep(self, now: float) -> None:
        """Remove what nobody reads."""
        with self._lock:
            late = [c for c, since in self._idle.items() if now - since >= IDLE_SECONDS or not caches.ENABLED]
            named = list(self._named.values()) if late else []
            unused = [
                folder
                for folder, found in self._found.items()
                if now >= found.until or self._dropped.intersection(found.manifest.about["inputs"])
            ]
            for folder in unused:
                self._found.pop(folder).release()
        for each in named:
            # Whoever builds or opens one now looks at it first.
            if not each.lock.acquire(blocking=False):
                continue
            try:
                for contents in [c for c in late if c in each.contents and not c.readers]:
                    each.contents.remove(contents)
                    with self._lock:
                        self._idle.pop(contents, None)
                    self._discard(contents)
            finally:
                each.lock.release()
        for folder in unused:
            shutil.rmtree(folder, ignore_errors=True)

    def _discard(self, contents: Contents) -> None:
        contents.close()
        shutil.rmtree(contents.folder, ignore_errors=True)

    def _look(self) -> None:
        """What earlier processes have left; removes what cannot be used."""
        until = time.monotonic() + UNUSED_SECONDS
        for version in _entries(self.root):
            if version != self.folder or not caches.ENABLED:
                shutil.rmtree(version, ignore_errors=True)
        for folder in [folder for digest in _entries(self.folder) for folder in _entries(digest)]:
            manifest = read_manifest(folder)
            if manifest is None:
                shutil.rmtree(folder, ignore_errors=True)
            else:
                self._found[folder] = _Found(manifest, until)
        if self._found:
            self._start()

    def close(self) -> None:
        """What is there stays on disk for the next process. Readers must have stopped."""
        self._closed.set()
        if self._worker is not None:
            self._worker.join()
        for group in together(self._all()):
            _keep(group)
            for contents in group:
                contents.close()


@dataclass(frozen=True, slots=True)
class ArrangementsOf:
    """All arrangements, for one reader, which is shown."""

    all: Arrangements
    reader: str

    def open(
        self,
        shard: Shard,
        snapshot: Callable[[int], Snapshot],
        columns: Sequence[str],
        key: Sequence[str],
        at: int,
    ) -> Arrangement:
        """See `Arrangements.open`."""
        return self.all.open(shard, snapshot, columns, key, at, reader=self.reader)

    def private(
        self,
        name: str,
        schema: pa.Schema,
        at: int,
        rows: Callable[[], Iterable[Rows]],
        inputs: Sequence[Shard] = (),
        earliest: int | None = None,
    ) -> Arrangement:
        """See `Arrangements.private`."""
        return self.all.private(name, schema, at, rows, inputs, earliest, self.reader)

    def hold(self, shard: Shard) -> None:
        self.all.hold(shard)


def _keep(group: Sequence[Contents]) -> None:
    """Bring what is on disk to the present. Rows that are computed stand a little earlier: the view may not
    have committed yet what it has just been told, and they cannot go back."""
    to = min(each.needed if each.alone else each.passed for each in group)
    for each in group:
        each.fold(to)


def together(contents: Iterable[Contents]) -> list[list[Contents]]:
    """Computed ones with a reader in common (that has a name), which are kept at one time: a later process
    can only use those of a query that are. The others are each alone."""
    groups: list[tuple[set[str], list[Contents]]] = []
    for each in contents:
        names = set[str]() if each.alone else set(each.names.values()) - {""}
        joined = [group for group in groups if not names.isdisjoint(group[0])]
        groups = [group for group in groups if names.isdisjoint(group[0])]
        members = [member for _, group in joined for member in group]
        groups.append((names.union(*(group[0] for group in joined)), [*members, each]))
    return [group for _, group in groups]


def _about(inputs: Sequence[Shard], schema: pa.Schema, name: str, key: list[str]) -> dict[str, Any]:
    """What the rows of an arrangement are. (As it is read back from JSON.)"""
    return {
        "inputs": [shard.id for shard in inputs],
        "tables": [shard.state.metadata.table_id for shard in inputs],
        "schema": [[f.name, str(f.type)] for f in schema],
        "name": name,
        "key": key,
    }


def _marks(inputs: Sequence[Shard]) -> Callable[[], dict[str, str | None]]:
    """The part with the latest time of each. Parts have unique names."""

    def latest(shard: Shard) -> str | None:
        return max(((part.max_time, part.path) for part in shard.parts), default=(0, None))[1]

    return lambda: {shard.id: latest(shard) for shard in inputs}


def _has(shard: Shard, kept: Manifest) -> bool:
    """Whether the part is there, or was until a short time ago; without one, whether nothing was there."""
    mark = kept.marks.get(shard.id)
    with shard.changed:
        if mark is None:
            return all(part.min_time >= kept.upper for part in shard.parts)
        return mark in shard.state.parts or mark in shard.state.removed


def _plain(fields: Iterable[pa.Field]) -> pa.Schema:
    """Rows of all origins have this one schema."""
    return pa.schema([pa.field(f.name, f.type) for f in fields])


def _hold(inputs: Sequence[Shard], at: int) -> list[Hold] | None:
    """Holds on the inputs at a time; None if one of them no longer has it."""
    holds: list[Hold] = []
    try:
        for shard in inputs:
            holds.append(shard.hold(at))
    except InvalidAsOf:
        release(holds)
        return None
    return holds


def _entries(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
