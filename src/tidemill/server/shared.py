"""Bytes that many clients are sent: each block of a batch is encoded once for all of them.

Subscriptions that want the same are given one and the same batch (`engine.api.Rows.shared`). Whoever sends it
asks `Encodings` for its blocks; the first to ask has a block encoded, and the others wait for it or find it.
Used by the doors on the event loop. Promises: what one reader costs does not depend on the rows; blocks are
forgotten with their batch, and earlier where they are more than `limits.SHARED_BYTES` (they are then encoded
again).
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from typing import Protocol, TypeVar

import pyarrow as pa

from tidemill.server import limits


class BlockEncoder(Protocol):
    """Rows to bytes, the same for the same rows. Compared by what it is: get it from `Encodings.common`."""

    def encode(self, batch: pa.RecordBatch) -> memoryview: ...


E = TypeVar("E", bound=BlockEncoder)


class _Blocks:
    """What is known of one batch."""

    __slots__ = ("batch", "by_place", "size")

    def __init__(self, batch: weakref.ref[pa.RecordBatch]) -> None:
        self.batch = batch
        # By the encoder and the block's first row. The encoder is held: another must not take its place.
        self.by_place: dict[tuple[BlockEncoder, int], asyncio.Future[memoryview]] = {}
        self.size = 0


class Encodings:
    """Of one door."""

    def __init__(self, pool: Executor, limit: int = limits.SHARED_BYTES) -> None:
        self._pool = pool
        self._limit = limit
        # By the batch's id, which is its own as long as it lives; the one that was used last is at the end.
        self._known: OrderedDict[int, _Blocks] = OrderedDict()
        self._size = 0
        # A batch may die in any thread, and in the middle of what is done here.
        self._lock = threading.RLock()
        self._encoders: weakref.WeakValueDictionary[Hashable, BlockEncoder] = weakref.WeakValueDictionary()

    def common(self, key: Hashable, make: Callable[[], E]) -> E:
        """The encoder that all who ask with this key have in common. The key says all about it, its kind
        included."""
        found = self._encoders.get(key)
        if found is None:
            found = self._encoders[key] = make()
        return found  # pyright: ignore[reportReturnType]

    async def block(self, batch: pa.RecordBatch, at: int, rows: int, encoder: BlockEncoder) -> memoryview:
        """The bytes of `rows` rows from `at` on. Blocks that begin at one row must be of one length."""
        with self._lock:
            blocks = self._known.get(id(batch))
            if blocks is None:
                blocks = self._known[id(batch)] = _Blocks(weakref.ref(batch, self._forgetting(id(batch))))
            else:
                self._known.move_to_end(id(batch))
        found = blocks.by_place.get((encoder, at))
        if found is None:
            loop = asyncio.get_running_loop()
            piece = batch if rows == batch.num_rows else batch.slice(at, rows)
            found = loop.run_in_executor(self._pool, encoder.encode, piece)
            blocks.by_place[encoder, at] = found
            found.add_done_callback(lambda done: self._count(blocks, done))
        if found.done():
            return found.result()
        # A client that goes away must not take the others' bytes with it.
        return await asyncio.shield(found)

    @property
    def size(self) -> int:
        """Bytes that are held now."""
        return self._size

    def _count(self, blocks: _Blocks, done: asyncio.Future[memoryview]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        batch = blocks.batch()
        if batch is None or self._known.get(id(batch)) is not blocks:
            return  # forgotten while it was encoded
        with self._lock:
            blocks.size += len(done.result())
            self._size += len(done.result())
            while self._size > self._limit and self._known:
                _, oldest = self._known.popitem(last=False)
                self._size -= oldest.size

    def _forgetting(self, key: int) -> Callable[[weakref.ref[pa.RecordBatch]], None]:
        """Made without the entry or the batch: a cycle would keep what it is to forget."""
        known = weakref.ref(self)

        def forget(gone: weakref.ref[pa.RecordBatch]) -> None:
            here = known()
            if here is None:
                return
            with here._lock:
                blocks = here._known.get(key)
                # Another batch may have the id by now.
                if blocks is not None and blocks.batch is gone:
                    del here._known[key]
                    here._size -= blocks.size

        return forget
