"""What the demo shows: a live table in a terminal, or a line now and then where there is none.

Used by `run`. Everything here is made from a `DemoState`, which the loops fill and this reads.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tidemill.cli.demo.proof import SOURCE, TABLES, AuctionLot, Cut, FollowedBids
from tidemill.cli.watch_screen import ChangeMarks
from tidemill.client import LiveTable

# Narrower terminals do without these columns, first the one and then the other.
SELLER_WIDTH, BIDS_WIDTH = 64, 44
# Lines of the screen that are not auctions, on a terminal of 80 columns; and how many auctions there are.
OTHER_LINES = 19
FEWEST_LOTS, MOST_LOTS = 3, 10


@dataclass(frozen=True)
class Health:
    """How the source is: by SQL (status, offsets), and by /metrics (the rest)."""

    status: str = "starting"
    error: str | None = None
    known: int = 0
    committed: int = 0
    ticks: int = 0
    skipped: int = 0
    # Milliseconds from the durable binding to the committed rows, of the ticks since the demo looked last.
    visible_ms: float | None = None
    # Seconds that what can be read is behind the clock.
    lag: float | None = None


@dataclass
class DemoState:
    """What the loops know. Whole values are replaced, so that readers need no lock."""

    begun: float = field(default_factory=time.monotonic)
    cut: Cut | None = None
    lots: tuple[AuctionLot, ...] = ()
    health: Health = field(default_factory=Health)
    reads: int = 0
    reads_ms: deque[float] = field(default_factory=lambda: deque(maxlen=200))
    past_checks: int = 0
    # The bids as the subscription holds them, which auctions got one lately, and how often SELECT said the
    # same.
    live: LiveTable | None = None
    followed: FollowedBids | None = None
    marks: ChangeMarks = field(default_factory=lambda: ChangeMarks(["auction_id"]))
    updates: int = 0
    live_checks: int = 0
    # The age of the oldest past time that was read again; seconds.
    oldest: float = 0.0
    # What the server said that it waits for.
    waiting: str = ""
    failure: str = ""


def quantile(values: deque[float], q: float) -> str:
    ordered = sorted(values)
    return f"{ordered[int(q * (len(ordered) - 1))]:.0f} ms" if ordered else "-"


def lots_that_fit(height: int) -> int:
    return min(max(height - OTHER_LINES, FEWEST_LOTS), MOST_LOTS)


def screen(state: DemoState, sql_port: int, width: int) -> Panel:
    parts = [lots_table(state, width), Text(), Text("\n".join(lines(state, sql_port)))]
    title = f"tidemill, {time.monotonic() - state.begun:.0f} s"
    return Panel(Group(*parts), title=title, expand=False)


def lots_table(state: DemoState, width: int) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("open auction", no_wrap=True, min_width=16)
    if width >= SELLER_WIDTH:
        table.add_column("seller", no_wrap=True, min_width=14)
    if width >= BIDS_WIDTH:
        table.add_column("bids", justify="right", min_width=4)
    table.add_column("highest", justify="right", min_width=7)
    table.add_column("ends in", justify="right", min_width=7)
    now = time.time()
    followed = state.followed
    for read in state.lots:
        lot = read if followed is None else followed.now(read)
        cells = [lot.item]
        cells += [lot.seller] if width >= SELLER_WIDTH else []
        cells += [str(lot.bids)] if width >= BIDS_WIDTH else []
        left = lot.ends - now
        cells += [
            "-" if lot.highest is None else f"{lot.highest:,}",
            f"{left:.1f} s" if left > 0 else "ended",
        ]
        fresh = state.marks.style({"auction_id": lot.id}, time.monotonic())
        table.add_row(*cells, style=fresh or ("dim" if left <= 0 else ""))
    return table


def lines(state: DemoState, sql_port: int) -> list[str]:
    """The lines below the auctions."""
    found: list[str] = []
    cut, health = state.cut, state.health
    if cut is not None:
        found += [
            "rows: " + ", ".join(f"{cut.of(name).rows:,} {name}" for name in reversed(TABLES)),
            f"read at {clock(cut.time)} UTC: all tables and the view at this one time",
        ]
    source = f"source {SOURCE}: {health.status}"
    if health.error:
        source += f" ({health.error})"
    elif cut is not None:
        source += f", {health.committed:,} events, {max(0, health.known - health.committed):,} behind"
        source += "" if health.lag is None else f", lag {health.lag:.1f} s"
    found.append(source)
    if health.ticks:
        visible = "-" if health.visible_ms is None else f"{health.visible_ms:.0f} ms"
        found.append(f"{health.ticks:,} ticks, {health.skipped:,} skipped; from binding to visible {visible}")
    if cut is not None:
        amount = cut.of("bids").amount
        found += [
            f"{state.reads:,} reads, p50 {quantile(state.reads_ms, 0.5)}. True at the time of every one:",
            "  each event's rows are there once",
            "  every bid has its auction, every auction its seller",
            f"  the view's sum is that of the bids: {amount:,}",
            f"{state.past_checks:,} times the past was read again (up to {state.oldest:.0f} s): unchanged",
        ]
    if state.live is not None and state.live.lag is not None:
        found.append(
            f"bids come by subscription: {state.updates:,} updates, lag {state.live.lag:.1f} s;\n"
            f"  {state.live_checks:,} times SELECT was asked for their time, and said the same"
        )
    found.append(f"psql -h 127.0.0.1 -p {sql_port} -U materialize materialize")
    found.append(f"tidemill watch -p {sql_port} lots --key id --order-by 'highest DESC'")
    if state.waiting:
        found.append(f"waiting: {state.waiting}")
    return found


def plain(state: DemoState) -> str:
    """One line, for output that is not a terminal."""
    cut, health = state.cut, state.health
    shown = [f"{time.monotonic() - state.begun:5.1f} s", health.status]
    if health.error:
        shown.append(health.error)
    if cut is not None:
        auctions, bids = cut.of("auctions"), cut.of("bids")
        shown += [
            f"events {cut.events}",
            f"auctions {auctions.rows}",
            f"bids {bids.rows} over {bids.amount}",
            f"at {clock(cut.time)}",
            f"lag {'-' if health.lag is None else f'{health.lag:.1f} s'}",
            f"ticks {health.ticks}",
            f"reads {state.reads} p50 {quantile(state.reads_ms, 0.5)}",
            f"past {state.past_checks}",
            f"updates {state.updates} checked {state.live_checks}",
        ]
    if state.waiting:
        shown.append(f"waiting: {state.waiting}")
    return "  ".join(shown)


def verdict(state: DemoState) -> str:
    """What the demo has shown; a read that did not hold would have ended it before."""
    cut = state.cut
    if cut is None:
        return "Nothing was read yet."
    past = "No past time was read again, so it was not checked that the past had not changed. "
    if state.past_checks:
        past = f"{state.past_checks:,} times the past was read again, and had not changed. "
    followed = "no update of it was checked against SELECT."
    if state.live_checks:
        followed = f"{state.live_checks:,} times SELECT said of its time what it held."
    return (
        f"{cut.events:,} events came from the source and were seen in {state.reads:,} reads of five tables "
        "and a view. At the time of every read each event's rows were there once, every bid had its auction, "
        f"and the view's sum was that of the bids. {past}"
        f"A subscription brought {state.updates:,} updates of the bids, and {followed}"
    )


def clock(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
