"""The running system: a data directory's environment, its catalog, Spark, the sessions, and the background
work.

Opened once by `serve`. The SQL port can answer as soon as `open` returns; Spark starts in the background. If
Spark fails, it is started again. If another server takes over the data directory, this engine ends through
`on_fatal`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.config import Config
from tidemill.engine.api import StartupOptions
from tidemill.engine.audit.log import audit_log
from tidemill.engine.ddl.secrets import secret_store
from tidemill.engine.dml.commits import Commits
from tidemill.engine.dml.write_locks import WriteLocks
from tidemill.engine.live_system import LiveSituation
from tidemill.engine.relations.system import SYSTEM_RELATIONS_BY_ID
from tidemill.engine.serve.background import Background
from tidemill.engine.session.controls import check_set_role
from tidemill.engine.session.logins import Logins
from tidemill.engine.session.planning_pool import PlanningPool
from tidemill.engine.session.session import EngineSession
from tidemill.engine.session.variables import RETAIN_PARAMETER, SYSTEM_PARAMETERS
from tidemill.errors import Notice, TidemillError
from tidemill.ingest.warm import WORKERS, warm_up
from tidemill.inputs.opened import SystemRows
from tidemill.persist.environment import Environment
from tidemill.query.settings import refuse_fixed
from tidemill.query.spark import SparkHost
from tidemill.time.oracle import Oracle

log = logging.getLogger(__name__)

# Threads for blocking work: reading and writing shards, planning, waiting for Spark. When all are busy,
# further statements wait for a free one; commits do not need any.
MAX_WORKERS = 64
# The minimum interval between starts of a JVM that fails repeatedly (no memory).
RESTART_SECONDS = 5.0
# Statements that wait longer than this for Spark send their client a notice.
SPARK_NOTICE_SECONDS = 0.5


class TidemillEngine:
    """Implements `api.Engine`."""

    def __init__(self, config: Config, environment: Environment, catalog: Catalog, spark: SparkHost) -> None:
        self.config = config
        self.environment = environment
        self.catalog = catalog
        self.spark = spark
        self.workers = ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="engine")
        self.planning = PlanningPool(self.workers)
        self._sessions: set[EngineSession] = set()
        self.audit = audit_log(config, environment.id)
        self._logins = Logins(config, catalog)
        self.secrets = secret_store(config, environment.id)
        self.secrets.sweep(catalog.state)
        catalog.on_change(self.secrets.follow)
        self._background = background = Background(
            config, environment, catalog, spark, self.secrets, self.workers, lambda: len(self._sessions)
        )
        self.collections = background.collections
        self.queries = background.queries
        self.hub = background.hub
        self.subscriptions = background.subscriptions
        self.ingestion = background.ingestion
        self.sources = background.sources
        self.views = background.views
        self.sinks = background.sinks
        self.write_locks = WriteLocks()
        self.commits = Commits(environment, catalog, self.write_locks, background.moved)
        self._closed = False

    @classmethod
    def open(cls, config: Config, *, on_fatal: Callable[[TidemillError], None]) -> TidemillEngine:
        """Takes the data directory and starts Spark. Raises `DirectoryHeld` and the errors of the store.
        Blocks, but not for Spark."""
        refuse_fixed(dict(config.spark_conf))
        environment = Environment.open(
            config.data_dir, options=config.s3_options(), take_over=config.take_over, on_lost=on_fatal
        )
        try:
            catalog = Catalog.open(environment)
        except BaseException:
            environment.close()
            raise
        holder: list[SparkHost] = []
        spark = SparkHost(
            config.spark_master,
            WORKERS | dict(config.spark_conf),
            scratch=Path(config.scratch_dir) / "spark" if config.scratch_dir else None,
            driver_memory_mb=_megabytes(config.spark_driver_memory),
            also_warm=warm_up,
            on_death=lambda _: _restart(holder[0]),
        )
        holder.append(spark)
        return cls(config, environment, catalog, spark)

    # -- interface of the server layer ----------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return self.spark.ready and self.environment.lost is None

    def open_session(self, options: StartupOptions, *, process_id: int) -> EngineSession:
        try:
            session = EngineSession(self, options, process_id, self._logins.role(options))
            check_set_role(session, session.variables.get("role"))
        except TidemillError as e:
            self.audit.login_refused(options.user, options.client_address, e.primary)
            raise
        self._sessions.add(session)
        if options.lasting:
            self.audit.logged_in(session)
        return session

    # -- logins -------------------------------------------------------------------------------------

    def stored_password(self, role: str) -> str | None:
        """The verifier of the role's password, for the server layer."""
        return self._logins.verifier(role)

    def system_value(self, name: str) -> str:
        """The value of a parameter that ALTER SYSTEM sets."""
        item = self.catalog.state.find_parameter(name)
        if item is not None:
            return item.value
        parameter = SYSTEM_PARAMETERS[name]
        if name == RETAIN_PARAMETER:
            return parameter.check(name, f"{self.config.retain_history}ms")
        return parameter.default

    @property
    def max_connections(self) -> int:
        return int(self.system_value("max_connections"))

    @property
    def login_key(self) -> bytes:
        return self._logins.key

    def login_refused(self, role: str, address: str, reason: str) -> None:
        self.audit.login_refused(role, address, reason)

    @property
    def sessions(self) -> list[EngineSession]:
        return list(self._sessions)

    def session(self, process_id: int) -> EngineSession | None:
        """The session with that process id."""
        return next((s for s in list(self._sessions) if s.process_id == process_id), None)

    def forget_session(self, session: EngineSession) -> None:
        self._sessions.discard(session)

    # -- for statements ----------------------------------------------------------------------------

    @property
    def oracle(self) -> Oracle:
        return self.environment.oracle

    async def wait_for_spark(self, session: EngineSession) -> None:
        """Waits until a Spark session exists; sends the client a notice if that takes long. Raises the error
        that prevents Spark from starting."""
        if self.spark.usable:
            return
        waiting = asyncio.ensure_future(session.blocking(self.spark.wait_usable))
        done, _ = await asyncio.wait({waiting}, timeout=SPARK_NOTICE_SECONDS)
        if not done:
            session.notice(Notice("Spark is starting; the statement runs as soon as it is there"))
        await session.interrupt.guard(waiting)

    def release(self, what: Callable[[], None]) -> None:
        """Runs it on a worker thread, without waiting; at once if the server is stopping."""
        try:
            self.workers.submit(what)
        except RuntimeError:  # the workers are gone
            what()

    def system_rows(self, session: EngineSession, catalog: CatalogState) -> SystemRows:
        """The rows of the system relations for this session now."""
        situation = self.situation(session, catalog)
        return lambda relation_id: SYSTEM_RELATIONS_BY_ID[relation_id].table(situation)

    def situation(self, session: EngineSession, catalog: CatalogState) -> LiveSituation:
        return LiveSituation(self, session, catalog)

    def close(self) -> None:
        """Ends everything in order: queued commits finish, the directory is released. Blocks. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._background.stop()
        self.workers.shutdown(wait=False, cancel_futures=True)
        self._background.close()
        self.audit.close()
        self.environment.close()
        self.spark.stop()


def _restart(spark: SparkHost) -> None:
    def later() -> None:
        try:
            spark.restart()
        except TidemillError as e:
            log.info("Spark is not started again: %s", e.primary)

    timer = threading.Timer(RESTART_SECONDS, later)
    timer.daemon = True
    timer.start()


def _megabytes(size: str) -> int:
    number, unit = int(size[:-1]), size[-1]
    return max(1, number * {"k": 1, "m": 1024, "g": 1024 * 1024}[unit] // 1024)
