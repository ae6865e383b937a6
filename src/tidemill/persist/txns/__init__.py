"""Transactions over several shards, group-committed through the `txns` shard of the environment.

Callers use `Txns` (module `txns`). `request` checks and merges the requested writes, `record` defines the
rows of the txns shard, and `pending` applies committed parts to their data shards.

Promises: a transaction is durable as a whole or not at all. Every reader at or after its time sees it. A
transaction whose reads have changed is refused. A commit that may have happened is never reported as failed.
"""

from tidemill.persist.txns.txns import Txns

__all__ = ["Txns"]
