"""Install the peers, once per user, and run them.

Called by `bench_kafka`, and by `bench_cdcv2` for its one peer. Python ones get an environment of their own
below the cache folder, Java archives come as `tidemill dev` fetches its own, those in Rust are built by
cargo. A peer that cannot be had raises `Missing`, which the benchmark shows in the peer's place: it is never
left out in silence.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from bench.kafka.load import SCHEMA, Fold
from bench.kafka.memory import Memory, Watch
from tidemill.dev.jars import Bundle, cache_folder, fetch
from tidemill.errors import Unavailable
from tidemill.query.java import find_java

HERE = Path(__file__).resolve().parent
# The heap of a peer's JVM, or what it may manage: more than our server's heap, as it has no other processes.
MEMORY_MB = 3072
# An environment with Flink is 900 MB of packages; building librdkafka takes minutes on a busy machine.
INSTALL_SECONDS = 3600.0
RUN_SECONDS = 3600.0
SHOWN = 3000

FLINK_PACKAGES = ("apache-flink==2.3.0",)
FLINK_JARS = Bundle(
    "flink-paimon",
    (
        "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2",
        "org.apache.paimon:paimon-flink-2.0:2.0.0",
        "org.apache.flink:flink-shaded-hadoop-2-uber:2.8.3-10.0",
    ),
    alone=True,
)
DELTA_PACKAGES = ("delta-spark==4.4.1", "pyspark==4.2.0")
# The token provider of 4.2.0 was never published.
DELTA_JARS = Bundle(
    "spark-delta",
    (
        "io.delta:delta-spark_4.2_2.13:4.4.0",
        "io.delta:delta-storage:4.4.0",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.apache.commons:commons-pool2:2.12.1",
    ),
    alone=True,
)


class Missing(Exception):
    """The peer cannot be installed here; the text says why."""


class Failed(Exception):
    """The peer was started and did not get to its end."""


@dataclass(frozen=True, slots=True)
class Run:
    seconds: float
    memory: Memory


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that is ready to run. Broker, topic and the place of the result come between `command` and
    `arguments`."""

    name: str
    command: tuple[str, ...]
    arguments: tuple[str, ...] = ()

    def run(self, bootstrap: str, topic: str, fold: Fold | None) -> Run:
        """One catch-up with the topic, from nothing; checked against the fold (None: the ceiling's reading
        alone, which has no result)."""
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-peer-") as folder:
            out = Path(folder) / "out"
            given = [bootstrap, topic, *([str(out)] if fold is not None else []), *self.arguments]
            seconds, memory = self._run([*self.command, *given], Path(folder))
            if fold is not None:
                fold.check(_result(out))
        return Run(seconds, memory)

    def _run(self, command: Sequence[str], folder: Path) -> tuple[float, Memory]:
        environment = {**os.environ, "JAVA_HOME": str(find_java().home), "TMPDIR": str(folder)}
        for name in ("SPARK_HOME", "PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            environment.pop(name, None)
        log = folder / "log"
        with ExitStack() as stack:
            errors = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
            watch = stack.enter_context(Watch(process.pid))
            try:
                output, _ = process.communicate(timeout=RUN_SECONDS)
            except BaseException:
                process.kill()
                process.wait()
                raise
        if process.returncode != 0:
            end = log.read_bytes()[-SHOWN:].decode(errors="replace")
            raise Failed(f"{self.name} ended with {process.returncode}:\n{end}")
        for line in output.decode(errors="replace").splitlines():
            if line.startswith("{"):
                return float(json.loads(line)["seconds"]), watch.peak
        raise Failed(f"{self.name} did not tell how long it took")


def _result(out: Path) -> Iterator[pl.DataFrame]:
    """A file of JSON lines, or a folder of such files beside others."""
    names = [out] if out.is_file() else [p for p in out.rglob("*") if p.is_file() and p.name[0] not in "._"]
    for name in names:
        # A writer leaves empty files too.
        if name.stat().st_size > 0:
            yield pl.read_ndjson(name, schema={"key": pl.String, **SCHEMA})


def ceiling() -> Peer:
    """librdkafka, a JSON parser and a hash map, in Rust."""
    return Peer("the bare ceiling", (str(built("ceiling")),))


def built(name: str) -> Path:
    """The program of a folder beside this file, built by cargo. Raises Missing."""
    cargo = shutil.which("cargo")
    if cargo is None:
        raise Missing("there is no cargo on the PATH (install Rust)")
    # Built outside of the repository, where cargo may leave its lock file.
    folder = cache_folder() / f"bench-{name}"
    shutil.copytree(HERE / name, folder, dirs_exist_ok=True)
    _install(name, [cargo, "build", "--release", "--manifest-path", str(folder / "Cargo.toml")])
    return folder / "target" / "release" / name


def flink() -> Peer:
    """Flink SQL, upsert-kafka into a Paimon table."""
    python = environment("flink", FLINK_PACKAGES)
    return Peer(
        "Flink -> Paimon",
        (str(python), str(HERE / "flink_paimon.py")),
        (str(_jars(FLINK_JARS)), str(MEMORY_MB)),
    )


def delta(batch: int) -> Peer:
    """Structured Streaming and a MERGE for each batch of so many messages."""
    python = environment("delta", DELTA_PACKAGES)
    return Peer(
        f"Spark + Delta MERGE, batches of {batch:,}",
        (str(python), str(HERE / "spark_delta.py")),
        (str(_jars(DELTA_JARS)), str(MEMORY_MB), str(batch)),
    )


def _jars(bundle: Bundle) -> Path:
    try:
        return fetch(bundle, lambda text: print(f"  {text}", end="\r", file=sys.stderr, flush=True))
    except Unavailable as e:
        raise Missing(str(e)) from e


def environment(name: str, packages: Sequence[str]) -> Path:
    """The Python of an environment with these packages."""
    folder = cache_folder() / f"bench-{name}"
    stamp = folder / "installed"
    python = folder / "bin" / "python"
    wanted = "\n".join(packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"  installing {' '.join(packages)} into an environment of its own, once", flush=True)
    venv.create(folder, clear=True, with_pip=True)
    _install(name, [str(python), "-m", "pip", "install", "--quiet", *packages])
    stamp.write_text(wanted)
    return python


def _install(name: str, command: Sequence[str]) -> None:
    run = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
        check=False,
    )
    if run.returncode != 0:
        raise Missing(f"{name} could not be installed:\n{(run.stdout + run.stderr)[-SHOWN:]}")
