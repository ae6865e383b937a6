"""Shards: the durable form of a collection, one Delta table each, and the only way anything gets durable.

Called by `catalog`, `query`, `engine` and, later, the sources. Promises: only a compare-and-append under the
current epoch moves a shard's upper, and the loser of a race learns that it lost (I2); what a shard holds at a
time in [since, upper) never changes (I3); what a call returned from survives `kill -9` and a power cut (I4).
Start at `shard.Shard`.
"""
