"""The running system: a data directory's environment, its catalog, Spark, the sessions, and the background
work.

Opened once by `serve`. The SQL port can answer as soon as `open` returns; Spark starts in the background. If
Spark fails, it is started again. If another server takes over the data directory, this engine ends through
`on_fatal`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidemill.catalog.store import Catalog
from tidemill.config import Config
from tidemill.engine.api import StartupOptions
from tidemill.engine.audit.log import audit_log
from tidemill.engine.ddl.external import External
from tidemill.engine.ddl.secrets import secret_store
from tidemill.engine.dml.commits import Commits
from tidemill.engine.dml.write_locks import WriteLocks
from tidemill.engine.read.waiting import Readiness
from tidemill.engine.serve.background import Background
from tidemill.engine.session.logins import Logins
from tidemill.engine.session.planning_pool import PlanningPool
from tidemill.engine.session.session import EngineSession
from tidemill.engine.session.system_parameters import SystemParameters
from tidemill.errors import TidemillError
from tidemill.ingest.warm import WORKERS, warm_up
from tidemill.persist.environment import Environment
from tidemill.query.settings import refuse_fixed
from tidemill.query.spark import SparkHost

log = logging.getLogger(__name__)

# Threads for blocking work: reading and writing shards, planning, waiting for Spark. When all are busy,
# further statements wait for a free one; commits do not need any.
MAX_WORKERS = 64
# The minimum interval between starts of a JVM that fails repeatedly (no memory).
RESTART_SECONDS = 5.0


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
        self.queries = background.queries
        self.subscriptions = background.subscriptions
        self.durable = background.durable
        self.sources = background.sources
        self.views = background.views
        self.arrangements = background.arrangements
        self.sinks = background.sinks
        self.readiness = Readiness(self.queries.collections, background.ingestion, self.views, catalog)
        self.parameters = SystemParameters(catalog, config.retain_history)
        self.external = External(
            self.secrets,
            config.files_root,
            environment.oracle.now,
            background.ingestion.waiting_transaction,
            background.ingestion.wait_bound,
            background.ingestion.read,
        )
        self.write_locks = WriteLocks()
        self.commits = Commits(environment, catalog, self.write_locks, background.moved)
        # Methods of `api.Engine`.
        self.stored_password, self.login_refused = self._logins.verifier, self.audit.login_refused
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
            warm_up=config.spark_warm_up,
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
            session.settings.check_role(session.variables.get("role"))
        except TidemillError as e:
            self.audit.login_refused(options.user, options.client_address, e.primary)
            raise
        self._sessions.add(session)
        if options.lasting:
            self.audit.logged_in(session.identity, process_id)
        return session

    @property
    def max_connections(self) -> int:
        return self.parameters.number("max_connections")

    @property
    def login_key(self) -> bytes:
        return self._logins.key

    @property
    def sessions(self) -> list[EngineSession]:
        return list(self._sessions)

    def session(self, process_id: int) -> EngineSession | None:
        """The session with that process id."""
        return next((s for s in list(self._sessions) if s.process_id == process_id), None)

    def forget_session(self, session: EngineSession) -> None:
        self._sessions.discard(session)

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
