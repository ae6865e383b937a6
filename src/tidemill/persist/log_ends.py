"""Log-end check of the clock and the txns shard, on which all other shards depend.

Called by `Environment.open` before it writes anything. All other shards are checked against their marks in
txns (`txns.marks`); these two are checked against each other. The rows of the clock hold the version that the
log of the txns shard had reached, written when the last server closed the directory and once a minute while
it ran. The opposite direction needs no record. No time is used before it is leased, and no shard is fenced
before the clock. A txns shard that is ahead of the clock in time or epoch therefore proves that entries of
the clock are missing.

Limit: after a crash, the loss of txns entries of the last minute is not detected. Their data reaches its
shard a moment later, so such a loss affects only commits of the last moments before the crash.
"""

from __future__ import annotations

from tidemill.errors import DataCorrupted
from tidemill.persist.blob import Blobs
from tidemill.persist.lease import CLOCK_SHARD, ClockShard
from tidemill.persist.log import ShardMissing, check_reached, entry_path, list_log
from tidemill.persist.settle import upper_of
from tidemill.persist.shard import Shard
from tidemill.persist.txns.record import TXNS_SHARD
from tidemill.time.shown import show_time


def check_system(blobs: Blobs, clock: Shard) -> None:
    """Raises DataCorrupted, naming the first missing entry. Another server may be writing meanwhile, and each
    check reads what must be ahead after what must be behind."""
    holder = ClockShard(clock, 0).holder()
    expected = None if holder is None else holder.txns
    try:
        txns = Shard.open(blobs, TXNS_SHARD, epoch=None)
    except ShardMissing:
        check_reached(TXNS_SHARD, -1, expected)
        return
    check_reached(TXNS_SHARD, txns.version, expected)
    clock.refresh()
    if upper_of(clock) < upper_of(txns) or clock.epoch < txns.epoch:
        raise DataCorrupted(
            f'log entry "{entry_path(CLOCK_SHARD, clock.version + 1)}" is missing',
            detail=f"The clock ends at {show_time(upper_of(clock))}, epoch {clock.epoch}; "
            f"transactions were committed up to {show_time(upper_of(txns))}, epoch {txns.epoch}.",
            hint="The data directory is damaged: restore the file, or the whole directory from a backup.",
        )


def check_clock_gone(blobs: Blobs) -> None:
    """There was no clock shard a moment ago. It is the first of a new directory, so beside txns it must be
    there by now: else it is gone."""
    if not list_log(blobs, TXNS_SHARD).empty and list_log(blobs, CLOCK_SHARD).empty:
        raise DataCorrupted(
            f'log entry "{entry_path(CLOCK_SHARD, 0)}" is missing',
            detail="There are transactions, but the clock shard is not there.",
            hint="The data directory is damaged: restore the file, or the whole directory from a backup.",
        )
