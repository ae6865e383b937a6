"""`tidemill watch`: a live relation or query in the terminal, or line by line without a terminal."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TextIO

import pyarrow as pa
from rich.console import Console
from rich.live import Live
from rich.panel import Panel

from tidemill.cli.watch_screen import ChangeMarks, Order, screen
from tidemill.client import Client, connect
from tidemill.client.target import conninfo
from tidemill.engine.api import CopyOptions
from tidemill.errors import InvalidValue, UndefinedObject
from tidemill.server.copy.text import TextEncoder
from tidemill.types.columns import contiguous
from tidemill.types.model import INT8, Column

# Lines of the screen that are not rows: the frame, the names, "more", the status.
OTHER_LINES = 6
FEWEST_ROWS = 3
SHORTEST_INTERVAL = 0.05


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """The options of the command line."""

    query: str
    key: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    # The maximum of rows on the screen; without a terminal, of lines. None: as many as fit, or no limit.
    limit: int | None = None
    # Seconds between two redraws.
    interval: float = 0.25

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise InvalidValue(f"--limit must be at least 1, not {self.limit}")
        if not self.interval >= SHORTEST_INTERVAL:
            raise InvalidValue(f"--interval must be at least {SHORTEST_INTERVAL} seconds")


def run(wish: WatchOptions, url: str, parameters: dict[str, object]) -> int:
    """Run until Ctrl-C, SIGTERM, or the end of the subscription; return the exit status."""
    notices: deque[str] = deque(maxlen=1)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        target = conninfo(url, {"application_name": "tidemill watch", **parameters})
        with connect(target, on_notice=notices.append) as client:
            console = Console()
            if console.is_terminal:
                show(client, wish, console, notices)
            else:
                lines(client, wish, sys.stdout)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        # The reader closed the pipe. Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def show(client: Client, wish: WatchOptions, console: Console, notices: deque[str]) -> None:
    """Show the live table on the screen."""
    marks = ChangeMarks(wish.key)
    order = Order(wish.key, wish.order_by)

    def drawn() -> Panel:
        limit = wish.limit or max(console.height - OTHER_LINES, FEWEST_ROWS)
        notice = notices[-1] if notices else ""
        return screen(wish.query, table, order, marks, limit=limit, now=time.monotonic(), notice=notice)

    with client.live_table(
        wish.query, key=wish.key, on_update=lambda _, changes: marks.changed(changes, time.monotonic())
    ) as table:
        table.start()
        with Live(console=console, get_renderable=drawn, refresh_per_second=1 / wish.interval) as live:
            while table.running:
                table.join(wish.interval)
                _check(order, table.columns)
            live.refresh()
        table.join()


def _check(order: Order, columns: Sequence[str]) -> None:
    unknown = order.unknown(columns) if columns else None
    if unknown is not None:
        raise UndefinedObject(
            f'column "{unknown}" does not exist', detail=f"There are {', '.join(columns)}.", sqlstate="42703"
        )


def lines(client: Client, wish: WatchOptions, out: TextIO) -> None:
    """Print every change as COPY ... TO STDOUT writes a line, after a line with the names. A tab or line end
    in a value does not break the line."""
    left = wish.limit
    encoder: TextEncoder | None = None
    with client.subscribe(wish.query, key=wish.key) as changes:
        for batch in changes:
            if encoder is None:
                names = batch.arrow.column_names
                columns = [Column(n, f.type) for n, f in zip(names, batch.fields, strict=True)]
                encoder = TextEncoder(
                    [Column("mz_timestamp", INT8), *columns], CopyOptions(header=True), "UTC"
                )
                out.write(b"".join(encoder.start()).decode())
            rows = batch.stored if left is None else batch.stored.slice(0, left)
            times = pa.array([batch.time], pa.int64()).take(pa.array([0] * rows.num_rows))
            arrays = [times, *(contiguous(column) for column in rows.columns)]
            made = encoder.encode(pa.RecordBatch.from_arrays(arrays, [str(n) for n in range(len(arrays))]))
            out.write(b"".join(made.to_pylist()).decode())
            out.flush()
            if left is not None:
                left -= rows.num_rows
                if left == 0:
                    return
