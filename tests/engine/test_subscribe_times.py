"""A subscription begins before anything else takes time: its first time is chosen and held, and what UP TO
says counts from there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.clock import ManualClock
from support.reader import reader_of, wait_released
from support.shards import DESC, append
from tidemill.catalog.items import Table
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.subscribe.times import Times
from tidemill.errors import TidemillError
from tidemill.inputs.opened import QueryInputs
from tidemill.persist.blob import open_blobs
from tidemill.persist.shard import Shard
from tidemill.sql import ast
from tidemill.sql.parse import parse
from tidemill.subscribe.stream import Bounds
from tidemill.time.oracle import Oracle


class Lease:
    leased = 0

    def extend(self, until: int) -> None:
        self.leased = until


class Reader:
    """A session at 1,000 whose transaction began at 900, and a table that is readable from 500 on."""

    def __init__(self, folder: Path) -> None:
        self.shard = Shard.create(open_blobs(str(folder)), "u1", DESC, epoch=1)
        append(self.shard, [], 2_000)
        self.shard.downgrade_since(500)
        self.reader = reader_of(
            Oracle(Lease(), ManualClock(1_000)),
            explicit=True,
            started=datetime.fromtimestamp(0.9, UTC),
            collections=SimpleNamespace(shard=lambda _: self.shard, first=lambda _: self.shard.since),
        )

    def times(self, text: str, meanwhile: Callable[[], object] = lambda: None) -> Bounds:
        """Of a subscription that is begun; `meanwhile` happens before it is open."""
        statement = parse(f"SUBSCRIBE t {text}")[0].statement
        assert isinstance(statement, ast.Subscribe)
        table = Table("u1", "t", "s1", DESC, "u1", (None, None))
        view = SimpleNamespace(info=self.reader.values.info, resolver=lambda: None)
        times = Times(self.reader, cast(CatalogView, view), statement, QueryInputs((table,), False), ())

        async def begin() -> Bounds:
            async with times.held() as bounds:
                meanwhile()
                return bounds

        return asyncio.run(begin())


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("", 1_000, None),
        # At least the snapshot; and what is complete now.
        ("UP TO LATEST", 1_000, 1_001),
        ("AS OF 700 UP TO LATEST", 700, 1_001),
        # The first time that will do, not the last.
        ("AS OF AT LEAST 700 UP TO LATEST", 700, 1_001),
        ("AS OF AT LEAST 1 UP TO LATEST", 500, 1_001),
        ("AS OF EARLIEST UP TO LATEST", 500, 1_001),
        # now() is no earlier than the beginning, unless that was told.
        ("UP TO now()", 1_000, 1_000),
        ("UP TO mz_now()", 1_000, 1_000),
        ("AS OF AT LEAST 1 UP TO now()", 500, 1_000),
        ("AS OF now() UP TO now()", 900, 900),
    ],
)
def test_from_when_to_when(reader: Reader, text: str, begin: int, end: int | None) -> None:
    assert reader.times(text) == Bounds(begin, end)


@pytest.mark.parametrize(
    ("text", "example"),
    [
        ("AS OF mz_now() - 2000", "now() - interval '1 minute'"),
        ("UP TO mz_now() + 2000", "now() + interval '2 s'"),
    ],
)
def test_a_time_that_is_none_is_answered_with_one_on_its_side(
    reader: Reader, text: str, example: str
) -> None:
    with pytest.raises(TidemillError, match="AS OF or UP TO should be castable") as failed:
        reader.times(text)
    assert failed.value.hint is not None and failed.value.hint.endswith(f", such as {example}.")


@pytest.mark.parametrize("text", ["", "AS OF 700", "AS OF AT LEAST 1", "AS OF EARLIEST"])
def test_the_first_time_is_held_until_it_is_open(reader: Reader, text: str) -> None:
    held: list[int] = []
    bounds = reader.times(text, lambda: held.append(reader.shard.downgrade_since(1_500)))
    assert held == [bounds.as_of]
    wait_released()
    assert reader.shard.downgrade_since(1_500) == 1_500


def test_what_is_let_go_between_the_look_and_the_hold_is_not_asked_for(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = reader.shard.hold

    def late(at: int) -> Any:
        reader.shard.downgrade_since(600)
        return hold(at)

    monkeypatch.setattr(reader.shard, "hold", late)
    assert reader.times("AS OF EARLIEST").as_of == 600
