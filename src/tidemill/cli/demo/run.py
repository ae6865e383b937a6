"""`tidemill demo`: a real server, a live auction house, and proof that the displayed data is consistent.

Spark reads a source of generated auctions and bids every second. A loop repeatedly queries everything at one
time (five tables, a view over them, the progress of the source), and repeats queries of past times. The demo
ends with status 1 if the rows of an event do not exist exactly once, a bid has no auction, the view's sum
differs from that of the bids, or the past has changed. It also does so if the bids of a subscription differ
from the result of SELECT at the same time. It ends with Ctrl-C, or after some seconds.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.panel import Panel

from tidemill.cli.demo.loops import guarded, health_loop, live_loop, read_loop
from tidemill.cli.demo.proof import SCHEMA
from tidemill.cli.demo.screen import DemoState, lots_that_fit, plain, screen, verdict
from tidemill.cli.demo.server import Server

# With a time limit, the demo continues beyond it, at most for this long, until the past was read this often.
WANTED_CHECKS = 1
SPARK_SECONDS = 180


def show(
    state: DemoState, server: Server, stop: threading.Event, console: Console, seconds: float | None
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
        waited_for = ""  # reported once, not every second
        while not over():
            left = 1.0 if deadline is None else deadline - time.monotonic()
            stop.wait(left if 0 < left < 1 else 1.0)
            line = plain(state)
            if not state.waiting or state.waiting != waited_for:
                print(line, flush=True)
            waited_for = state.waiting


def run(seconds: float | None) -> int:
    """Until Ctrl-C, or for so many seconds; the exit status."""
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="tidemill-demo-"))
    state = DemoState()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    console.print(f"Starting a server in {folder} ...")
    server = Server(folder)
    try:
        begun = time.monotonic()
        with console.status("waiting for the SQL port, some seconds"):
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
