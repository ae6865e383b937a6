"""The Spark host: its session, its end, its new beginning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.errors import Internal
from tidemill.query.spark import SparkHost

pytestmark = pytest.mark.spark


def test_session_is_warm_and_set_up_as_the_sql_layer_needs(spark: SparkHost) -> None:
    assert spark.ready
    conf = spark.session.conf
    assert conf.get("spark.sql.ansi.enabled") == "true"
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.session.sql("select 1 as x").toArrow().to_pydict() == {"x": [1]}
    with pytest.raises(Internal, match="already has a Spark host"):
        SparkHost()


# A host of its own needs a process of its own: PySpark knows one JVM per process.
_LIFE = """
import os, signal, sys, time
from pathlib import Path
from tidemill.errors import TidemillError, Unavailable
from tidemill.query import SparkHost, collect, run
from tidemill.types.model import INT8, Column

ID = [Column("id", INT8)]
told = []
scratch = Path(sys.argv[1])
host = SparkHost("local[1]", scratch=scratch, driver_memory_mb=512, warm_up=False, on_death=told.append)
try:
    host.session
    raise SystemExit("a session before its time")
except Unavailable as e:
    assert e.primary == "Spark is still starting", e
host.wait(300)
stream = run(host, "select id from range(0, 10000000, 1, 50)", {}, ID)
next(stream)
os.kill(host.pid, signal.SIGKILL)
try:
    for _ in stream:
        pass
    raise SystemExit("a result that was cut off was taken for whole")
except Unavailable as e:
    assert e.primary == "the Spark process has ended", e
    assert "exit status -9" in e.detail, e
# Whoever reads may notice before the watcher has told.
deadline = time.monotonic() + 120
while not told and time.monotonic() < deadline:
    time.sleep(0.01)
assert not host.ready and told == [host.failure], told
host.restart()
host.wait(300)
assert collect(host, "select 7L as id", {}, ID)["id"].to_pylist() == [7]
host.stop()
host.stop()
try:
    host.wait(1)
    raise SystemExit("stopped, and yet a session")
except Unavailable as e:
    assert e.primary == "Spark was stopped", e
print("good")
"""


@pytest.mark.timeout(900)
def test_a_killed_jvm_is_noticed_and_started_again(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _LIFE, str(tmp_path / "spark")], capture_output=True, text=True, timeout=800
    )
    assert (run.returncode, run.stdout) == (0, "good\n"), run.stderr
    # Nothing of the JVM's own reaches the terminal: what it has to say stands in its log.
    assert not [x for x in run.stderr.splitlines() if any(w in x for w in ("WARN", "log4j", "incubator"))]


# Stopped at any moment of its start, a host is gone at once: its JVM too.
_STOPPED = """
import sys, time
from pathlib import Path
from tidemill.query import SparkHost

host = SparkHost("local[1]", scratch=Path(sys.argv[1]), driver_memory_mb=512)
time.sleep(float(sys.argv[2]))
assert not host.ready
began = time.monotonic()
host.stop()
print(time.monotonic() - began)
"""


@pytest.mark.parametrize("after", ["0", "0.7", "2.5"])
def test_a_host_that_is_stopped_while_it_starts_ends_soon(tmp_path: Path, after: str) -> None:
    folder = tmp_path / "spark"
    run = subprocess.run(
        [sys.executable, "-c", _STOPPED, str(folder), after], capture_output=True, text=True, timeout=400
    )
    assert run.returncode == 0, run.stderr
    # A JVM alone needs longer than this until it answers on a busy machine; the imports of PySpark count.
    assert float(run.stdout) < 60
    assert str(folder) not in _commands()


def _commands() -> str:
    """The command lines of all processes."""
    texts: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue  # it has ended meanwhile
    return "\n".join(texts)


_EARLY = """
import sys, threading
from pathlib import Path
from tidemill.query import SparkHost, collect
from tidemill.types.model import INT8, Column

asked = threading.Event()
host = SparkHost(
    "local[1]", scratch=Path(sys.argv[1]), driver_memory_mb=512, also_warm=lambda _: asked.wait(300)
)
assert not host.usable and not host.ready
host.wait_usable()
try:
    rows = collect(host, "select id from range(0, 3)", {}, [Column("id", INT8)])
    assert rows.num_rows == 3 and host.usable and not host.ready
finally:
    asked.set()
host.wait(300)
assert host.ready and not host.busy
host.stop()
assert not host.usable
"""


def test_a_query_does_not_wait_for_what_is_warmed_up(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _EARLY, str(tmp_path)], capture_output=True, text=True, timeout=400
    )
    assert run.returncode == 0, run.stdout + run.stderr


_ELSEWHERE = """
import sys, time
from pathlib import Path
from tidemill.query import SparkHost, spark

spark.FIRST_QUERY_SECONDS = 600
host = SparkHost("local[1]", scratch=Path(sys.argv[1]), driver_memory_mb=512)
host.wait_usable()  # and then for what comes with the ticks, which begin when Spark is warm
try:
    host.wait(300)
    assert host.ready
finally:
    host.stop()
"""


def test_the_warm_up_does_not_wait_for_a_query_that_waits_for_it(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, str(tmp_path)], capture_output=True, text=True, timeout=400
    )
    assert run.returncode == 0, run.stdout + run.stderr
