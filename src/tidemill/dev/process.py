"""Child process: its log, its readiness, and its end.

Base of `Broker`, `Registry`, `Connect` and `Postgres`, which define the command and the readiness check. If
the program dies or does not become ready, the error contains the end of its log. It is stopped by its process
id, and does not outlive this process, however that ends. Ctrl-C reaches only this process, so the programs
can be stopped in order.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidemill.errors import Unavailable
from tidemill.query.java import find_java

HOST = "127.0.0.1"
# Below the ports that Linux uses for outgoing connections (32768 and up), so that no connection takes a port
# of ours while its program is down between a kill and a restart.
PORTS = range(20_000, 32_000)
# After TERM, a broker needs 1-3 s on a quiet machine. Processes that have not ended after this time are
# killed.
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05
# Enough for a Java stack trace with its cause, and the lines before it.
SHOWN_LINES = 40
SHOWN_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The user of a program, if it is not ours. It has none of our groups."""

    user: int
    group: int


class LocalProgram(ABC):
    """A program that can be started again after it ended, with the same folder and ports. `name` is for
    messages."""

    _stop_signal = signal.SIGTERM

    def __init__(self, name: str, folder: Path, log_name: str) -> None:
        self.name = name
        self.folder = folder.absolute()
        # The output of all starts.
        self.log = self.folder / log_name
        self._process: subprocess.Popen[bytes] | None = None
        # Ends the program when this process is gone.
        self._guard: subprocess.Popen[bytes] | None = None
        # The position in the log at which the current start begins.
        self._log_from = 0

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @abstractmethod
    def start(self) -> None:
        """Start the program, also again after an end. Returns when it is ready."""

    def _launch(self, command: Sequence[str], *, identity: ProcessIdentity | None = None) -> None:
        assert not self.running, f"{self.name} runs already"
        # Of an earlier run that ended without `stop`.
        self.kill()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                user=identity.user if identity else None,
                group=identity.group if identity else None,
                extra_groups=[] if identity else None,
            )
        # Waits for the end of its input, whose other end this process holds: kill -9 closes it, too.
        self._guard = subprocess.Popen(
            ["sh", "-c", 'read -r _; kill "$1"', "sh", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _wait_ready(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until `ready()` returns True. It is called repeatedly, and may raise OSError while the program
        is not ready."""
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

    def stop(self) -> None:
        """An orderly end, or KILL for a program that does not react."""
        if self._process is not None and self.running:
            self._process.send_signal(self._stop_signal)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        self.kill()

    def kill(self) -> None:
        """kill -9, as a power cut for the program."""
        if self._guard is not None:
            # First, so that it cannot end another program that gets the same process id.
            self._guard.kill()
            self._guard.communicate()
            self._guard = None
        if self._process is not None and self.running:
            self._process.kill()
            self._process.wait()

    def check(self) -> None:
        """Raise an error with the end of its log if the program has ended."""
        if self._process is not None and not self.running:
            raise self._failed(f"{self.name} ended with status {self._process.returncode}")

    def _tail(self) -> str:
        """The end of the output of the current (or last) start."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(self._log_from, log.seek(0, os.SEEK_END) - SHOWN_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-SHOWN_LINES:])

    def _failed(self, primary: str) -> Unavailable:
        return Unavailable(primary, detail=f"the end of {self.log}:\n{self._tail()}")


def java_command(
    heap_mb: int, classpath: str, main: str, arguments: Sequence[str] = (), options: Sequence[str] = ()
) -> list[str]:
    """A small JVM that starts fast, because these programs serve one user or one test run."""
    java = str(find_java().home / "bin" / "java")
    small = [f"-Xmx{heap_mb}m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [java, *small, *options, "-cp", classpath, main, *arguments]


def pick_ports(count: int) -> list[int]:
    """Unused ports on loopback."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().choice(PORTS)
        if port not in ports and is_free(port):
            ports.append(port)
    return ports


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Like the servers: a port with connections in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def must_be_free(*ports: int) -> None:
    """Check the ports before a program is started. Otherwise another program that answers there would be
    mistaken for it."""
    for port in ports:
        if not is_free(port):
            raise Unavailable(
                f"port {port} of {HOST} is taken",
                hint="another program listens there; choose another port, or stop it",
            )


def answers(port: int) -> bool:
    """Whether a program accepts connections there."""
    with socket.create_connection((HOST, port), timeout=1.0):
        return True
