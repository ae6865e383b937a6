"""A Spark standalone cluster from the pip package alone: a master and workers, on loopback ports that we
pick.

Each worker has a temporary folder and a loopback address of its own, as if it were a machine of its own: what
its executors keep there, the others do not see. Stopped by process ids.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pyspark
from cluster_world import descendants, kill9, until

from tidemill.dev.process import pick_ports
from tidemill.query.java import find_java

HOME = Path(pyspark.__file__).parent
# Of the master and of each worker; executors have theirs beside it.
DAEMON_HEAP = "256m"
EXECUTOR_MB = 1024


class Standalone:
    """One cluster; `close` ends everything that it started."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        """`environment` is for the executors."""
        self.folder = folder
        self._environment = dict(environment or {})
        self._port, self._page = pick_ports(2)
        self._java = find_java()
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, workers: int) -> None:
        self._master = self._start(
            *("master.Master", "master", "127.0.0.1"),
            *("--port", str(self._port), "--webui-port", str(self._page)),
        )
        until(self._answers, "the master does not answer")
        for number in range(workers):
            self.start_worker(number)

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def temporary(self, worker: int) -> Path:
        """The folder that stands for the worker's machine."""
        return self.folder / f"worker-{worker}" / "tmp"

    def start_worker(self, number: int) -> None:
        folder = self.folder / f"worker-{number}"
        self.temporary(number).mkdir(parents=True, exist_ok=True)
        self._workers[number] = self._start(
            "worker.Worker",
            folder.name,
            f"127.0.0.{number + 2}",
            *("--cores", "1", "--memory", f"{EXECUTOR_MB}m", "--webui-port", "0"),
            *("--work-dir", str(folder / "work"), self.master),
            temporary=self.temporary(number),
        )

    def worker(self, number: int) -> int:
        """Its process."""
        return self._workers[number].pid

    def kill_worker(self, number: int) -> None:
        """With all that it started, as when the machine's power is cut."""
        process = self._workers.pop(number)
        below = descendants(process.pid)
        process.kill()
        process.wait()
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                kill9(pid)

    def kill_master(self) -> None:
        if self._master is not None:
            self._master.kill()
            self._master.wait()
            self._master = None

    def close(self) -> None:
        processes = [*self._workers.values(), *([] if self._master is None else [self._master])]
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(
        self, name: str, log: str, host: str, *arguments: str, temporary: Path | None = None
    ) -> subprocess.Popen[bytes]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
        environment |= {
            "JAVA_HOME": str(self._java.home),
            "SPARK_HOME": str(HOME),
            "SPARK_DAEMON_MEMORY": DAEMON_HEAP,
            "SPARK_LOCAL_IP": host,
            "PYSPARK_PYTHON": sys.executable,
        }
        options = "-XX:+UseSerialGC"
        if temporary is not None:
            environment |= self._environment
            environment |= {"TMPDIR": str(temporary), "SPARK_LOCAL_DIRS": str(temporary)}
            options += f" -Djava.io.tmpdir={temporary}"
        environment["SPARK_DAEMON_JAVA_OPTS"] = options
        # A script that becomes the JVM.
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", host]
        command += arguments
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / f"{log}.log", "ab") as output:
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def _answers(self) -> bool:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{self._page}", timeout=30),
        ):
            return True
        return False
