"""The background work of a server: sources, materialized views, sinks, subscriptions, maintenance, metrics.

Created once by `engine.TidemillEngine`, over the environment, the catalog and Spark. Promises that all of it
follows the catalog, that progress of one collection wakes its dependents, and that `close` ends it in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from prometheus_client import REGISTRY

from tidemill.arrangements import Arrangements, ArrangementsOf
from tidemill.catalog.secrets import SecretStore
from tidemill.catalog.state import CatalogState
from tidemill.catalog.store import Catalog
from tidemill.config import Config
from tidemill.engine.relations.live_sources import LiveSources
from tidemill.engine.relations.sources import SourcesView
from tidemill.engine.serve.durable_metrics import DurableCollector
from tidemill.engine.serve.ingest_metrics import IngestCollector
from tidemill.engine.serve.maintenance import MaintenanceLoop
from tidemill.engine.serve.metrics import EngineCollector
from tidemill.engine.serve.sink_metrics import SinksCollector
from tidemill.engine.serve.view_metrics import ViewsCollector
from tidemill.engine.subscribe.subscriptions import Subscriptions
from tidemill.errors import TidemillError
from tidemill.ingest.compaction import SparkCompactor
from tidemill.ingest.service import Ingestion
from tidemill.ingest.spark_runner import SparkRunner
from tidemill.inputs.collections import Collections, relation_dropped
from tidemill.inputs.queries import QueryRuntime
from tidemill.persist.environment import Environment
from tidemill.persist.shard import ShardId
from tidemill.query.evaluations import Evaluations
from tidemill.query.spark import SparkHost
from tidemill.query.stage_queue import StageQueue
from tidemill.sinks.feed import sink_shard
from tidemill.sinks.open import SinkOpener
from tidemill.sinks.service import Sinks
from tidemill.subscribe.hub import Hub
from tidemill.subscriptions.service import DurableSubscriptions
from tidemill.views.program import ViewProgram
from tidemill.views.service import Views

# Threads that follow subscribed collections. They are separate from the query threads, which wait for their
# shared job: no statement must wait for it. If there are more tails than threads, they take turns.
MAX_FOLLOWING = 256


class Background:
    """Statements use `collections`, `queries`, `hub`, `subscriptions`, `ingestion`, `sources`, `views` and
    `sinks`."""

    def __init__(
        self,
        config: Config,
        environment: Environment,
        catalog: Catalog,
        spark: SparkHost,
        secrets: SecretStore,
        workers: ThreadPoolExecutor,
        sessions: Callable[[], int],
    ) -> None:
        """`workers` read snapshots for subscriptions; `sessions` returns the number of open sessions."""
        # A folder that outlives the server must not be taken for another data directory's, or for this one's
        # before it was restored.
        own = Path(config.scratch_dir) / f"state-{environment.history.id}" if config.scratch_dir else None
        state_folder = own or spark.scratch / "state"
        self._following = ThreadPoolExecutor(MAX_FOLLOWING, thread_name_prefix="follow")
        self.hub = Hub(self._following)
        self.subscriptions = Subscriptions(self.hub, workers, lambda: self.ingestion.now())
        catalog.on_change(self._end_dropped)
        self.ingestion = Ingestion(
            environment,
            catalog,
            SparkRunner(spark, str(state_folder)),
            secrets=secrets,
            files_root=config.files_root,
            on_lost=environment.oracle.lose,
            on_moved=self.moved,
        )
        self.collections = Collections(environment, self.ingestion)
        self.arrangements = Arrangements(str(_arrangements_folder(config, environment, spark)))
        self.queries = QueryRuntime(
            self.collections,
            environment.oracle,
            spark,
            Evaluations(spark),
            StageQueue(spark),
            ArrangementsOf(self.arrangements, ""),
        )
        self.views = Views(
            environment,
            catalog,
            lambda state, item: ViewProgram(self.queries, state, item),
            on_moved=self._view_moved,
            on_lost=environment.oracle.lose,
        )
        self.collections.keep_views(self.views.shard, self.views.readable)
        self.durable = DurableSubscriptions(environment, catalog, self.collections)
        opener = SinkOpener(environment, self.collections, spark, secrets, config.files_root)
        self.sinks = Sinks(catalog, opener.open, sink_shard)
        self.views.start()
        self.sinks.start()
        self.sources: SourcesView = LiveSources(self.ingestion, catalog)
        compactor = SparkCompactor(environment, spark)
        self._maintenance = MaintenanceLoop(
            environment,
            catalog,
            self.ingestion,
            self.views,
            self.sinks,
            self.durable,
            compactor,
            config.retain_history,
        )
        self._maintenance.start()
        self._collector = EngineCollector(
            spark.metrics,
            sessions,
            [
                self.subscriptions,
                IngestCollector(self.ingestion, compactor),
                ViewsCollector(self.views, self.arrangements, environment.oracle.now),
                SinksCollector(self.sinks, environment.oracle.now),
                DurableCollector(self.durable, environment.oracle.now),
            ],
        )
        REGISTRY.register(self._collector)

    def moved(self, shards: Collection[ShardId]) -> None:
        """Called after tables were written or sources have progressed."""
        self.hub.moved(shards)
        self.views.moved(shards)
        self.sinks.moved(shards)

    def _view_moved(self, shards: Collection[ShardId]) -> None:
        """Called after a materialized view has progressed; views over views are already notified."""
        self.hub.moved(shards)
        self.sinks.moved(shards)

    def _end_dropped(self, old: CatalogState, new: CatalogState) -> None:
        """Ends the subscriptions to dropped collections."""
        gone = old.items.keys() - new.items.keys()

        def error(item_id: str) -> TidemillError:
            return relation_dropped(old, old.relation(item_id))

        if gone:
            self.hub.dropped(gone, error)
            self.arrangements.forget(
                {c.shard for c in old.collections()} - {c.shard for c in new.collections()}
            )

    def stop(self) -> None:
        """Stops steps, ticks and maintenance. Blocks until those in progress have ended."""
        REGISTRY.unregister(self._collector)
        self.sinks.stop()
        self.views.stop()
        self.ingestion.stop()
        self._maintenance.stop()
        self.durable.stop()
        self.subscriptions.close()

    def close(self) -> None:
        """Called after `stop`, and after the workers have ended."""
        self._following.shutdown(wait=False, cancel_futures=True)
        self.arrangements.close()


def _arrangements_folder(config: Config, environment: Environment, spark: SparkHost) -> Path:
    """On this machine, and beyond a restart if there is a folder that stays."""
    if config.scratch_dir:
        return Path(config.scratch_dir) / f"arrangements-{environment.history.id}"
    if config.on_s3:
        return spark.scratch / "arrangements"
    return Path(config.data_dir) / "cache" / "arrangements"
