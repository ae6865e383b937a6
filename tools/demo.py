"""The demo: a real server, a live auction house, and proof that what is shown belongs together.

Run by `make demo` with nothing but what the server itself needs. A source of generated auctions and bids is
read on Spark every second; a loop asks all the while for everything at one time (five tables, a view over
them, how far the source has been read), and again for times of the past. If ever an event's rows are not
there exactly once, a bid has no auction, the view's sum is not that of the bids, or the past has changed, the
demo ends with status 1; as it does if the bids that a subscription brings are not what SELECT says of the
same time. Ends with Ctrl-C, or after DEMO_SECONDS.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.live import Live
from rich.panel import Panel

from demo_proof import (
    CUT,
    FOLLOWED,
    LOTS,
    SCHEMA,
    SOURCE,
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
from demo_screen import Health, State, lots_that_fit, plain, screen, verdict
from pgmini import Connection, PgError
from tidemill.client import Changes, LiveTable, connect

# Seconds until the SQL port must answer; the promise is three on an idle machine.
START_SECONDS = 180
# Between two rounds of reads, and between two looks at how the source is: the processor is also the ticks'.
PAUSE, HEALTH_PAUSE = 0.2, 1.0
# With DEMO_SECONDS: the demo goes on beyond them, for so long at most, until the past was read so often.
WANTED_CHECKS = 1
SPARK_SECONDS = 180
# Times of the past that may be read again, and how long after; the server keeps an hour.
PINS, PIN_SECONDS = 1000, 2700.0

_METRIC = re.compile(r"^(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


class Server:
    """`tidemill serve` as a process of ours, in a folder of ours."""

    def __init__(self, folder: Path) -> None:
        self.sql_port, self._http_port = _free_ports(2)
        self.log = folder / "server.log"
        command = [sys.executable, "-m", "tidemill.cli", "serve", "--data-dir", str(folder / "data")]
        command += ["--sql-addr", f"127.0.0.1:{self.sql_port}", "--http-addr", f"127.0.0.1:{self._http_port}"]
        # Its own session: Ctrl-C in the terminal is for us, and we end the server ourselves.
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stderr=log, stdout=log, start_new_session=True)

    def connect(self, state: State | None = None) -> Connection:
        """With a state, what the server waits for is told there."""

        def notice(text: str) -> None:
            if state is not None:
                state.waiting = text

        return Connection("127.0.0.1", self.sql_port, timeout=SPARK_SECONDS, on_notice=notice)

    def wait(self, state: State, stop: threading.Event) -> Connection | None:
        """The first connection, or None when the person ended it meanwhile."""
        deadline = time.monotonic() + START_SECONDS
        while not stop.is_set():
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with status {self._process.returncode}")
            try:
                return self.connect(state)
            except (OSError, PgError):
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no answer on the SQL port for {START_SECONDS} s") from None
                time.sleep(0.05)
        return None

    def metrics(self) -> dict[str, float]:
        """Of our source, by name; those with a phase as `name:phase`."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._http_port}/metrics", timeout=60) as answer:
            text: str = answer.read().decode()
        found: dict[str, float] = {}
        for name, labels, value in _METRIC.findall(text):
            values = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if values.get("source") == SOURCE and "le" not in values:
                phase = values.get("phase")
                found[f"{name}:{phase}" if phase else name] = float(value)
        return found

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


class Pin(NamedTuple):
    """A question that was asked at a time, and its answer then."""

    time: int
    sql: str
    answer: Cut | Lots | None


