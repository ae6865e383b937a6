"""How far the readers of durable subscriptions have acknowledged: one shard for all of them.

An acknowledgement is durable when its future has a result. It does not change the catalog: a thread takes all
that have come since its last commit and writes them with one append (group commit), so their number per
second does not depend on the store's latency. A position never goes back, whatever the order in which
acknowledgements come; only `begin` sets one to any time.

The shard has one row per subscription that was ever acknowledged: its key and its position as JSON.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass

import pyarrow as pa

from tidemill import failpoints
from tidemill.catalog.sidecars import FACTS_DESC
from tidemill.errors import DataCorrupted, LimitExceeded, Unavailable
from tidemill.persist.environment import Environment
from tidemill.persist.log import ShardMissing
from tidemill.persist.outcome import Fenced
from tidemill.persist.settle import append_settled, upper_of
from tidemill.persist.shard import Shard
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN

log = logging.getLogger(__name__)

FP_ACKNOWLEDGED = failpoints.register(
    "subscriptions.acknowledged", "a position is durable, its reader does not know yet"
)

SHARD = "subscriptions"
# Acknowledgements that may wait for one commit: each is a client that waits for its answer.
MAX_WAITING = 100_000


@dataclass(frozen=True, slots=True)
class Position:
    """Every change before `frontier` is acknowledged. `snapshot`: nothing is, not even the contents at
    `frontier`, which come first. `lost`: why changes after it are no longer kept."""

    frontier: int
    snapshot: bool = False
    lost: str | None = None

    @property
    def held(self) -> int:
        """The time that must stay readable."""
        return self.frontier if self.snapshot else self.frontier - 1

    def acknowledged(self, frontier: int) -> Position:
        """After an acknowledgement of everything before `frontier`; the same if it had that before."""
        return self if self.lost is not None or frontier <= self.frontier else Position(frontier)


@dataclass(frozen=True, slots=True)
class _Request:
    """`position` None: the key is forgotten. `anew`: whatever there was before."""

    key: str
    position: Position | None
    anew: bool
    done: Future[Position | None]


class Positions:
    """Thread-safe."""

    def __init__(self, environment: Environment) -> None:
        """The shard is made with the first position."""
        self._environment = environment
        self._lock = threading.Condition()
        self._waiting: list[_Request] = []
        self._stopping = False
        self._shard: Shard | None = None
        self._known: dict[str, Position] = {}
        # As in the shard, where a row is retracted by value.
        self._rows: dict[str, str] = {}
        self.commits = 0
        self.acknowledgements = 0
        try:
            self._shard = environment.open_shard(SHARD)
            self._load(self._shard)
        except ShardMissing:
            pass
        self._thread = threading.Thread(target=self._run, name="acknowledgements", daemon=True)
        self._thread.start()

    def find(self, key: str) -> Position | None:
        """The durable position; None if nothing was ever acknowledged."""
        with self._lock:
            return self._known.get(key)

    def known(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._known)

    def acknowledge(self, key: str, frontier: int, initial: Position) -> Future[Position | None]:
        """Everything before `frontier` is done with. `initial` is the position of a key that has none."""
        with self._lock:
            known = self._known.get(key, initial)
            later = known.acknowledged(frontier)
            if later is known:
                done: Future[Position | None] = Future()
                done.set_result(known)
                return done
            self.acknowledgements += 1
        return self._ask(_Request(key, later, False, Future()))

    def begin(self, key: str, position: Position) -> Future[Position | None]:
        """Sets the position, also to an earlier one, or to one that is lost."""
        return self._ask(_Request(key, position, True, Future()))

    def forget(self, key: str) -> Future[Position | None]:
        return self._ask(_Request(key, None, True, Future()))

    def compacted(self) -> None:
        """Lets the shard's history go: only the last positions count. Called about once a second."""
        shard = self._shard
        if shard is not None:
            shard.downgrade_since(upper_of(shard) - 1)

    def stop(self) -> None:
        """What waits is written first."""
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        self._thread.join()

    # -- the shard

    def _load(self, shard: Shard) -> None:
        upper = upper_of(shard)
        if not upper:
            return
        with shard.snapshot(upper - 1, readable=upper) as snapshot:
            table = snapshot.read()
        columns = (table.column(n).to_pylist() for n in ("item", "value", DIFF_COLUMN))
        for key, value, diff in zip(*columns, strict=True):
            if diff != 1 or key in self._rows:
                raise DataCorrupted(f"the position of subscription {key} is there other than once")
            self._rows[key] = value
            self._known[key] = Position(**json.loads(value))

    def _ask(self, request: _Request) -> Future[Position | None]:
        with self._lock:
            if self._stopping:
                raise Unavailable("the server is stopping")
            if len(self._waiting) >= MAX_WAITING:
                raise LimitExceeded("too many acknowledgements wait to be written", sqlstate="53000")
            self._waiting.append(request)
            self._lock.notify_all()
        return request.done

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting or self._stopping)
                requests, self._waiting = self._waiting, []
            if not requests:
                return
            after = dict(self._known)
            for request in requests:
                self._apply(after, request)
            try:
                self._write(after)
            except BaseException as e:
                if isinstance(e, Fenced):
                    self._environment.oracle.lose(e)
                for request in requests:
                    request.done.set_exception(e)
                continue
            with self._lock:
                self._known = after
            for request in requests:
                request.done.set_result(after.get(request.key))

    @staticmethod
    def _apply(after: dict[str, Position], request: _Request) -> None:
        if request.position is None:
            after.pop(request.key, None)
        elif request.anew or request.key not in after:
            after[request.key] = request.position
        else:
            after[request.key] = after[request.key].acknowledged(request.position.frontier)

    def _write(self, after: Mapping[str, Position]) -> None:
        """Makes the positions durable. Raises when surely nothing happened."""
        rows = {key: json.dumps(asdict(p), sort_keys=True) for key, p in after.items()}
        gone, come = self._rows.items() - rows.items(), rows.items() - self._rows.items()
        if not gone and not come:
            return
        if self._shard is None:
            self._shard = self._environment.create_shard(SHARD, FACTS_DESC)
        shard = self._shard
        at = upper_of(shard)
        updates = [*((k, v, -1) for k, v in gone), *((k, v, 1) for k, v in come)]
        table = pa.table(
            {
                "item": pa.array([k for k, _, _ in updates], pa.string()),
                "value": pa.array([v for _, v, _ in updates], pa.string()),
                TIME_COLUMN: pa.array([at] * len(updates), pa.int64()),
                DIFF_COLUMN: pa.array([d for _, _, d in updates], pa.int64()),
            }
        )
        part = shard.write_part(table, job=f"subscriptions-e{self._environment.epoch}")
        append_settled(shard, part, at, at + 1, after_put=FP_ACKNOWLEDGED)
        self._rows = rows
        self.commits += 1
