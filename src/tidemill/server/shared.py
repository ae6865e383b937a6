"""Encodings shared by many clients: each block of a batch is encoded once for all of them.

Equal subscriptions receive the same batch objects (`engine.api.Rows.shared`). The sender of a batch
requests its blocks from `Encodings`. The first request encodes a block; the others wait for it or find it.
Used by pgwire and HTTP on the event loop. Promises: encoding costs an additional reader nothing per row.
Blocks are released with their batch, or earlier if all blocks together exceed `limits.SHARED_BYTES`; then
they are encoded again when needed.
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
    """Encodes rows: equal rows give equal bytes. Compared by identity: get it from `Encodings.common`."""

    def encode(self, batch: pa.RecordBatch) -> memoryview: ...


E = TypeVar("E", bound=BlockEncoder)


class _Blocks:
    """The encoded blocks of one batch."""

    __slots__ = ("batch", "by_place", "size")

    def __init__(self, batch: weakref.ref[pa.RecordBatch]) -> None:
        self.batch = batch
        # By the encoder and the block's first row. Holding the encoder prevents that another one gets its
        # identity.
        self.by_place: dict[tuple[BlockEncoder, int], asyncio.Future[memoryview]] = {}
        self.size = 0


class Encodings:
    """The encodings of one port."""

    def __init__(self, pool: Executor, limit: int = limits.SHARED_BYTES) -> None:
        self._pool = pool
        self._limit = limit
        # By the batch's id, which is unique while the batch exists; the most recently used is last.
        self._known: OrderedDict[int, _Blocks] = OrderedDict()
        self._size = 0
        # A batch may be released in any thread, and while this thread holds the lock.
        self._lock = threading.RLock()
        self._encoders: weakref.WeakValueDictionary[Hashable, BlockEncoder] = weakref.WeakValueDictionary()

    def common(self, key: Hashable, make: Callable[[], E]) -> E:
        """The encoder shared by all callers with this key. The key identifies it completely, including its
        kind."""
        found = self._encoders.get(key)
        if found is None:
            found = self._encoders[key] = make()
        return found  # pyright: ignore[reportReturnType]

    async def block(self, batch: pa.RecordBatch, at: int, rows: int, encoder: BlockEncoder) -> memoryview:
        """The bytes of `rows` rows from `at` on. Blocks that begin at the same row must have the same
        length."""
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
        # A client that disconnects must not cancel the encoding for the others.
        return await asyncio.shield(found)

    @property
    def size(self) -> int:
        """The number of bytes held."""
        return self._size

    def _count(self, blocks: _Blocks, done: asyncio.Future[memoryview]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        batch = blocks.batch()
        if batch is None or self._known.get(id(batch)) is not blocks:
            return  # released while it was encoded
        with self._lock:
            blocks.size += len(done.result())
            self._size += len(done.result())
            while self._size > self._limit and self._known:
                _, oldest = self._known.popitem(last=False)
                self._size -= oldest.size

    def _forgetting(self, key: int) -> Callable[[weakref.ref[pa.RecordBatch]], None]:
        """The callback for a released batch. It has no reference to the entry or the batch, because a cycle
        would keep both alive."""
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
