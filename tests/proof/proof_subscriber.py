"""A reader of a durable subscription beside kill -9 of the server and of its upstreams: it comes back, and
looks at every time that it is told of."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg

Rows = Counter[tuple[Any, ...]]


class Subscriber:
    """`check` is called with the rows of each time."""

    def __init__(
        self, name: str, ask: Callable[[], psycopg.Connection[Any]], check: Callable[[Rows], None]
    ) -> None:
        self.rows: Rows = Counter()
        self.times = 0
        self._name = name
        self._ask = ask
        self._check = check
        # As a program stores it beside its effects.
        self._position: int | None = None
        self._failure: BaseException | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def wait_for(self, wanted: Rows, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.rows != wanted:
            if self._failure is not None:
                raise self._failure
            assert time.monotonic() < deadline, (self._name, self.rows - wanted, wanted - self.rows)
            time.sleep(0.2)

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    with self._ask() as c:
                        self._read(c)
                except psycopg.OperationalError:
                    # The server was killed; it comes back with other ports.
                    self._stopped.wait(0.2)
        except BaseException as error:
            self._failure = error

    def _read(self, c: psycopg.Connection[Any]) -> None:
        while not self._stopped.is_set():
            begin = "" if self._position is None else f", POSITION = {self._position}"
            fetch = f"FETCH ALL FROM SUBSCRIPTION {self._name} WITH (TIMEOUT = '1 s'{begin})"
            found = c.execute(fetch.encode()).fetchall()
            if not found:
                continue  # while the broker is away, no time is complete
            *changes, (position, progressed, *_) = found
            assert progressed
            rows = self.rows.copy()
            for _, of_time in itertools.groupby((row for row in changes if not row[1]), lambda row: row[0]):
                for _, _, diff, *row in of_time:
                    rows[tuple(row)] += diff
                rows = Counter({row: count for row, count in rows.items() if count})
                self._check(rows)
                self.times += 1
            self.rows, self._position = rows, int(position)
            c.execute(f"ACKNOWLEDGE SUBSCRIPTION {self._name}".encode())
