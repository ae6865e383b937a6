"""What the demo does all the while: reads and their proof, a subscription, and how the source is.

Started by `run` as threads over one `DemoState`. A loop ends when `stop` is set; what it raises ends the
demo.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from tidemill.cli.demo.proof import (
    CUT,
    FOLLOWED,
    LOTS,
    STATUS,
    Cut,
    Lots,
    cut_of,
    followed_of,
    lots_of,
    must_be_same,
    must_follow,
    must_hold,
    must_match,
)
from tidemill.cli.demo.screen import DemoState, Health
from tidemill.cli.demo.server import Server
from tidemill.client import Changes, LiveTable, connect

# Pauses between two rounds of reads, and between two queries of the source's status, because ticks use the
# same processor.
PAUSE, HEALTH_PAUSE = 0.2, 1.0
# Times of the past that may be read again, and how long after; the server keeps an hour.
PINS, PIN_SECONDS = 1000, 2700.0


class Pin(NamedTuple):
    """A question that was asked at a time, and its answer then."""

    time: int
    sql: str
    answer: Cut | Lots | None


def read_loop(server: Server, state: DemoState, stop: threading.Event, limit: int) -> None:
    """Ask for everything at one time, and for the past, and hold the answers against what must be true."""
    connection = server.connect(state)
    # The latest time at which the source is complete, instead of now: such a read never waits for the tick at
    # work. It is as consistent, a fraction of a second older, and may be older than a write of ours was.
    connection.query("SET transaction_isolation = 'serializable'")
    pins: list[Pin] = []
    matched = 0  # the last time at which the subscription was held against SELECT
    while not stop.is_set():
        view = LOTS.format(seconds=f"{time.time():.3f}", limit=limit)
        begun = time.perf_counter()
        connection.query("BEGIN")  # both reads at the time that the first of them chooses
        lots = lots_of(connection.query(view))
        state.lots = () if lots is None else lots.shown
        cut = cut_of(connection.query(CUT))
        connection.query("COMMIT")
        if not state.waiting:  # for the start of Spark or of the source, which is not part of a read's time
            state.reads_ms.append((time.perf_counter() - begun) * 1e3)
        state.waiting = ""
        must_hold(cut, lots)
        if state.cut is not None:
            must_follow(state.cut, cut)
        state.cut = cut
        state.reads += 1
        pins = [p for p in pins if cut.time - p.time < PIN_SECONDS * 1000][-PINS:]
        held = state.followed
        # Alternately: a past time, and the time that the subscription has reached.
        if held is not None and held.time != matched and state.past_checks > state.live_checks:
            rows = connection.query(f"{CUT} AS OF {held.time}")
            must_match(held, cut_of(rows) if rows else Cut(held.time, {}))  # none: before the first event
            matched = held.time
            state.live_checks += 1
        elif pins:
            then = random.choice(pins)
            again = connection.query(f"{then.sql} AS OF {then.time}")
            must_be_same(then.answer, (cut_of if isinstance(then.answer, Cut) else lots_of)(again))
            state.past_checks += 1
            state.oldest = max(state.oldest, (cut.time - then.time) / 1000)
        pins += [Pin(cut.time, CUT, cut), Pin(cut.time, view, lots)]
        stop.wait(PAUSE)
    connection.close()


def live_loop(server: Server, state: DemoState, stop: threading.Event) -> None:
    """Subscribe to the bids, and keep the current rows at each complete time."""

    def seen(table: LiveTable) -> None:
        assert table.time is not None
        state.followed = followed_of(table.to_polars(), table.time)

    def changed(table: LiveTable, changes: Changes) -> None:
        state.updates += 1
        state.marks.changed(changes, time.monotonic())
        seen(table)

    with (
        connect(host="127.0.0.1", port=server.sql_port) as db,
        db.live_table(FOLLOWED, key=["id"], on_snapshot=seen, on_update=changed) as state.live,
    ):
        if not stop.is_set():
            state.live.run()


def health_loop(server: Server, state: DemoState, stop: threading.Event) -> None:
    """Query the status of the source, through SQL and /metrics."""
    connection = server.connect()
    before: dict[str, float] = {}
    while not stop.is_set():
        rows = connection.query(STATUS)
        now = server.metrics()
        if rows:
            status, error, known, committed = rows[0]
            ticks = _grown(before, now, "tidemill_tick_seconds_count:visible")
            seconds = _grown(before, now, "tidemill_tick_seconds_sum:visible")
            state.health = Health(
                status=str(status),
                error=error,
                known=int(known or 0),
                committed=int(committed or 0),
                ticks=int(now.get("tidemill_source_ticks_total", 0)),
                skipped=int(now.get("tidemill_source_ticks_skipped_total", 0)),
                visible_ms=seconds / ticks * 1000 if ticks else state.health.visible_ms,
                lag=now.get("tidemill_source_lag_seconds"),
            )
        before = now
        stop.wait(HEALTH_PAUSE)
    connection.close()


def _grown(before: dict[str, float], now: dict[str, float], name: str) -> float:
    return now.get(name, 0.0) - before.get(name, 0.0)


def guarded(work: Callable[[], None], state: DemoState, stop: threading.Event) -> threading.Thread:
    """Run a loop in a thread; what it raises ends the demo."""

    def run() -> None:
        try:
            work()
        except Exception as e:
            if not stop.is_set():
                state.failure = f"{type(e).__name__}: {e}"
                stop.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
