"""What many clients are sent is encoded once, and forgotten with the batch it came from."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tidemill.server.shared import Encodings

SECONDS = 60.0


class Letters:
    """Encodes numbers as letters, and counts how often it is asked to."""

    def __init__(self, first: str = "a") -> None:
        self.first = first
        self.asked = 0

    def encode(self, batch: pa.RecordBatch) -> memoryview:
        self.asked += 1
        numbers = batch.column(0).to_pylist()
        return memoryview("".join(chr(ord(self.first) + n) for n in numbers).encode())


def batch_of(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


def test_one_encoding_for_all_who_ask() -> None:
    async def main() -> None:
        with ThreadPoolExecutor(2) as pool:
            encodings = Encodings(pool)
            letters = encodings.common("letters", Letters)
            assert encodings.common("letters", Letters) is letters
            batch = batch_of(0, 1, 2, 3)
            asked = [encodings.block(batch, at, 2, letters) for _ in range(50) for at in (0, 2)]
            got = [bytes(data) for data in await asyncio.gather(*asked)]
            assert got == [b"ab", b"cd"] * 50
            assert letters.asked == 2 and encodings.size == 4
            # Another encoder, or another batch with the same rows, is another matter.
            capitals = encodings.common("capitals", lambda: Letters("A"))
            assert bytes(await encodings.block(batch, 0, 2, capitals)) == b"AB"
            assert bytes(await encodings.block(batch_of(0, 1), 0, 2, letters)) == b"ab"
            assert letters.asked == 3

    run(main())


def test_it_is_forgotten_with_the_batch() -> None:
    async def main() -> None:
        with ThreadPoolExecutor(2) as pool:
            encodings = Encodings(pool)
            letters = encodings.common("letters", Letters)
            for n in range(100):
                batch = batch_of(n % 20)
                # Ids are used again: never somebody else's bytes.
                assert bytes(await encodings.block(batch, 0, 1, letters)) == bytes([ord("a") + n % 20])
                del batch
            # The thread that made the last one lets go of its batch a moment after we have the answer.
            async with asyncio.timeout(SECONDS):
                while encodings.size:
                    await asyncio.sleep(0.001)
                    gc.collect()
            del letters
            gc.collect()
            assert encodings.common("letters", lambda: Letters("A")).first == "A"

    run(main())


def test_the_oldest_give_way() -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            encodings = Encodings(pool, limit=10)
            letters = encodings.common("letters", Letters)
            batches = [batch_of(*range(4)) for _ in range(5)]
            for _ in range(2):
                for batch in batches:
                    assert bytes(await encodings.block(batch, 0, 4, letters)) == b"abcd"
                    assert encodings.size <= 10
            assert letters.asked == 10  # none was there any more
            await encodings.block(batches[-1], 0, 4, letters)
            assert letters.asked == 10

    run(main())


def test_a_client_that_leaves_takes_nothing_with_it() -> None:
    class Slow(Letters):
        def __init__(self) -> None:
            super().__init__()
            self.may_end = threading.Event()

        def encode(self, batch: pa.RecordBatch) -> memoryview:
            assert self.may_end.wait(30)
            return super().encode(batch)

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            encodings = Encodings(pool)
            slow = encodings.common("slow", Slow)
            batch = batch_of(1)
            first, second = (asyncio.ensure_future(encodings.block(batch, 0, 1, slow)) for _ in range(2))
            await asyncio.sleep(0)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            slow.may_end.set()
            assert bytes(await second) == b"b" and slow.asked == 1

    run(main())


def test_an_error_is_everybodys() -> None:
    class Broken(Letters):
        def encode(self, batch: pa.RecordBatch) -> memoryview:
            raise ValueError("broken")

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            encodings = Encodings(pool)
            broken = encodings.common("broken", Broken)
            batch = batch_of(1)
            for _ in range(2):
                with pytest.raises(ValueError, match="broken"):
                    await encodings.block(batch, 0, 1, broken)
            assert encodings.size == 0

    run(main())
