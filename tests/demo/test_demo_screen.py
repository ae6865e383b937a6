"""The demo's screen on terminals of many sizes, and where there is none."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest
from rich.console import Console

from tidemill.cli.demo.proof import AuctionLot, Cut, DemoFacts
from tidemill.cli.demo.screen import (
    FEWEST_LOTS,
    MOST_LOTS,
    OTHER_LINES,
    DemoState,
    Health,
    lots_that_fit,
    plain,
    screen,
    verdict,
)
from tidemill.client import LiveTable, Retry
from tidemill.client.assemble import CompleteTime
from tidemill.client.course import Course
from tidemill.client.driver import Driver
from tidemill.client.forms import ClientField
from tidemill.client.request import request
from tidemill.types import model

FIELDS = (ClientField("mz_diff", model.INT8),)
FACTS = {
    "organizations": DemoFacts(10, 10, 385, 0, 0),
    "users": DemoFacts(100, 100, 338350, 0, 0),
    "accounts": DemoFacts(10, 10, 385, 0, 0),
    "auctions": DemoFacts(120, 120, 583220, 0, 0),
    "bids": DemoFacts(1079, 1079, 0, 1_234_567, 0),
    "progress": DemoFacts(1, 1200, 1440000, 0, 0),
}


def running(lots: int = MOST_LOTS) -> DemoState:
    state = DemoState(cut=Cut(1_794_752_149_968, FACTS), reads=53, past_checks=52, oldest=51.2)
    state.lots = (
        AuctionLot("Reupholstered Barometer", "Chidi Castillo", 10, 3058, time.time() + 5, 1),
    ) * lots
    state.health = Health("running", None, 1210, 1200, 60, 0, 212.4, 0.13)
    state.reads_ms.extend([300.0, 310.0, 320.0])
    return state


@pytest.fixture
def live() -> Iterator[LiveTable]:
    """A table that has begun."""
    with LiveTable(Driver(""), Course(request("lots"), Retry()), [], None, None) as table:
        table.take(
            CompleteTime(1_794_752_149_968, pa.table({"c0": pa.array([], pa.int64())}), snapshot=True), FIELDS
        )
        yield table


def rendered(state: DemoState, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=50, force_terminal=True, color_system=None)
    console.print(screen(state, 6875, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 30, 40, 44, 60, 64, 80, 120, 300])
@pytest.mark.parametrize("state", [DemoState(), running(), DemoState(waiting="Spark is starting")])
def test_every_width(state: DemoState, width: int) -> None:
    shown = rendered(state, width)
    assert max(map(len, shown)) <= width
    text = " ".join(" ".join(shown).replace("│", " ").split())
    assert "tidemill" in text
    if state.cut is not None and width >= 40:
        for told in (
            "1,079 bids",
            "1,234,567",
            "10 behind",
            "lag 0.1 s",
            "60 ticks",
            "212 ms",
            "14:15:49.968",
        ):
            assert told in text, (width, told)
        assert ("Chidi" in text) is (width >= 64)


def test_the_screen_fits_a_small_terminal(live: LiveTable) -> None:
    for height in (24, 30, 50):
        state = running(lots_that_fit(height))
        state.live, state.updates, state.live_checks = live, 1234, 567
        shown = rendered(state, 80)
        assert len(shown) <= height
        assert any("1,234 updates" in line for line in shown) and any("567 times" in line for line in shown)
    assert (lots_that_fit(5), lots_that_fit(OTHER_LINES + 5), lots_that_fit(500)) == (
        FEWEST_LOTS,
        5,
        MOST_LOTS,
    )


def test_a_stalled_source_says_why() -> None:
    state = running()
    state.health = Health("stalled", "the disk is full", 1210, 1200, 60, 0, 212.4, 30.0)
    assert any("stalled (the disk is full)" in line for line in rendered(state, 80))
    assert "the disk is full" in plain(state)


def test_lines_without_a_terminal() -> None:
    assert plain(DemoState()).endswith("starting")
    line = plain(running())
    for told in (
        "events 1200",
        "bids 1079 over 1234567",
        "at 14:15:49.968",
        "lag 0.1 s",
        "p50 310 ms",
        "past 52",
    ):
        assert told in line
    assert "\n" not in line


def test_the_verdict_tells_what_was_seen() -> None:
    assert "1,200 events" in verdict(running())
    assert "53 reads" in verdict(running())
    assert verdict(DemoState()) == "Nothing was read yet."
