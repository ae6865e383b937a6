"""The demo: a real server, money that moves between accounts, and the sum that is zero at every moment.

Run by `make demo` with nothing but what the server itself needs. One loop moves money in transactions over
two tables (what is paid, what is received); another asks all the while for the balances now and ten seconds
ago, each question answered at one time across both tables. If ever the sum over both is not zero, or an old
time gives another answer than before, the demo ends with status 1. Ends with Ctrl-C, or after DEMO_SECONDS.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pgmini import Connection, PgError

ROOT = Path(__file__).resolve().parent.parent
ACCOUNTS = ("anna", "bruno", "carla", "dario", "elena")
PAST_MS = 10_000
# Seconds until the SQL port must answer; the promise is three on an idle machine.
START_SECONDS = 60
PAUSE = 0.05
# With DEMO_SECONDS: the demo goes on beyond them, for so long at most, until so many reads were answered.
WANTED_READS = 3
SPARK_SECONDS = 90

SCHEMA = """
CREATE TABLE paid (account text NOT NULL, amount bigint NOT NULL);
CREATE TABLE received (account text NOT NULL, amount bigint NOT NULL);
CREATE VIEW moves AS
  SELECT account, amount FROM received UNION ALL SELECT account, -amount FROM paid;
"""
BALANCES = (
    "SELECT account, sum(amount) AS balance, count(*) AS moves FROM moves GROUP BY account ORDER BY account"
)


@dataclass
class State:
    """What the loops know, for the screen. Replaced whole values and appends only, so that readers need no
    lock."""

    begun: float = field(default_factory=time.monotonic)
    transfers: int = 0
    commits_ms: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    reads: int = 0
    reads_ms: deque[float] = field(default_factory=lambda: deque(maxlen=200))
    now: dict[str, tuple[int, int]] = field(default_factory=dict)
    past: dict[str, tuple[int, int]] = field(default_factory=dict)
    past_checks: int = 0
    waiting: str = ""
    failure: str = ""


class Server:
    """`tidemill serve` as a process of ours, in a folder of ours."""

    def __init__(self, folder: Path) -> None:
        self.sql_port, http_port = _free_ports(2)
        self.log = folder / "server.log"
        command = [sys.executable, "-m", "tidemill.cli", "serve", "--data-dir", str(folder / "data")]
        command += ["--sql-addr", f"127.0.0.1:{self.sql_port}", "--http-addr", f"127.0.0.1:{http_port}"]
        # Its own session: Ctrl-C in the terminal is for us, and we end the server ourselves.
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stderr=log, stdout=log, start_new_session=True)

    def connect(self, state: State) -> Connection:
        def notice(text: str) -> None:
            state.waiting = text

        return Connection("127.0.0.1", self.sql_port, timeout=2 * SPARK_SECONDS, on_notice=notice)

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


def write_loop(server: Server, state: State, stop: threading.Event) -> None:
    """Move money: each transfer is one transaction over two tables."""
    connection = server.connect(state)
    while not stop.is_set():
        payer, payee = random.sample(ACCOUNTS, 2)
        amount = random.randint(1, 500)
        begun = time.perf_counter()
        connection.query("BEGIN")
        connection.query(f"INSERT INTO paid VALUES ('{payer}', {amount})")
        connection.query(f"INSERT INTO received VALUES ('{payee}', {amount})")
        connection.query("COMMIT")
        state.commits_ms.append((time.perf_counter() - begun) * 1e3)
        state.transfers += 1
        stop.wait(PAUSE)
    connection.close()


def read_loop(server: Server, state: State, stop: threading.Event) -> None:
    """Ask for the balances now and in the past, and hold the answers against what must be true."""
    connection = server.connect(state)
    first = int(_single(connection, "SELECT mz_now()"))
    # The last past time that was read, and its answer: it must stay the same.
    pinned: tuple[int, dict[str, tuple[int, int]]] | None = None
    while not stop.is_set():
        begun = time.perf_counter()
        state.now = _balances(connection, BALANCES)
        if not state.waiting:  # for Spark's start: that is no read's time
            state.reads_ms.append((time.perf_counter() - begun) * 1e3)
        state.reads += 1
        state.waiting = ""
        _must_be_zero(state.now, "now")
        if pinned is not None:
            again = _balances(connection, f"{BALANCES} AS OF {pinned[0]}")
            if again != pinned[1]:
                raise RuntimeError(f"the past changed: at {pinned[0]} it was {pinned[1]} and is {again}")
            state.past_checks += 1
            pinned = None
        then = int(time.time() * 1000) - PAST_MS
        if then >= first:
            state.past = _balances(connection, f"{BALANCES} AS OF {then}")
            _must_be_zero(state.past, f"at {then}")
            pinned = (then, state.past)
        stop.wait(PAUSE)
    connection.close()


def _single(connection: Connection, sql: str) -> str:
    value = connection.query(sql)[0].rows[0][0]
    assert value is not None
    return value


def _balances(connection: Connection, sql: str) -> dict[str, tuple[int, int]]:
    rows = connection.query(sql)[0].rows
    return {str(account): (int(balance or 0), int(moves or 0)) for account, balance, moves in rows}


def _must_be_zero(balances: dict[str, tuple[int, int]], when: str) -> None:
    total = sum(balance for balance, _ in balances.values())
    if total:
        raise RuntimeError(f"the balances {when} sum to {total}, not zero: {balances}")


def guarded(work: object, server: Server, state: State, stop: threading.Event) -> threading.Thread:
    """Run a loop in a thread; what it raises ends the demo."""

    def run() -> None:
        try:
            assert callable(work)
            work(server, state, stop)
        except Exception as e:
            if not stop.is_set():
                state.failure = f"{type(e).__name__}: {e}"
                stop.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def quantile(values: deque[float], q: float) -> str:
    ordered = sorted(values)
    return f"{ordered[int(q * (len(ordered) - 1))]:.1f} ms" if ordered else "-"


def screen(state: State, server: Server) -> Panel:
    table = Table(box=None, pad_edge=False)
    for title in ("account", "balance now", f"{PAST_MS // 1000} s ago", "moves"):
        table.add_column(title, justify="left" if title == "account" else "right")
    for account in ACCOUNTS:
        balance, moves = state.now.get(account, (0, 0))
        past = state.past.get(account)
        shown = f"{balance:,}" if state.now else "-"
        table.add_row(account, shown, f"{past[0]:,}" if past else "-", str(moves))
    total = f"{sum(b for b, _ in state.now.values()):,}" if state.now else "-"
    past_total = f"{sum(b for b, _ in state.past.values()):,}" if state.past else "-"
    table.add_row(Text("sum", style="bold"), total, past_total, "", style="bold")
    lines = [
        (
            f"{state.transfers:,} transfers committed, each over two tables: "
            f"p50 {quantile(state.commits_ms, 0.5)}, p99 {quantile(state.commits_ms, 0.99)}"
        ),
        f"{state.reads:,} reads of both tables at one time: p50 {quantile(state.reads_ms, 0.5)}",
        f"{state.past_checks:,} times the past was read twice and had not changed",
        f"psql -h 127.0.0.1 -p {server.sql_port} -U materialize materialize",
    ]
    if state.waiting:
        lines.append(f"waiting: {state.waiting}")
    title = f"tidemill, {time.monotonic() - state.begun:.0f} s"
    return Panel(Group(table, Text(), Text("\n".join(lines))), title=title, expand=False)


def plain(state: State) -> str:
    return (
        f"{time.monotonic() - state.begun:5.1f} s  transfers {state.transfers}"
        f"  commit p50 {quantile(state.commits_ms, 0.5)} p99 {quantile(state.commits_ms, 0.99)}"
        f"  reads {state.reads} p50 {quantile(state.reads_ms, 0.5)}"
        f"  sum {sum(b for b, _ in state.now.values()) if state.now else '-'}"
        + (f"  waiting: {state.waiting}" if state.waiting else "")
    )


def verdict(state: State) -> str:
    """What the demo has shown; a read that did not add up would have ended it before."""
    return (
        f"{state.transfers:,} transfers were committed (p50 {quantile(state.commits_ms, 0.5)} each) and read "
        f"{state.reads:,} times: every read of both tables summed to 0, so none saw half a transfer. "
        f"{state.past_checks:,} times a moment of the past was read again, and had not changed."
    )


def show(
    state: State, server: Server, stop: threading.Event, console: Console, seconds: float | None
) -> None:
    """Until the time is over, the loops failed, or Ctrl-C."""
    deadline = None if seconds is None else time.monotonic() + seconds

    def over() -> bool:
        if stop.is_set() or deadline is None or time.monotonic() < deadline:
            return stop.is_set()
        # On a slow machine Spark may need longer than the demo was meant to take: show a few reads all the
        # same.
        if state.reads >= WANTED_READS:
            return True
        if time.monotonic() < deadline + SPARK_SECONDS:
            return False
        state.failure = f"fewer than {WANTED_READS} reads were answered within {SPARK_SECONDS} s more"
        return True

    if console.is_terminal:
        with Live(screen(state, server), console=console, refresh_per_second=8) as live:
            while not over():
                stop.wait(0.125)
                live.update(screen(state, server))
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
        if connection is None:
            return 0
        connection.query(SCHEMA)
        console.print(f"SQL answers after {time.monotonic() - begun:.1f} s. Ctrl-C ends the demo.")
        state.begun = time.monotonic()
        threads = [guarded(loop, server, state, stop) for loop in (write_loop, read_loop)]
        show(state, server, stop, console, seconds)
        stop.set()
        for thread in threads:
            thread.join(10)
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
