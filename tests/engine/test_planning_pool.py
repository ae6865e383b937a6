"""Long texts take turns, and the interpreter's collections rest while they are worked on."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidemill.engine.session import planning_pool as texts_module
from tidemill.engine.session.planning_pool import AT_ONCE, LONG, SHORT, PlanningPool

SECONDS = 60.0


def test_no_more_than_a_few_at_once_and_no_collections_meanwhile() -> None:
    lock, go = threading.Lock(), threading.Event()
    running, most, collecting = 0, 0, list[bool]()

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            collecting.append(gc.isenabled())
        assert go.wait(SECONDS)
        with lock:
            running -= 1
        return number

    async def main() -> list[int]:
        with ThreadPoolExecutor(10) as pool:
            texts = PlanningPool(pool)
            tasks = [asyncio.ensure_future(texts.run(LONG + 1, work, n)) for n in range(6)]
            while running < AT_ONCE:
                await asyncio.sleep(0.001)
            # The loop has run all of them as far as they go: the rest wait for their turn.
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert running == AT_ONCE and not gc.isenabled()
            go.set()
            return await asyncio.gather(*tasks)

    assert gc.isenabled()
    assert asyncio.run(main()) == list(range(6))
    assert most == AT_ONCE and not any(collecting)
    assert gc.isenabled()


def test_what_they_leave_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    class Node:
        itself: Node

    def work() -> weakref.ref[Node]:
        node = Node()
        node.itself = node
        return weakref.ref(node)

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            left = await PlanningPool(pool).run(LONG + 1, work)
            # As a server is that has nothing else to do.
            gc.disable()
            assert left() is not None
            async with asyncio.timeout(SECONDS):
                while left() is not None:
                    await asyncio.sleep(0.001)

    monkeypatch.setattr(texts_module, "LEAVINGS_SECONDS", 0.01)
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_an_error_gives_the_turn_back() -> None:
    def fails() -> None:
        raise ValueError("no")

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            texts = PlanningPool(pool)
            for _ in range(AT_ONCE + 1):
                with pytest.raises(ValueError):
                    await texts.run(LONG + 1, fails)
            assert await texts.run(LONG + 1, lambda: 1) == 1

    asyncio.run(main())
    assert gc.isenabled()


def test_short_ones_are_done_at_once_and_others_on_a_thread() -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            texts = PlanningPool(pool)
            here = threading.get_ident()
            assert await texts.run(SHORT, threading.get_ident) == here
            assert await texts.run(SHORT + 1, threading.get_ident) != here
            assert await texts.run(SHORT + 1, gc.isenabled)

    asyncio.run(main())
