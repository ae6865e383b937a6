"""What a statement that writes rows needs besides the rows. One per session; plans of writes keep it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

from tidemill.engine.dml.write_locks import CLAIM_AFTER, MAX_TRIES, WriteLocks
from tidemill.engine.read.reader import Reader
from tidemill.engine.session.system_parameters import SystemParameters
from tidemill.engine.session.transactions import Transactions
from tidemill.errors import SerializationFailure
from tidemill.persist.shard import ShardId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StatementWriter:
    reader: Reader
    locks: WriteLocks
    parameters: SystemParameters

    @property
    def transactions(self) -> Transactions:
        return self.reader.transactions

    @property
    def limit(self) -> int:
        """The bytes that one transaction may write."""
        return self.parameters.number("max_transaction_size")

    async def in_turn(self, shards: Iterable[ShardId], attempt: Callable[[bool], Awaitable[T]]) -> T:
        """Runs `attempt` until it commits. An attempt raises SerializationFailure if one of `shards` was
        written meanwhile. Its argument says whether the shards are claimed."""
        interrupt = self.reader.execution.interrupt
        # In one order everywhere, or two statements would wait for each other.
        ordered = sorted(set(shards))
        async with AsyncExitStack() as held:
            for shard_id in ordered:
                await interrupt.guard(held.enter_async_context(self.locks.lock(shard_id)))
            for number in range(MAX_TRIES):
                if number == CLAIM_AFTER:
                    held.enter_context(self.locks.claim(ordered))
                try:
                    return await attempt(number >= CLAIM_AFTER)
                except SerializationFailure:
                    interrupt.check()
        raise SerializationFailure(
            "could not serialize access due to concurrent update",
            detail=f"The statement was tried {MAX_TRIES} times.",
            hint="Run it again.",
        )
