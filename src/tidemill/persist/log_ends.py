"""Whether the two shards that everything hangs on, the clock's and txns, still have the ends of their logs.

Asked by `Environment.open` before it writes anything. The others are checked against their marks in txns
(`txns.marks`); these two vouch for each other. The clock's rows name the version that the txns shard's log
had reached (when the last server closed the directory, and once a minute while it lived). The other way round
no note is needed: no time is used before it is leased and no shard is fenced before the clock, so a txns
shard that is ahead of the clock in time or epoch tells that entries of the clock are missing.

What remains unseen, after a crash only: the loss of txns entries of the last minute. What they committed is
in its data shard a moment later, so of the data, the loss can only take what was committed in the last
moments before the crash.
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