def read_loop(server: Server, state: State, stop: threading.Event, limit: int) -> None:
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
        lots = lots_of(connection.query(view)[0].rows)
        state.lots = () if lots is None else lots.shown
        cut = cut_of(connection.query(CUT)[0].rows)
        connection.query("COMMIT")
        if not state.waiting:  # for Spark's start, or the source's: that is no read's time
            state.reads_ms.append((time.perf_counter() - begun) * 1e3)
        state.waiting = ""
        must_hold(cut, lots)
        if state.cut is not None:
            must_follow(state.cut, cut)
        state.cut = cut
        state.reads += 1
        pins = [p for p in pins if cut.time - p.time < PIN_SECONDS * 1000][-PINS:]
        held = state.followed
        # In turns: a time of the past, and the time at which the subscription stands.
        if held is not None and held.time != matched and state.past_checks > state.live_checks:
            rows = connection.query(f"{CUT} AS OF {held.time}")[0].rows
            must_match(held, cut_of(rows) if rows else Cut(held.time, {}))  # none: before the first event
            matched = held.time
            state.live_checks += 1
        elif pins:
            then = random.choice(pins)
            again = connection.query(f"{then.sql} AS OF {then.time}")[0].rows
            must_be_same(then.answer, (cut_of if isinstance(then.answer, Cut) else lots_of)(again))
            state.past_checks += 1
            state.oldest = max(state.oldest, (cut.time - then.time) / 1000)
        pins += [Pin(cut.time, CUT, cut), Pin(cut.time, view, lots)]
        stop.wait(PAUSE)
    connection.close()


def live_loop(server: Server, state: State, stop: threading.Event) -> None:
    """Subscribe to the bids, and keep what is there at each complete time."""

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


def health_loop(server: Server, state: State, stop: threading.Event) -> None:
    """Ask how the source is, as SQL tells it and as /metrics does."""
    connection = server.connect()
    before: dict[str, float] = {}
    while not stop.is_set():
        rows = connection.query(STATUS)[0].rows
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


def guarded(work: Callable[[], None], state: State, stop: threading.Event) -> threading.Thread:
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


def show(
    state: State, server: Server, stop: threading.Event, console: Console, seconds: float | None
) -> None:
    """Until the time is over, the loops failed, or Ctrl-C."""
    deadline = None if seconds is None else time.monotonic() + seconds

    def over() -> bool:
        if stop.is_set() or deadline is None or time.monotonic() < deadline:
            return stop.is_set()
        # On a slow machine Spark may need longer than the demo was meant to take: show something then too.
        if state.past_checks >= WANTED_CHECKS:
            return True
        if time.monotonic() < deadline + SPARK_SECONDS:
            return False
        state.failure = f"no time was read twice within {SPARK_SECONDS} s more"
        return True

    if console.is_terminal:

        def shown() -> Panel:
            return screen(state, server.sql_port, console.width)

        with Live(console=console, get_renderable=shown, refresh_per_second=8):
            while not over():
                stop.wait(0.125)
    else:
        waited_for = ""  # told once, not every second
        while not over():
            left = 1.0 if deadline is None else deadline - time.monotonic()
            stop.wait(left if 0 < left < 1 else 1.0)
            line = plain(state)
            if not state.waiting or state.waiting != waited_for:
                print(line, flush=True)
            waited_for = state.waiting


def main() -> int:
    seconds = float(os.environ["DEMO_SECONDS"]) if os.environ.get("DEMO_SECONDS") else None
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="tidemill-demo-"))
    state = State()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    console.print(f"Starting a server in {folder} ...")
    server = Server(folder)
    try:
        begun = time.monotonic()
        connection = server.wait(state, stop)
        if connection is not None:
            connection.query(SCHEMA)
            connection.close()
            console.print(f"SQL answers after {time.monotonic() - begun:.1f} s. Ctrl-C ends the demo.")
            state.begun = time.monotonic()
            limit = lots_that_fit(console.height)
            threads = [
                guarded(lambda: read_loop(server, state, stop, limit), state, stop),
                guarded(lambda: health_loop(server, state, stop), state, stop),
                guarded(lambda: live_loop(server, state, stop), state, stop),
            ]
            show(state, server, stop, console, seconds)
            stop.set()
            if state.live is not None:
                state.live.close()
            for thread in threads:
                thread.join(1)  # one that waits for an answer ends with the server
    except Exception as e:
        state.failure = state.failure or f"{type(e).__name__}: {e}"
    finally:
        server.stop()
    if state.failure:
        console.print(f"[bold red]The demo failed:[/] {state.failure}\n\nThe end of the server's log:")
        print(server.log_tail())
        console.print(f"All of it, and the data: {folder}")
        return 1
    console.print(verdict(state))
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
