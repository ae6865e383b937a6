"""`tidemill dev` as a process, for tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tidemill.dev.process import pick_ports

READY_SECONDS = 300.0
GONE_SECONDS = 180.0


PORTS = {
    "kafka": ("--port", "--registry-port", "--connect-port", "--postgres-port"),
    "postgres": ("--port",),
    "kinesis": ("--port",),
}


class Command:
    """The command (`kafka`, `postgres`, `kinesis`), its output in a file, and the ports that it was told."""

    def __init__(self, folder: Path, *flags: str, upstream: str = "kafka") -> None:
        names = PORTS[upstream]
        self.ports = pick_ports(len(names))
        arguments = [part for name, port in zip(names, self.ports, strict=True) for part in (name, str(port))]
        self._out = folder / "out"
        # But for where the downloads are.
        kept = "TIDEMILL_DEV_CACHE"
        environ = {k: v for k, v in os.environ.items() if k == kept or not k.startswith("TIDEMILL_")}
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tidemill.cli", "dev", upstream, *arguments, *flags],
                stdout=out,
                stderr=out,
                env={**environ, "TMPDIR": str(folder)},
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._out.read_text()

    @property
    def postgres(self) -> str:
        """The connection string that it prints."""
        found = re.search(r'psql "(.*)"', self.output)
        assert found is not None, self.output
        return found[1]

    def wait_ready(self) -> None:
        until(lambda: "Ctrl-C ends it" in self.output or self.process.poll() is not None, READY_SECONDS)
        assert self.process.poll() is None, self.output


def until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)
