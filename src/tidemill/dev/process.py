"""One program that we started: its log, whether it is ready, and how it ends.

Called by `broker`, `registry`, `connect` and `postgres`, which know the command and what "ready" means. A
program that dies or does not get ready is told with the end of its log. It is ended by its process id, and
never outlives an orderly end of this process; Ctrl-C reaches this process alone, so that programs can be
stopped in their order.
"""

from __future__ import annotations

import atexit
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tidemill.errors import Unavailable
from tidemill.query.java import find_java

HOST = "127.0.0.1"
# Below the ports that Linux gives to outgoing connections (32768 and up): nobody takes one of ours by chance
# while its program is down between a kill and a restart.
PORTS = range(20_000, 32_000)
# TERM takes a broker 1-3 s on a quiet machine; what has not ended after this long is killed.
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05
# A Java stack trace with its cause, and what came before it.
SHOWN_LINES = 40
SHOWN_BYTES = 64 << 10


class Child:
    """A program that can be started again after it ended, in the same folder. `name` is for people."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        # Its output of all starts, one after another.
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        # Where in the log the current start begins.
        self._log_from = 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def start(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        assert not self.running, f"{self.name} runs already"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                user=user,
            )
        atexit.register(self.kill)

    def wait_ready(self, ready: Callable[[], bool], seconds: float) -> None:
        """Until `ready()`; it is asked again and again, and may raise OSError for "not yet"."""
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while True:
            status = self._process.poll()
            if status is not None:
                raise self._failed(f"{self.name} ended with status {status} instead of starting")
            try:
                if ready():
                    return
            except OSError:
                pass
            if time.monotonic() > deadline:
                self.kill()
                raise self._failed(f"{self.name} was not ready within {seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def stop(self, *, interrupt: bool = False) -> None:
        """TERM (or INT), and KILL for one that does not listen."""
        if self.running:
            self._signal(signal.SIGINT if interrupt else signal.SIGTERM)
            assert self._process is not None
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """kill -9, as a power cut for the program."""
        atexit.unregister(self.kill)
        if self.running:
            self._signal(signal.SIGKILL)
            assert self._process is not None
            self._process.wait()

    def tail(self) -> str:
        """The end of what the current (or last) start wrote."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(self._log_from, log.seek(0, os.SEEK_END) - SHOWN_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-SHOWN_LINES:])

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _failed(self, primary: str) -> Unavailable:
        return Unavailable(primary, detail=f"the end of {self.log}:\n{self.tail()}")


def java_command(
    heap_mb: int, classpath: str, main: str, arguments: Sequence[str] = (), options: Sequence[str] = ()
) -> list[str]:
    """A small JVM that starts fast: what runs here serves one person or one test run."""
    java = str(find_java().home / "bin" / "java")
    small = [f"-Xmx{heap_mb}m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [java, *small, *options, "-cp", classpath, main, *arguments]


def pick_ports(count: int) -> list[int]:
    """Loopback ports that nobody uses now."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().choice(PORTS)
        if port not in ports and is_free(port):
            ports.append(port)
    return ports


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do it: a port whose last connections are still winding down is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def must_be_free(*ports: int) -> None:
    """Before a program is started on them: else what answers there would be taken for it."""
    for port in ports:
        if not is_free(port):
            raise Unavailable(
                f"port {port} of {HOST} is taken",
                hint="another program listens there; choose another port, or stop it",
            )


def answers(port: int) -> bool:
    """Whether something accepts connections there."""
    with socket.create_connection((HOST, port), timeout=1.0):
        return True
