"""Transactions over several shards, group-committed through the environment's `txns` shard.

`Txns` (module `txns`) is what callers use; `request` checks and merges what they want written, `record` is
the form of the txns shard's rows, `pending` brings committed parts into their data shards. Promises: a
transaction is durable whole or not at all; it is visible to every reader at or after its time; one whose
reads have changed is refused; nothing that may have happened is ever reported as failed.
"""

from tidemill.persist.txns.txns import Txns

__all__ = ["Txns"]
