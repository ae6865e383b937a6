"""The one Spark session of a server.

`SparkHost` starts the JVM and the session in a background thread, so that the SQL port answers at once. It
reports when the session exists, so that queries can run. Meanwhile it warms the session up (the first runs of
a plan shape are several times slower), and then reports that it is ready. It detects the death of the JVM,
reports the cause, and can start a new one. The server owns one host; the tests share one. PySpark keeps its
gateway in class attributes, so a process can have one host at a time: a second one is refused.

Threads: `session` may be used from any thread. PySpark pins a JVM thread to each Python thread, so job groups
and pools set in one thread do not affect another. `query.run` sets them.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tidemill.errors import Internal, TidemillError, Unavailable
from tidemill.query import class_archive
from tidemill.query.executors import Executors
from tidemill.query.java import Java, find_java
from tidemill.query.metrics import QueryMetrics
from tidemill.query.out_of_memory import Exhausted
from tidemill.query.session_slots import SessionSlot, Slots
from tidemill.query.settings import (
    EXECUTOR_LOG4J,
    EXECUTOR_LOG4J_FILE,
    LOG4J,
    SettingPlace,
    cores,
    driver_memory_mb,
    place,
    refuse_fixed,
    spark_conf,
)
from tidemill.scratch import Scratch

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger(__name__)

# A JVM on a loaded two-core machine needs 5 to 15 s to hand over its port; after this it is taken for stuck.
START_TIMEOUT = 120.0
# How long `stop` waits for the JVM to end before it kills it.
STOP_TIMEOUT = 10.0
# So long the warm-up is put off for the first query that waited for the session: on a busy machine it takes
# ten seconds, and would take longer if both wanted the processor.
FIRST_QUERY_SECONDS = 20.0
# A query that has not taken a session so soon waits for something else: for a source, perhaps, whose ticks
# begin only after the warm-up.
FIRST_LEASE_SECONDS = 1.0
# Threads of the host's own: one wave ahead per stream that is being read, and cancels.
WORKERS = 32
# How long after a broken connection the process is given to be seen dead.
DEATH_NOTICE = 2.0
# The path of a Unix socket must fit sockaddr_un (108 bytes); Spark adds `/.<uuid>.sock`, 43 bytes.
_SOCKET_DIR_MAX = 60
# Variables that would make PySpark start something other than this module requests.
_HOSTILE_ENV = (
    "PYSPARK_SUBMIT_ARGS",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "SPARK_REMOTE",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_LOCAL_DIRS",
    "SPARK_LOCAL_IP",
    "MASTER",
)

_owner_lock = threading.Lock()
_owner: SparkHost | None = None


def _claim(host: SparkHost) -> None:
    global _owner
    with _owner_lock:
        if _owner is not None:
            raise Internal("this process already has a Spark host")
        _owner = host


def _release(host: SparkHost) -> None:
    global _owner
    with _owner_lock:
        if _owner is host:
            _owner = None


class SparkHost:
    """Starts on construction; see the module's text. `scratch` is a folder that only this host writes to
    (made if absent; a temporary one by default), which holds shuffle files, sockets and Spark's own log."""

    def __init__(
        self,
        master: str = "local[*]",
        conf: Mapping[str, str] | None = None,
        *,
        scratch: Path | None = None,
        driver_memory_mb: int | None = None,
        warm_up: bool = True,
        also_warm: Callable[[SparkHost], None] | None = None,
        on_death: Callable[[TidemillError], None] | None = None,
    ) -> None:
        self.master = master
        self.place = place(master)
        self.metrics = QueryMetrics()
        self._conf = dict(conf or {})
        refuse_fixed(self._conf)
        self._driver_mb = driver_memory_mb
        self._warm_up = warm_up
        # Callbacks of other layers that run before the host is ready: the jobs of the tick.
        self._also_warm = also_warm
        # Called once, from a background thread, when the JVM ends without a request.
        self._on_death = on_death
        _claim(self)
        # The folder if it is ours to delete.
        self._own_scratch: Scratch | None = None
        if scratch is None:
            try:
                self._own_scratch = Scratch()
            except BaseException:
                _release(self)
                raise
            self.scratch = self._own_scratch.path
        else:
            self.scratch = scratch.resolve()
        # For Unix sockets, when the path of `scratch` is too long for them.
        self._sockets: Scratch | None = None
        # Guards the fields below; waited on for `_settled`.
        self._lock = threading.Lock()
        self._session: Any = None  # the SparkSession once it exists, before it is warm
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: TidemillError | None = None  # the reason why there is no session; cleared by restart
        self._warm = False
        self._stopping = False
        self._awaited = threading.Event()  # a query waits for the session
        self._started = threading.Event()  # there is a session, or it failed
        self._settled = threading.Event()  # ready or failed
        self._slots: Slots | None = None  # sessions for queries, of the present JVM
        self._executors: Executors | None = None  # of the present session, where they are processes
        self._exhausted: Exhausted | None = None  # of the present session, where they are not
        self._given_up = ""  # why we ended the JVM, for the code that detects its end
        self._settings: dict[str, str] = {}  # all that the present session was started with
        # For work that must not run on a caller's thread: waves ahead of a reader, cancels. Idle threads cost
        # nothing.
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="spark-worker")
        # Seconds from the start to a session and to a warm one; None before. For logs, metrics and the bench.
        self.started_seconds: float | None = None
        self.ready_seconds: float | None = None
        self._begin()

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._start, name="spark-start", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """True once a query would run at full speed, and as long as the JVM lives."""
        with self._lock:
            return self._warm and self._failure is None

    @property
    def failure(self) -> TidemillError | None:
        """The reason why Spark is not available, if it failed to start or died."""
        with self._lock:
            return self._failure

    @property
    def usable(self) -> bool:
        """True once a query would run at all, and as long as the JVM lives."""
        return self._started.is_set() and self.failure is None

    @property
    def busy(self) -> bool:
        """True while a query has a session."""
        with self._lock:
            slots = self._slots
        return slots is not None and slots.leased > 0

    def wait_usable(self) -> Any:
        """The session, perhaps not yet warm; raises `Unavailable` when it failed."""
        self._awaited.set()
        self._started.wait()
        return self.session

    def wait(self, timeout: float | None = None) -> Any:
        """The session, warm; raises `Unavailable` when it failed, or is not ready within `timeout`
        seconds."""
        if not self._settled.wait(timeout):
            raise Unavailable(
                "Spark is still starting", hint="try again in a few seconds; /readyz tells when it is ready"
            )
        return self.session

    @property
    def session(self) -> Any:
        """The SparkSession (perhaps not yet warm); raises `Unavailable` if none exists."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._session is None:
                raise Unavailable(
                    "Spark is still starting",
                    hint="try again in a few seconds; /readyz tells when it is ready",
                )
            return self._session

    @property
    def heap_bytes(self) -> int:
        """Of the driver's JVM, at most."""
        return (self._driver_mb or driver_memory_mb()) << 20

    @property
    def cores(self) -> int:
        """How many tasks run at once, as far as is known now; at least 1."""
        if self.place is not SettingPlace.REMOTE:
            return cores(self.master)
        with self._lock:
            executors = self._executors
        try:
            return max(1, executors.cores()) if executors is not None else cores(self.master)
        except Exception as e:  # the JVM died during the call; the caller of the job finds the reason
            log.debug("the executors could not be counted: %s", e)
            return cores(self.master)

    @property
    def deserted(self) -> float:
        """For how many seconds nothing could run, for lack of executors; 0 if there are some."""
        with self._lock:
            executors = self._executors
        try:
            return 0.0 if executors is None else executors.missing
        except Exception as e:
            log.debug("the executors could not be counted: %s", e)
            return 0.0

    @property
    def pid(self) -> int | None:
        """The JVM's process, while it runs."""
        with self._lock:
            return None if self._process is None else self._process.pid

    def stop(self) -> None:
        """End the session and the JVM; idempotent. Running queries fail with `Unavailable`."""
        with self._lock:
            self._stopping = True
            process = self._process
        if process is not None and not self._warm:
            process.kill()  # warming up: nothing to end in order
        deadline = time.monotonic() + START_TIMEOUT
        while self._thread.is_alive() and time.monotonic() < deadline:
            # Again and again: the JVM may appear only after the first look.
            self._kill_starting()
            self._thread.join(0.1)
        self._tear_down()
        with self._lock:
            if self._failure is None:
                self._failure = Unavailable("Spark was stopped", sqlstate="57P01")
        self._started.set()
        self._settled.set()
        self._workers.shutdown(wait=False, cancel_futures=True)
        if self._own_scratch is not None:
            self._own_scratch.remove()
        _release(self)

    def _kill_starting(self) -> None:
        """PySpark returns its process only when the JVM has answered, which takes seconds. Until then it is a
        child of this process whose command names our folder. Where the system cannot list children, `stop`
        waits for the JVM."""
        for task in Path("/proc/self/task").glob("*/children"):
            for pid in task.read_text().split():
                try:
                    if str(self.scratch).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(int(pid), signal.SIGKILL)
                except OSError:
                    continue  # it has ended meanwhile

    def restart(self) -> None:
        """After a death: start a new JVM in the background; `wait` waits for it. Temporary views are lost
        with the old one, so queries register theirs each time."""
        self._thread.join(START_TIMEOUT)
        self._tear_down()
        with self._lock:
            if self._stopping:
                raise Unavailable("Spark was stopped", sqlstate="57P01")
            self._failure = None
            self._warm = False
            self._awaited.clear()
            self._started.clear()
            self._settled.clear()
        self._begin()

    def lease(self, *, small: bool) -> AbstractContextManager[SessionSlot]:
        """A session that is this caller's alone inside the `with`; see `session_slots`."""
        with self._lock:
            slots = self._slots
        if slots is None:
            self.session  # raises why  # noqa: B018
            raise Internal("there is a session but no slots")
        return slots.lease(small=small)

    def background(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run it on one of the host's own threads, which keep their JVM threads."""
        return self._workers.submit(call, *args, **kwargs)

    @property
    def sql_settings(self) -> dict[str, str]:
        """The SQL settings that the tasks of every job must see."""
        return {k: v for k, v in self._settings.items() if k.startswith("spark.sql.")}

    def settle_death(self) -> TidemillError | None:
        """After a broken connection: the reason, if it is that the JVM ended (noticed a moment later than the
        connection)."""
        with self._lock:
            process = self._process
        if process is not None:
            try:
                process.wait(DEATH_NOTICE)
            except subprocess.TimeoutExpired:
                return None
        for _ in range(100):
            if self.failure is not None:
                return self.failure
            time.sleep(0.01)
        return None

    # -- starting ----------------------------------------------------------------------------------

    def _start(self) -> None:
        began = time.monotonic()
        try:
            java = find_java()
            log.info("starting Spark with Java %d from %s", java.version, java.source)
            session = self._launch(java)
            executors = None
            if self.place is not SettingPlace.ONE_JVM:
                executors = Executors(session.sparkContext, self.master)
            with self._lock:
                self._session = session
                self._slots = Slots(session)
                self._executors = executors
                self._given_up = ""
                self.started_seconds = time.monotonic() - began
            if self.place is SettingPlace.ONE_JVM:
                self._watch_memory()
            if executors is not None:
                executors.wait(lambda: self._stopping or self._failure is not None)
                self._watch_executors(executors)
            self._started.set()
            log.info("Spark answers after %.1f s, and is warming up", self.started_seconds)
            if self._warm_up:
                from tidemill.query.warm import warm_up

                self._let_first_query_go()
                # Beside each other: the one starts workers in Python, the other makes the JVM load classes.
                also = self._also_warm and self.background(self._also_warm, self)
                warm_up(self)
                if also is not None:
                    also.result()
            with self._lock:
                self._warm = True
                self.ready_seconds = time.monotonic() - began
            log.info(
                "Spark is ready after %.1f s (Java %d from %s)", self.ready_seconds, java.version, java.source
            )
        except BaseException as e:
            failure = e if isinstance(e, TidemillError) else self._describe(e)
            failure.__cause__ = None if failure is e else e
            with self._lock:
                # A death that was noticed first says more than the broken connection that follows from it.
                self._failure = self._failure or failure
            if not self._stopping:
                log.error("Spark did not start: %s", self._failure)
                if self.place is SettingPlace.REMOTE:
                    # The cluster may become available later: the JVM's end triggers the next start.
                    self._give_up(str(failure.detail or failure.primary))
        finally:
            self._started.set()
            self._settled.set()

    def _let_first_query_go(self) -> None:
        """Returns when a query that waited for the session has been answered, or soon enough."""
        with self._lock:
            slots = self._slots
        began = time.monotonic()
        while self._awaited.is_set() and slots is not None and not slots.finished:
            limit = FIRST_QUERY_SECONDS if slots.leased else FIRST_LEASE_SECONDS
            if self._stopping or time.monotonic() > began + limit:
                return
            time.sleep(0.02)

    def _launch(self, java: Java) -> Any:
        import pyspark
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession

        folder = self.scratch
        for name in ("local", "tmp", "conf"):
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "conf" / "log4j2.properties").write_text(LOG4J.format(folder=folder))
        (folder / "conf" / EXECUTOR_LOG4J_FILE).write_text(EXECUTOR_LOG4J)
        socket_dir = folder / "sock"
        if len(str(socket_dir)) > _SOCKET_DIR_MAX:
            self._sockets = Scratch()
            socket_dir = self._sockets.path
        # Unix sockets carry no secret: only the folder's mode keeps other users out.
        socket_dir.mkdir(exist_ok=True, mode=0o700)

        for name in _HOSTILE_ENV:
            os.environ.pop(name, None)
        os.environ["JAVA_HOME"] = str(java.home)
        os.environ["SPARK_HOME"] = os.path.dirname(pyspark.__file__)
        # Executors are started by what they find in the folder of settings, which is empty with an archive.
        archive = class_archive.find(java) if self.place is SettingPlace.ONE_JVM else None
        os.environ["SPARK_CONF_DIR"] = str(archive.conf if archive else folder / "conf")
        # Workers must be the interpreter that has our packages; on other machines it may lie elsewhere.
        os.environ["PYSPARK_PYTHON"] = self._conf.get("spark.pyspark.python", sys.executable)
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        if self.place is SettingPlace.THIS_MACHINE:
            os.environ["SPARK_HOME"] = str(_spark_home(folder / "home"))
            # Else the pages of Spark's own master and workers would be open to other machines.
            os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        if self.place is SettingPlace.REMOTE:
            # As a setting it would also apply to the executors, whose machines have no such folder.
            os.environ["SPARK_LOCAL_DIRS"] = str(folder / "local")

        conf = SparkConf(loadDefaults=False)
        self._settings = spark_conf(
            self.master,
            folder,
            socket_dir,
            self._driver_mb,
            self._conf,
            archive.option if archive else "",
        )
        for key, value in self._settings.items():
            conf.set(key, value)
        output = open(folder / "jvm.log", "wb")  # noqa: SIM115 - the JVM writes to it as long as it lives
        try:
            with self._lock:
                if self._stopping:
                    raise Unavailable("Spark was stopped", sqlstate="57P01")
            # A separate process session: Ctrl-C on our terminal must not end the JVM before its queries have
            # ended.
            gateway: Any = launch_gateway(
                conf, {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
            )
        finally:
            output.close()
        with self._lock:
            self._process = gateway.proc
        threading.Thread(target=self._watch, args=(gateway.proc,), name="spark-watch", daemon=True).start()
        # It would write every failed query's Java stack to standard error; the client gets the error, `job`
        # counts it.
        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
        context = SparkContext(gateway=gateway, conf=conf)
        return SparkSession(context)

    def _describe(self, e: BaseException) -> TidemillError:
        lines = str(e).strip().split("\n")
        # The first line of a py4j error names the failed call; the cause is in the next line.
        why = lines[1].removeprefix(": ") if len(lines) > 1 and lines[1].startswith(": ") else lines[0]
        logs = self.scratch / ("jvm.log" if self.place is SettingPlace.ONE_JVM else "spark.log")
        return Unavailable(
            "Spark could not be started",
            detail=self._last_words() or why,
            hint=f"`tidemill doctor` checks what Spark needs; its log is {logs}",
        )

    def _last_words(self) -> str:
        """The last lines that the JVM wrote, without its chatter about flags and modules."""
        try:
            lines = (self.scratch / "jvm.log").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        telling = [x for x in lines if x.strip() and not x.startswith(("WARNING:", "\tat ", "NOTE:"))]
        return " / ".join(telling[-3:])[:500]

    # -- ending ------------------------------------------------------------------------------------

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with self._lock:
            if self._stopping or self._process is not process:
                return
            if self._given_up:
                self._failure = Unavailable(
                    f"Spark at {self.master} is not there", detail=self._given_up, hint="it is tried again"
                )
            else:
                self._failure = Unavailable(
                    "the Spark process has ended",
                    detail=f"exit status {code}" + (f": {words}" if (words := self._last_words()) else ""),
                    hint="a status of -9 or 137 means that the machine ran out of memory",
                )
            self._warm = False
            failure = self._failure
        log.error("%s", failure)
        if self._on_death is not None:
            self._on_death(failure)

    def _watch_executors(self, executors: Executors) -> None:
        """From now on, in a thread: when the cluster has no use for the session any more, end the JVM, so
        that its end is noticed as every other is."""

        def over() -> bool:
            with self._lock:
                return self._stopping or self._executors is not executors

        def watch() -> None:
            try:
                why = executors.watch(over)
                if why is not None:
                    self._give_up(why)
            except Exception as e:
                log.debug("the session could not be asked, its process is gone: %s", e)

        threading.Thread(target=watch, name="spark-executors", daemon=True).start()

    def _watch_memory(self) -> None:
        """From now on, in a thread."""
        with self._lock:
            process = self._process
            exhausted = self._exhausted = Exhausted(
                self.scratch / "jvm.log", self._empty_job, partial(self._end_exhausted, process)
            )

        def over() -> bool:
            with self._lock:
                return self._stopping or self._process is not process

        threading.Thread(
            target=exhausted.watch, args=(over, time.sleep), name="spark-memory", daemon=True
        ).start()

    def _empty_job(self) -> None:
        context = self.session.sparkContext
        context._jsc.setLocalProperty("spark.scheduler.pool", "probe")
        self.session._jsparkSession.range(1).count()

    def _end_exhausted(self, process: subprocess.Popen[bytes] | None, why: str) -> None:
        with self._lock:
            if process is None or self._stopping or self._process is not process:
                return
        log.error("Spark's JVM is ended: %s", why)
        process.kill()

    def ran_out_of_memory(self) -> None:
        """A query ran out of heap: check that the JVM is still usable. Returns at once."""
        with self._lock:
            exhausted = self._exhausted
        if exhausted is not None:
            exhausted.met()

    def _give_up(self, why: str) -> None:
        with self._lock:
            process = self._process
            self._given_up = why
        if process is not None:
            process.kill()

    def _tear_down(self) -> None:
        """Forget the session and the gateway, and make sure that the JVM is gone."""
        with self._lock:
            session, self._session = self._session, None
            self._slots = None
            self._executors = None
            process, self._process = self._process, None
        alive = process is not None and process.poll() is None
        if session is not None and alive:
            try:
                session.stop()
            except Exception as e:  # the JVM may die under the call
                log.info("Spark did not stop in order: %s", e)
        _forget_gateway()
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()  # the JVM ends when this pipe does
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._sockets is not None:
            self._sockets.remove()
            self._sockets = None


def _spark_home(folder: Path) -> Path:
    """As Spark's own, by links: executors beside the driver keep their logs in a folder `work` of it, and the
    package is not the place for that."""
    import pyspark

    folder.mkdir(exist_ok=True, mode=0o700)
    package = Path(pyspark.__file__).parent
    for name in ("bin", "jars", "python"):
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(package / name)
    return folder


def _forget_gateway() -> None:
    """PySpark keeps its connection in class attributes for the life of the process; a new JVM needs them
    empty."""
    import pyspark
    import pyspark.sql

    context: Any = pyspark.SparkContext
    session: Any = pyspark.sql.SparkSession
    if context._gateway is not None:
        try:
            context._gateway.shutdown()
        except Exception as e:
            log.debug("the gateway was gone already: %s", e)
    active = context._active_spark_context
    if active is not None and getattr(active, "_accumulatorServer", None) is not None:
        active._accumulatorServer.shutdown()
    context._gateway = None
    context._jvm = None
    context._active_spark_context = None
    session._instantiatedSession = None
    session._activeSession = None
