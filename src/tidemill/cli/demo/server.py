"""The demo's server: `tidemill serve` as a process, in a folder of the demo, on unused ports."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from tidemill.cli.demo.proof import SOURCE
from tidemill.cli.demo.screen import DemoState
from tidemill.dev.process import HOST, pick_ports

# Seconds until the SQL port must answer; the promise is three on an idle machine.
START_SECONDS = 180

_METRIC = re.compile(r"^(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


class DemoConnection:
    """One connection, for one thread at a time. `on_notice` gets the text of notices."""

    def __init__(self, port: int, on_notice: Callable[[str], None]) -> None:
        self._connection = psycopg.connect(
            host=HOST,
            port=port,
            user="materialize",
            dbname="materialize",
            autocommit=True,
            prepare_threshold=None,
        )

        def noticed(notice: psycopg.errors.Diagnostic) -> None:
            on_notice(notice.message_primary or "")

        self._connection.add_notice_handler(noticed)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Run statements; the rows of the first, if it has any."""
        cursor = self._connection.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self._connection.close()


class Server:
    """`tidemill serve` as a process of ours, in a folder of ours."""

    def __init__(self, folder: Path) -> None:
        self.sql_port, self._http_port = pick_ports(2)
        self.log = folder / "server.log"
        command = [sys.executable, "-m", "tidemill.cli", "serve", "--data-dir", str(folder / "data")]
        command += ["--sql-addr", f"{HOST}:{self.sql_port}", "--http-addr", f"{HOST}:{self._http_port}"]
        # Its own session: Ctrl-C in the terminal is for us, and we end the server ourselves.
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stderr=log, stdout=log, start_new_session=True)

    def connect(self, state: DemoState | None = None) -> DemoConnection:
        """With a `state`, the reason for a wait is shown there."""

        def notice(text: str) -> None:
            if state is not None:
                state.waiting = text

        return DemoConnection(self.sql_port, notice)

    def wait(self, state: DemoState, stop: threading.Event) -> DemoConnection | None:
        """The first connection, or None when the person ended it meanwhile."""
        deadline = time.monotonic() + START_SECONDS
        while not stop.is_set():
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with status {self._process.returncode}")
            try:
                return self.connect(state)
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"no answer on the SQL port for {START_SECONDS} s") from None
                time.sleep(0.05)
        return None

    def metrics(self) -> dict[str, float]:
        """Of our source, by name; those with a phase as `name:phase`."""
        with urllib.request.urlopen(f"http://{HOST}:{self._http_port}/metrics", timeout=60) as answer:
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
