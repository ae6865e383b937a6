"""The statement for another output of a source waits while the source reads, and no longer."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemill.catalog.items import Source
from tidemill.catalog.secrets import SecretStore
from tidemill.engine.ddl import sources
from tidemill.engine.ddl.external import External
from tidemill.engine.session.execution import StatementExecution
from tidemill.engine.session.interrupt import Interrupt
from tidemill.errors import QueryCanceled, TidemillError
from tidemill.sources.offsets import Offsets

LOOKS = 20


def wait(interrupt: Interrupt, *, reads: bool, reached: int | None = LOOKS, cancel: int | None = None) -> int:
    """How often the source was looked at, one look after the other. It is there at the look `reached`."""
    looks = itertools.count(1)
    made = [0]

    def bound(*_: object) -> bool:
        made[0] = next(looks)
        if made[0] == cancel:
            loop.call_soon_threadsafe(interrupt.cancel)
        return made[0] == reached

    external = External(
        SecretStore(None), "", lambda: 0, lambda _: None, bound, lambda _: made[0] if reads else None
    )
    with ThreadPoolExecutor(1) as workers:
        events = cast("Any", SimpleNamespace(notice=print))
        execution = StatementExecution(workers, interrupt, events)
        source = cast("Source", SimpleNamespace(name="s"))
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(sources.wait_bound(execution, external, source, Offsets.at(7)))
        finally:
            loop.close()
    return made[0]


def test_a_source_that_reads_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "BOUND_SECONDS", 0.0)
    assert wait(Interrupt(), reads=True) == LOOKS
    with pytest.raises(TidemillError, match='"s" does not keep up with its upstream') as caught:
        wait(Interrupt(), reads=False)
    assert caught.value.sqlstate == "57P03"
    interrupt = Interrupt()
    interrupt.begin(0)
    with pytest.raises(QueryCanceled):
        wait(interrupt, reads=True, reached=None, cancel=3)
