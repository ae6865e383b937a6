"""The running system: a data directory's environment, its catalog, Spark, the sessions, and the thread that
looks after the shards.

Opened once by `serve`. The SQL port can answer as soon as `open` returns; Spark starts behind it. A Spark
that dies is started again; a data directory that is taken over by another server ends this one through
`on_fatal`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from prometheus_client import REGISTRY

from tidemill.access.scram import make_verifier
from tidemill.catalog.items import SYSTEM_ROLE, Table
from tidemill.catalog.ops import AlterSystem
from tidemill.catalog.privileges import PermissionDenied, Privileges
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.config import Config
from tidemill.engine.api import StartupOptions
from tidemill.engine.audit.log import AuditEvent, audit_log
from tidemill.engine.ddl.secrets import secret_store
from tidemill.engine.dml.write_locks import Turns
from tidemill.engine.relations.live_sources import LiveSources
from tidemill.engine.relations.materialized_views import ViewRow, view_frontiers, view_rows
from tidemill.engine.relations.pg.own_session import PreparedRow
from tidemill.engine.relations.sinks import SinkRow, sink_rows
from tidemill.engine.relations.sources import FrontierRow, SourcesView
from tidemill.engine.relations.subscriptions import SubscriptionRow
from tidemill.engine.relations.system import SYSTEM_RELATIONS_BY_ID, SessionRow
from tidemill.engine.serve.ingest_metrics import IngestCollector
from tidemill.engine.serve.loop_futures import Handover
from tidemill.engine.serve.maintenance import Maintenance
from tidemill.engine.serve.metrics import EngineCollector
from tidemill.engine.serve.sink_metrics import SinksCollector
from tidemill.engine.serve.view_metrics import ViewsCollector
from tidemill.engine.session.controls import check_set_role
from tidemill.engine.session.planning_pool import Texts
from tidemill.engine.session.session import EngineSession
from tidemill.engine.session.transaction import Transaction
from tidemill.engine.session.variables import RETAIN_PARAMETER, SYSTEM_PARAMETERS, VariableRow
from tidemill.engine.subscribe.subscriptions import Subscriptions
from tidemill.errors import Internal, Notice, SerializationFailure, TidemillError, UndefinedObject
from tidemill.ingest.compaction import SparkCompactor
from tidemill.ingest.service import Ingestion
from tidemill.ingest.spark_runner import SparkRunner
from tidemill.ingest.warm import WORKERS, warm_up
from tidemill.inputs.collections import Collections, relation_dropped
from tidemill.inputs.opened import SystemRows
from tidemill.inputs.queries import QueryRuntime
from tidemill.persist.environment import Environment
from tidemill.persist.shard import ShardId
from tidemill.persist.txns.request import ShardConflict
from tidemill.query.evaluations import Evaluations
from tidemill.query.settings import refuse_fixed
from tidemill.query.spark import SparkHost
from tidemill.sinks.feed import sink_shard
from tidemill.sinks.open import SinkOpener
from tidemill.sinks.service import Sinks
from tidemill.subscribe.hub import Hub
from tidemill.time.oracle import Oracle
from tidemill.views.program import ViewProgram
from tidemill.views.service import Views

log = logging.getLogger(__name__)

# Threads for whatever blocks: reading and writing shards, planning, waiting for Spark. Statements beyond
# that many wait for a free one; commits do not need any.
MAX_WORKERS = 64
# Threads that follow what is subscribed to: those of queries wait for the job that they share, and no
# statement must wait for them. More tails than that take turns.
MAX_FOLLOWING = 256
# A JVM that dies again and again (no memory) is not started more often than this.
RESTART_SECONDS = 5.0
# Statements that wait longer than this for Spark tell their client.
SPARK_NOTICE_SECONDS = 0.5


# A parameter that nobody sees or sets: `TidemillEngine.login_key`.
LOGIN_KEY = "login_key"


class TidemillEngine:
    """Implements `api.Engine`."""

    def __init__(self, config: Config, environment: Environment, catalog: Catalog, spark: SparkHost) -> None:
        self.config = config
        self.environment = environment
        self.catalog = catalog
        self.spark = spark
        self.workers = ThreadPoolExecutor(MAX_WORKERS, thread_name_prefix="engine")
        self.texts = Texts(self.workers)
        self._sessions: set[EngineSession] = set()
        self._handover = Handover()
        # Shards that this process has opened for writing.
        self._opened: set[ShardId] = set()
        self.turns = Turns()
        self.audit = audit_log(config, environment.id)
        self._system_verifier = (
            make_verifier(config.system_password).text() if config.system_password else None
        )
        if catalog.state.find_parameter(LOGIN_KEY) is None and config.authentication == "password":
            catalog.transact([AlterSystem(LOGIN_KEY, secrets.token_hex(32))])
        self.secrets = secret_store(config, environment.id)
        self.secrets.sweep(catalog.state)
        catalog.on_change(self.secrets.follow)
        # A folder that outlives the server must not be taken for another data directory's.
        own = Path(config.scratch_dir) / f"state-{environment.id}" if config.scratch_dir else None
        state_folder = own or spark.scratch / "state"
        self._following = ThreadPoolExecutor(MAX_FOLLOWING, thread_name_prefix="follow")
        self.hub = Hub(self._following)
        self.evaluations = Evaluations(spark)
        self.subscriptions = Subscriptions(self.workers, lambda: self.ingestion.now())
        catalog.on_change(self._tell_dropped)
        self.ingestion = Ingestion(
            environment,
            catalog,
            SparkRunner(spark, str(state_folder)),
            secrets=self.secrets,
            files_root=config.files_root,
            on_lost=environment.oracle.lose,
            on_moved=self._moved,
        )
        self.collections = Collections(environment, self.ingestion)
        self.queries = QueryRuntime(self.collections, environment.oracle, spark, self.evaluations)
        self.views = Views(
            environment,
            catalog,
            lambda state, item: ViewProgram(self.queries, state, item),
            on_moved=self._view_moved,
            on_lost=environment.oracle.lose,
        )
        self.collections.keep_views(self.views.shard, self.views.readable)
        opener = SinkOpener(environment, self.collections, spark, self.secrets, config.files_root)
        self.sinks = Sinks(catalog, opener.open, sink_shard)
        self.views.start()
        self.sinks.start()
        self.sources: SourcesView = LiveSources(self.ingestion, catalog)
        compactor = SparkCompactor(environment, spark)
        self._maintenance = Maintenance(
            environment, catalog, self.ingestion, self.views, self.sinks, compactor, config.retain_history
        )
        self._maintenance.start()
        self._collector = EngineCollector(
            spark.metrics,
            lambda: len(self._sessions),
            [
                self.subscriptions,
                IngestCollector(self.ingestion, compactor),
                ViewsCollector(self.views, environment.oracle.now),
                SinksCollector(self.sinks, environment.oracle.now),
            ],
        )
        REGISTRY.register(self._collector)
        self._closed = False

    @classmethod
    def open(cls, config: Config, *, on_fatal: Callable[[TidemillError], None]) -> TidemillEngine:
        """Take the data directory and start Spark; raises `DirectoryHeld` and whatever the store raises.
        Blocks, not for Spark."""
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

    # -- what the server layer sees ----------------------------------------------------------------

    @property
    def ready(self) -> bool:
        return self.spark.ready and self.environment.lost is None

    def open_session(self, options: StartupOptions, *, process_id: int) -> EngineSession:
        try:
            session = self._opened_session(options, process_id)
        except TidemillError as e:
            self.audit.login_refused(options.user, options.client_address, e.primary)
            raise
        self._sessions.add(session)
        if options.lasting:
            self.audit.logged_in(session)
        return session

    def _opened_session(self, options: StartupOptions, process_id: int) -> EngineSession:
        state = self.catalog.state
        role = state.find_role(options.user)
        if role is None:
            raise UndefinedObject(
                f'role "{options.user}" does not exist',
                hint="SHOW ROLES lists those that are, CREATE ROLE ... LOGIN makes one.",
                sqlstate="28000",
            )
        if not role.login:
            raise PermissionDenied(f'role "{role.name}" is not permitted to log in', sqlstate="28000")
        database = state.database(options.database)
        if not Privileges(state, role).has(database, "USAGE"):
            raise PermissionDenied(
                f'permission denied for database "{database.name}"',
                detail="User does not have CONNECT privilege.",
            )
        session = EngineSession(self, options, process_id, role)
        check_set_role(session, session.variables.get("role"))
        return session

    # -- who may log in ----------------------------------------------------------------------------

    def stored_password(self, role: str) -> str | None:
        """The verifier of its password, for the doors."""
        if role == SYSTEM_ROLE:
            return self._system_verifier
        found = self.catalog.state.find_role(role)
        return None if found is None else found.verifier

    def system_value(self, name: str) -> str:
        """Of a parameter that ALTER SYSTEM sets."""
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
        """What the passwords that nobody has are made from: in the catalog, so that a restart does not tell
        who exists."""
        kept = self.catalog.state.find_parameter(LOGIN_KEY)
        if kept is None:
            raise Internal("there is no key for logins")
        return bytes.fromhex(kept.value)

    def login_refused(self, role: str, address: str, reason: str) -> None:
        self.audit.login_refused(role, address, reason)

    def session(self, process_id: int) -> EngineSession | None:
        """The session of that process id."""
        return next((s for s in list(self._sessions) if s.process_id == process_id), None)

    def forget_session(self, session: EngineSession) -> None:
        self._sessions.discard(session)

    # -- for statements ----------------------------------------------------------------------------

    @property
    def oracle(self) -> Oracle:
        return self.environment.oracle

    async def wait_for_spark(self, session: EngineSession) -> None:
        """Until there is a Spark session; tells the client when that takes long. Raises what stops Spark from
        starting."""
        if self.spark.usable:
            return
        waiting = asyncio.ensure_future(session.blocking(self.spark.wait_usable))
        done, _ = await asyncio.wait({waiting}, timeout=SPARK_NOTICE_SECONDS)
        if not done:
            session.notice(Notice("Spark is starting; the statement runs as soon as it is there"))
        await session.interrupt.guard(waiting)

    async def commit(self, transaction: Transaction, *, claimed: bool = False) -> int:
        """Make the transaction's writes durable; returns their time. Raises `SerializationFailure` when
        what it read has changed. Waits for whoever claims a shard that it writes to, unless it has `claimed`
        shards itself."""
        if not claimed:
            await self.turns.wait(transaction.writes)
        return await self.write(transaction.commit_writes(), transaction.tables, transaction.commit_reads())

    async def write(
        self,
        updates: Mapping[ShardId, pa.Table],
        tables: Mapping[ShardId, Table],
        reads: Mapping[ShardId, int] | None = None,
    ) -> int:
        """Commit updates that were made for these tables as they were defined then. Not to be interrupted:
        it happens or it does not."""

        def unchanged() -> None:
            items = self.catalog.state.items
            for table in tables.values():
                now = items.get(table.id)
                if now is table:
                    continue
                if now is None:
                    raise UndefinedObject(
                        f'relation "{table.name}" does not exist',
                        detail="It was dropped meanwhile.",
                        sqlstate="42P01",
                    )
                if not isinstance(now, Table) or now.desc != table.desc:
                    raise SerializationFailure(
                        f'relation "{table.name}" was altered meanwhile', hint="Run the transaction again."
                    )

        for shard_id in updates.keys() - self._opened:
            # A shard of an earlier server is fenced when it is first used, before anything is written to it.
            await asyncio.to_thread(self.environment.open_shard, shard_id)
            self._opened.add(shard_id)
        future = self.environment.txns.commit(updates, reads, unchanged)
        try:
            ts = await self._handover.result(future)
            self._moved(updates.keys())
            return ts
        except ShardConflict as e:
            name = next(
                (c.item.name for c in self.catalog.state.collections() if c.shard == e.shard_id), None
            )
            raise e if name is None else e.named(name) from None

    def _moved(self, shards: Collection[ShardId]) -> None:
        """Tables have been written to, or sources have gone on."""
        self.hub.moved(shards)
        self.views.moved(shards)
        self.sinks.moved(shards)

    def _view_moved(self, shards: Collection[ShardId]) -> None:
        """A materialized view has gone on; views of views know it already."""
        self.hub.moved(shards)
        self.sinks.moved(shards)

    def _tell_dropped(self, old: CatalogState, new: CatalogState) -> None:
        """Subscriptions to what is gone end."""
        gone = old.items.keys() - new.items.keys()

        def error(item_id: str) -> TidemillError:
            return relation_dropped(old, old.relation(item_id))

        if gone:
            self.hub.dropped(gone, error)

    def release(self, what: Callable[[], None]) -> None:
        """Run it on a worker thread, without waiting; when the server is stopping, at once."""
        try:
            self.workers.submit(what)
        except RuntimeError:  # the workers are gone
            what()

    def system_rows(self, session: EngineSession, catalog: CatalogState) -> SystemRows:
        """What system relations show the session now."""
        situation = self.situation(session, catalog)
        return lambda relation_id: SYSTEM_RELATIONS_BY_ID[relation_id].table(situation)

    def situation(self, session: EngineSession, catalog: CatalogState) -> LiveSituation:
        return LiveSituation(self, session, catalog)

    def session_rows(self) -> list[SessionRow]:
        return [
            SessionRow(
                s.process_id,
                s.role,
                s.database,
                s.variables.get("application_name"),
                s.connected_at,
                "active" if s.interrupt.running else "idle",
                s.client_address,
                s.encryption,
            )
            for s in list(self._sessions)
        ]

    def close(self) -> None:
        """End everything in order: commits that are queued finish, the directory is released. Blocks.
        Idempotent."""
        if self._closed:
            return
        self._closed = True
        REGISTRY.unregister(self._collector)
        self.sinks.stop()
        self.views.stop()
        self.ingestion.stop()
        self._maintenance.stop()
        self.subscriptions.close()
        self.workers.shutdown(wait=False, cancel_futures=True)
        self._following.shutdown(wait=False, cancel_futures=True)
        self.audit.close()
        self.environment.close()
        self.spark.stop()


@dataclass(frozen=True, slots=True)
class LiveSituation:
    """`relations.system.Situation` of one statement."""

    engine: TidemillEngine
    session: EngineSession
    catalog: CatalogState

    @property
    def database(self) -> str:
        return self.session.database

    def sessions(self) -> Sequence[SessionRow]:
        return self.engine.session_rows()

    def audit_events(self) -> Sequence[AuditEvent]:
        return self.engine.audit.events()

    def subscriptions(self) -> Sequence[SubscriptionRow]:
        return self.engine.subscriptions.table()

    @property
    def sources(self) -> SourcesView:
        return self.engine.sources

    def frontiers(self) -> Sequence[FrontierRow]:
        now = self.engine.oracle.read_ts()
        rows: list[FrontierRow] = []
        for table in self.catalog.tables():
            shard = self.engine.environment.open_shard(table.shard)
            rows.append(FrontierRow(table.id, shard.since, max(now + 1, shard.upper or 0)))
        known = {view.id for view in self.catalog.materialized_views()}
        return rows + [row for row in view_frontiers(self.engine.views) if row.object_id in known]

    def views(self) -> Sequence[ViewRow]:
        return view_rows(self.engine.views)

    def sinks(self) -> Sequence[SinkRow]:
        return sink_rows(self.engine.sinks, self.engine.oracle.now())

    def variables(self) -> Iterable[VariableRow]:
        return self.session.variables.rows()

    def prepared(self) -> Sequence[PreparedRow]:
        return self.session.statements.table()

    def cursors(self) -> Sequence[tuple[str, bool, bool]]:
        return [(name, cursor.hold, cursor.binary) for name, cursor in self.session.cursors.items()]


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
