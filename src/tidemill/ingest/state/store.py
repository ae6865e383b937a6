"""The folder of cached upsert states on one machine: lookup, background merges, cleanup.

    <folder>/<boot>/<shard>.<shape>.<format>/<bucket>/<upper>.state   a manifest
                                                     /<label>-<size>-<checksum>.run
                                                     /<digest>.merged   a merge that a later commit may use
                                                     /<digest>.claim    a merge in progress

Files are not synced to the disk. Files that `kill -9` leaves are complete; after a power cut the boot is
different, and its folder starts empty. Several processes share the folder without locks: names never stand
for two contents, and a process that misses a file reads the collection. Only truncating a file in place is
not handled.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import re
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from tidemill import failpoints
from tidemill.envelope.keys import KeyShape
from tidemill.ingest.exchange import BUCKETS
from tidemill.ingest.state.bucket import BucketState, write_merged
from tidemill.ingest.state.manifest import Manifest, read_manifest, upper_of
from tidemill.ingest.state.run import StateRun
from tidemill.ingest.state.sweep import sweep
from tidemill.runs.merge import merged_name
from tidemill.runs.run import RunFacts, open_run, remove
from tidemill.runs.small_file import get_small, put_small

log = logging.getLogger(__name__)

FP_MERGED = failpoints.register("ingest.state.merged", "the background merged runs, nobody knows yet")

# The version of the file format and of the distribution of rows over buckets. Other versions ignore the
# files.
FORMAT = f"1-{BUCKETS}"

# Bytes of all states in the folder. A row of six columns takes about 85 bytes with its hash, and the runs
# that a merge replaces stay for a tick: enough for about 150 million keys. Beyond this, the least recently
# used buckets are removed.
STATE_BYTES_LIMIT = 20 << 30

# How often a process checks the folder for its limit and for leftovers of crashes. The walk takes some
# milliseconds, in the background.
SWEEP_SECONDS = 60.0

# Buckets whose state stays open in a process: 128 collections. A bucket uses a few of the 65,530 mappings
# that Linux allows, and up to 64 kB of memory.
OPEN_BUCKETS = 1024

# A claim older than this belongs to a process that died. A merge of 1.5 million rows took a quarter of a
# second of a core, so this is enough for a hundred times as many rows on a busy machine.
CLAIM_SECONDS = 120.0

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,80}")


class StateStore:
    """See the module. One per process and folder (`shared`); thread-safe."""

    def __init__(self, folder: str, limit: int = STATE_BYTES_LIMIT) -> None:
        self.root = os.path.abspath(folder)
        self.folder = os.path.join(self.root, _boot())
        self.limit = limit
        # By the folder of a bucket: the state that was opened or committed last, least recently used first. A
        # verified state stays verified, because files never change.
        self._open: OrderedDict[str, tuple[Manifest, list[StateRun]]] = OrderedDict()
        self._lock = threading.Lock()
        # Collections whose states were removed (`discard`), and none opened since.
        self._discarded: set[str] = set()
        # Merges in progress in this process.
        self._merging: set[str] = set()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        # The first sweep runs with the first commit. It also removes folders of earlier boots.
        self._swept = -SWEEP_SECONDS

    def open(self, shard: str, bucket: int, shape: KeyShape, upper: int) -> BucketState | None:
        """The newest complete state at or before `upper`, which the caller advances; None if there is none.
        `shard` must be unique among all users of the folder: two data directories may have equal shard
        ids."""
        folder = self._place(shard, bucket, shape)
        state = self._at(folder, shape, upper)
        if state is not None:
            return state
        try:
            uppers = [u for name in os.listdir(folder) if (u := upper_of(name)) is not None and u < upper]
        except OSError:
            return None
        for earlier in sorted(uppers, reverse=True):
            state = self._at(folder, shape, earlier)
            if state is not None:
                return state
        return None

    def _at(self, folder: str, shape: KeyShape, upper: int) -> BucketState | None:
        with self._lock:
            known = self._open.get(folder)
        if known is not None and known[0].upper == upper:
            manifest, runs = known
            return BucketState(self, folder, shape, upper, manifest, runs)
        manifest = read_manifest(folder, upper, shape.kept_schema)
        if manifest is None:
            return None
        opened = {} if known is None else {run.facts: run for run in known[1]}
        runs: list[StateRun] = []
        for facts in manifest.runs:
            run = opened.get(facts) or open_run(folder, facts, shape.kept_schema, StateRun)
            if run is None:
                return None
            runs.append(run)
        self._remember(folder, manifest, runs)
        return BucketState(self, folder, shape, upper, manifest, runs)

    def empty(self, shard: str, bucket: int, shape: KeyShape, upper: int) -> BucketState:
        """A state without rows, to be filled. Nothing is written."""
        return BucketState(self, self._place(shard, bucket, shape), shape, upper, None, [])

    def discard(self, shard: str) -> None:
        """Remove what is kept of a collection that no longer needs a state. Looks only once, until something
        is committed again."""
        if shard in self._discarded:
            return
        self._discarded.add(shard)
        for place in self._places(shard):
            with self._lock:
                for folder in [f for f in self._open if f.startswith(place + os.sep)]:
                    del self._open[folder]
            shutil.rmtree(place, ignore_errors=True)

    def rewind(self, shard: str, upper: int) -> None:
        """Remove the states that are later than a collection at the start of its server: a tick that was not
        completed has left them, or the collection was put back to an earlier moment, and they are of a
        history that is lost."""
        for place in self._places(shard):
            for bucket in os.scandir(place):
                if bucket.is_dir():
                    for name in os.listdir(bucket.path):
                        found = upper_of(name)
                        if found is not None and found > upper:
                            remove(os.path.join(bucket.path, name))

    def _places(self, shard: str) -> list[str]:
        """The folders of a collection, of all shapes and formats."""
        if not os.path.isdir(self.folder):
            return []
        return [
            e.path for e in os.scandir(self.folder) if e.name.startswith(f"{_name(shard)}.") and e.is_dir()
        ]

    def _place(self, shard: str, bucket: int, shape: KeyShape) -> str:
        self._discarded.discard(shard)
        return os.path.join(self.folder, f"{_name(shard)}.{shape.fingerprint}.{FORMAT}", str(bucket))

    def _remember(self, folder: str, manifest: Manifest, runs: list[StateRun]) -> None:
        with self._lock:
            self._open[folder] = (manifest, runs)
            self._open.move_to_end(folder)
            while len(self._open) > OPEN_BUCKETS:
                self._open.popitem(last=False)

    def committed(self, folder: str, manifest: Manifest, runs: list[StateRun]) -> None:
        self._remember(folder, manifest, runs)
        now = time.monotonic()
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            self._later(self.sweep)

    def sweep(self) -> None:
        """Remove obsolete files, and buckets over the limit."""
        for folder in sweep(self.root, self.folder, self.limit):
            with self._lock:
                self._open.pop(folder, None)

    # Merging in the background

    def adopt(self, folder: str, shape: KeyShape, runs: list[StateRun]) -> list[StateRun] | None:
        found = get_small(folder, f"{merged_name(runs)}.merged")
        if found is None:
            return None
        result = [open_run(folder, RunFacts(*facts), shape.kept_schema, StateRun) for facts in found[0]]
        return None if None in result else [run for run in result if run is not None]

    def merge_later(self, folder: str, shape: KeyShape, runs: list[StateRun], *, oldest: bool) -> None:
        name = os.path.join(folder, merged_name(runs))
        with self._lock:
            if name in self._merging:
                return
            self._merging.add(name)

        def work() -> None:
            try:
                self._merge(folder, name, shape, runs, oldest=oldest)
            finally:
                with self._lock:
                    self._merging.discard(name)

        self._later(work)

    def _merge(self, folder: str, name: str, shape: KeyShape, runs: list[StateRun], *, oldest: bool) -> None:
        if os.path.exists(f"{name}.merged") or not _claim(f"{name}.claim"):
            return
        try:
            run = write_merged(folder, "merged", shape, runs, oldest=oldest)
            failpoints.hit(FP_MERGED)
            facts = None if run is None else run.facts
            told = [] if facts is None else [[facts.name, facts.rows, facts.bytes, facts.crc]]
            put_small(folder, f"{os.path.basename(name)}.merged", told)
        finally:
            remove(f"{name}.claim")

    def settle(self) -> None:
        """Wait until the background has finished all queued work."""
        done = threading.Event()
        self._later(done.set)
        done.wait()

    def _later(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._worker is None or not self._worker.is_alive():
                # A daemon thread: a worker process must not outlive its task because of a cache.
                self._worker = threading.Thread(target=self._run, name="tidemill-state", daemon=True)
                self._worker.start()
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:
                # The cache works without this merge; a commit that finds too many runs merges them itself.
                log.warning("upsert state: %s", error)

    def close(self) -> None:
        """Stop the background after its current work."""
        self._work.put(None)


def _name(shard: str) -> str:
    """The collection's, as a part of a folder's name."""
    if _PLAIN.fullmatch(shard) is not None:
        return shard
    return hashlib.blake2b(shard.encode(), digest_size=16).hexdigest()


def _claim(path: str) -> bool:
    for _ in range(2):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            return True
        except FileExistsError:
            try:
                if time.time() - os.stat(path).st_mtime < CLAIM_SECONDS:
                    return False
            except FileNotFoundError:
                continue
            remove(path)
        except OSError:
            return False
    return False


def _boot() -> str:
    """A value that changes when the machine is restarted."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"boot-{file.read().strip()}"
    except OSError:
        # Not Linux: the time of the boot, rounded because the clock is adjusted.
        return f"boot-{round((time.time() - time.monotonic()) / 600)}"


_shared: dict[tuple[int, str], StateStore] = {}
_shared_lock = threading.Lock()


def shared(folder: str, limit: int = STATE_BYTES_LIMIT) -> StateStore:
    """This process's store for a folder. One per process, because threads do not survive a fork."""
    with _shared_lock:
        key = (os.getpid(), os.path.abspath(folder))
        store = _shared.get(key)
        if store is None:
            # Stores whose folders are gone; their mappings would keep the disk space of removed files.
            for gone in [k for k in _shared if not os.path.isdir(k[1])]:
                _shared.pop(gone).close()
            store = _shared[key] = StateStore(folder, limit)
        return store
