"""Clock shard: the durable end of leased time, and the holder of the data directory.

Called by `environment`; the oracle uses it as its `LeaseStore`. The `upper` of the shard is the end of the
lease: each renewal is an append without parts. Its rows, one valid at any time, name the holder for people,
and for a second server that checks whether the first is alive. Its properties hold the format of the
directory.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import pyarrow as pa

from tidemill import failpoints
from tidemill.errors import DataCorrupted
from tidemill.persist.outcome import CommitUnknown, Fenced, UpperMismatch
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.time.oracle import LeaseLost
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.model import INT8, TEXT, Column, RelationDesc

FP_BEFORE_PUT = failpoints.register("lease.before_put", "time is about to be leased")
FP_PUT = failpoints.register("lease.put", "a lease is durable, nobody uses it yet")

CLOCK_SHARD = "clock"
CLOCK_DESC = RelationDesc((Column("epoch", INT8, nullable=False), Column("holder", TEXT, nullable=False)))


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the directory. Times in milliseconds since the Unix epoch, by the holder's wall clock."""

    epoch: int = 0
    host: str = ""
    pid: int = 0
    # Addresses of its listeners: {"SQL": "127.0.0.1:6875"}; () before it has ports.
    addresses: tuple[tuple[str, str], ...] = ()
    started: int = 0
    # When it closed the directory in order; None while it holds it, or after it crashed.
    released: int | None = None
    # The version that the log of the txns shard had durably reached; None in format 1. The txns shard does
    # this for the others (`txns.marks`).
    txns: int | None = None

    @staticmethod
    def this_process(addresses: dict[str, str] | None = None) -> Holder:
        return Holder(host=socket.gethostname(), pid=os.getpid(), addresses=tuple((addresses or {}).items()))

    def encode(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @staticmethod
    def decode(text: str) -> Holder:
        try:
            body = cast("dict[str, Any]", json.loads(text))
            holder = Holder(**body)
            return replace(holder, addresses=tuple((a, b) for a, b in holder.addresses))
        except (ValueError, TypeError) as e:
            raise DataCorrupted("the clock shard's holder cannot be read", detail=f"{text[:200]}: {e}") from e


class ClockShard:
    """The lease store of one environment. Not thread-safe but for `leased`: the oracle serialises
    extensions."""

    def __init__(self, shard: Shard, epoch: int) -> None:
        self.shard = shard
        self._job = f"clock-e{epoch}"

    @property
    def leased(self) -> int:
        return upper_of(self.shard)

    def extend(self, until: int) -> None:
        failpoints.hit(FP_BEFORE_PUT)
        self._append([], until)
        failpoints.hit(FP_PUT)

    def holders(self) -> list[tuple[Holder, int]]:
        """The rows that count now, with their multiplicity: one, unless something is wrong."""
        upper = self.leased
        if upper == 0:
            return []
        with self.shard.snapshot(upper - 1) as snapshot:
            table = snapshot.read()
        texts, diffs = table.column("holder").to_pylist(), table.column(DIFF_COLUMN).to_pylist()
        return [(Holder.decode(t), d) for t, d in zip(texts, diffs, strict=True)]

    def holder(self) -> Holder | None:
        """The latest holder."""
        return max((h for h, _ in self.holders()), key=lambda h: h.epoch, default=None)

    def record(self, holder: Holder) -> None:
        """Record `holder` as the current one, and remove all earlier rows. Moves the end of the lease by one
        millisecond."""
        old = self.holders()
        at = self.leased
        rows = [(h, -d) for h, d in old] + [(holder, 1)]
        table = pa.table(
            {
                "epoch": pa.array([h.epoch for h, _ in rows], pa.int64()),
                "holder": pa.array([h.encode() for h, _ in rows], pa.string()),
                TIME_COLUMN: pa.array([at] * len(rows), pa.int64()),
                DIFF_COLUMN: pa.array([d for _, d in rows], pa.int64()),
            }
        )
        self._append([self.shard.write_part(table, job=self._job)], at + 1)

    def _append(self, parts: list[Any], until: int) -> None:
        """Advance the upper to `until` at least. An append with an unknown outcome may appear later: then the
        upper has already advanced, and only the rest is appended."""
        while True:
            lower = self.leased
            if not parts and lower >= until:
                return
            try:
                self.shard.compare_and_append(parts, lower, max(until, lower + 1 if parts else until))
                return
            except Fenced as e:
                raise LeaseLost(e.primary, detail=e.detail, hint=e.hint) from e
            except UpperMismatch:
                if parts:
                    raise
            except CommitUnknown:
                self.shard.refresh()
                if self.leased < until:
                    raise
                return
