"""Shards: the durable form of collections. Each shard is one Delta table.

Called by `catalog`, `query`, `engine` and the sources. Start at `shard.Shard`.

Promises: only a compare-and-append under the current epoch advances the upper of a shard, and the loser of a
race gets an error (I2). The contents of a shard at a time in [since, upper) never change (I3). The effects of
a call that returned survive `kill -9` and a power cut (I4).
"""
