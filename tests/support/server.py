"""The real server as a process: `tidemill serve` on loopback ports that we pick, stopped by its process id.

`server_process(data_dir)` is for tests that kill, restart or configure a server; the fixture `start_server`
does the same and cleans up. The fixture `server` is one server for the whole test run, ready (Spark warm),
for tests that only talk to it and keep to a database of their own. Whatever uses one of the two gets the
marker `server`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tidemill.dev.process import pick_ports

# The promise is three seconds on an idle machine; the tests run on busy ones.
SQL_SECONDS = 300.0
READY_SECONDS = 600.0
STOP_SECONDS = 120.0
# What stands for Java where a server needs no Spark: it says nothing, and ends with the server that holds its
# input.
SILENT_JAVA = "#!/bin/sh\nexec cat > /dev/null\n"
# A small heap and two cores: several servers may run beside each other in a test run.
SMALL = ("--spark-master", "local[2]", "--spark-driver-memory", "1g")


class ServerError(Exception):
    """The server did not do what the test needs; the text ends with the end of its log."""


class ServerProcess:
    """One server on one data directory. It can be started again after it was killed, on ports of its own
    each time. With `spark` off, Spark waits for a JVM that never speaks: for lives in which nothing is asked
    of it, which are then many times cheaper. Spark is warmed up only with `warm`: that would be most of the
    work of a short life."""

    def __init__(
        self, data_dir: str | Path, env: Mapping[str, str] | None = None, args: Sequence[str] = ()
    ) -> None:
        self.data_dir = str(data_dir)
        self.env = dict(env or {})
        self.args = tuple(args)
        self.spark = True
        self.warm = False
        self.sql_port = 0
        self.http_port = 0
        # How often it was started; each start has a log of its own.
        self.starts = 0
        self._log_base = Path(f"{self.data_dir}.log") if "://" not in self.data_dir else None
        self._process: subprocess.Popen[bytes] | None = None
        self.log_path = Path(os.devnull)

    @property
    def sql_dsn(self) -> str:
        return f"host=127.0.0.1 port={self.sql_port} user=materialize dbname=materialize connect_timeout=60"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> str:
        """What the current (or last) start wrote."""
        return self.log_path.read_text(errors="replace")

    def start(self, *, wait_sql: bool = True, wait_ready: bool = False) -> ServerProcess:
        assert self._process is None or self._process.poll() is not None, "the server runs already"
        self.starts += 1
        self.sql_port, self.http_port = pick_ports(2)
        base = self._log_base or Path(os.environ.get("TMPDIR", "/tmp")) / f"tidemill-{os.getpid()}-{id(self)}"
        self.log_path = base.with_name(f"{base.name}.{self.starts}")
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tidemill.cli", "serve", "--data-dir", self.data_dir]
        command += ["--sql-addr", f"127.0.0.1:{self.sql_port}", "--http-addr", f"127.0.0.1:{self.http_port}"]
        command += [*SMALL, *([] if self.warm else ["--no-spark-warm-up"]), *self.args]
        environ = {k: v for k, v in os.environ.items() if not k.startswith("TIDEMILL_")} | self.env
        if not self.spark:
            environ["JAVA_HOME"] = str(silent_java(base.with_name(f"{base.name}.java")))
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if wait_sql or wait_ready:
            self.wait_sql()
        if wait_ready:
            self.wait_ready()
        return self

    def wait_sql(self, seconds: float = SQL_SECONDS) -> None:
        """Until the SQL port answers a query."""
        deadline = time.monotonic() + seconds
        while True:
            self._must_run()
            try:
                with psycopg.connect(self.sql_dsn, autocommit=True) as connection:
                    connection.execute("SELECT 1")
                return
            except psycopg.OperationalError as e:
                if time.monotonic() > deadline:
                    raise self._error(f"no answer on the SQL port within {seconds:.0f} s: {e}") from e
                time.sleep(0.03)

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Until /readyz says that Spark is there, and warm if it is warmed up."""
        deadline = time.monotonic() + seconds
        while True:
            self._must_run()
            if self._readyz() == 200:
                return
            if time.monotonic() > deadline:
                raise self._error(f"not ready within {seconds:.0f} s")
            time.sleep(0.1)

    def _readyz(self) -> int:
        """The status of /readyz; 0 where nothing answers."""
        try:
            with urllib.request.urlopen(f"{self.http_url}/readyz", timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as e:
            return e.code
        except OSError:
            return 0

    def kill9(self) -> None:
        """SIGKILL, as a power cut for the process; what Spark started ends by itself when its pipe breaks."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def terminate(self) -> int:
        """SIGTERM and the exit status; a server that does not end is an error."""
        assert self._process is not None
        self._process.terminate()
        return self.wait_exit()

    def wait_exit(self, seconds: float = STOP_SECONDS) -> int:
        """Until it ends by itself (a failpoint, a fence); the exit status, negative for a signal."""
        assert self._process is not None
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise self._error(f"the server did not end within {seconds:.0f} s") from None

    def close(self) -> None:
        """Leave nothing behind. The group holds only what this server started."""
        if self._process is None:
            return
        self.kill9()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _must_run(self) -> None:
        if self.returncode is not None:
            raise self._error(f"the server ended with status {self.returncode}")

    def _error(self, text: str) -> ServerError:
        tail = "\n".join(self.log.splitlines()[-40:])
        return ServerError(f"{text}\n--- the end of {self.log_path}:\n{tail}")


def silent_java(home: Path) -> Path:
    """A JAVA_HOME."""
    (home / "bin").mkdir(parents=True, exist_ok=True)
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n')
    java = home / "bin" / "java"
    java.write_text(SILENT_JAVA)
    java.chmod(0o755)
    return home


@contextlib.contextmanager
def server_process(
    data_dir: str | Path,
    env: Mapping[str, str] | None = None,
    args: Sequence[str] = (),
    *,
    wait_ready: bool = False,
) -> Generator[ServerProcess, None, None]:
    """A server for the time of the block."""
    process = ServerProcess(data_dir, env, args)
    try:
        yield process.start(wait_ready=wait_ready)
    finally:
        process.close()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """`start_server(data_dir=None, env=None, args=(), wait_sql=True, wait_ready=False)`; all are ended with
    the test."""
    started: list[ServerProcess] = []

    def start(
        data_dir: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        *,
        wait_sql: bool = True,
        wait_ready: bool = False,
    ) -> ServerProcess:
        process = ServerProcess(data_dir or tmp_path / "data", env, args)
        started.append(process)
        return process.start(wait_sql=wait_sql, wait_ready=wait_ready)

    yield start
    for process in started:
        process.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the whole run, ready. Keep to a database or names of your own; never stop or
    reconfigure it."""
    home = tmp_path_factory.mktemp("server")
    files = ("--files-root", str(home / "files"))
    process = ServerProcess(home / "data", args=files)
    process.warm = True
    try:
        yield process.start(wait_ready=True)
    finally:
        process.close()


@pytest.fixture
def database(server: ServerProcess) -> Iterator[str]:
    """A database of the shared server for one test; it is dropped after it."""
    name = f"test_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute(f"CREATE DATABASE {name}".encode())
        yield name
        c.execute(f"DROP DATABASE {name} CASCADE".encode())


@contextlib.contextmanager
def connected(server: ServerProcess, database: str) -> Generator[psycopg.Connection[tuple[Any, ...]]]:
    """A session in that database."""
    dsn = server.sql_dsn.replace("dbname=materialize", f"dbname={database}")
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before -m looks at the markers: who uses a server is marked so, and who uses the one of the run."""
    for item in items:
        fixtures: set[str] = set(getattr(item, "fixturenames", ()))
        if fixtures & {"server", "start_server"}:
            item.add_marker(pytest.mark.server)
        if "server" in fixtures:
            item.add_marker(pytest.mark.shared)
