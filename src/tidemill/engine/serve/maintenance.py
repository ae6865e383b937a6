"""The maintenance thread of the shards: advances since, compacts, checkpoints, deletes unused files.

It never blocks a statement: it holds no lock for longer than a commit. It can be killed at any moment.
"""

from __future__ import annotations

import logging
import threading

from tidemill.catalog.store import Catalog
from tidemill.engine.session.setting_numbers import duration_ms
from tidemill.engine.session.variables import RETAIN_PARAMETER
from tidemill.errors import TidemillError
from tidemill.ingest.compaction import SparkCompactor
from tidemill.ingest.service import Ingestion
from tidemill.persist.environment import Environment
from tidemill.sinks.service import Sinks
from tidemill.subscriptions.service import DurableSubscriptions
from tidemill.views.service import Views

log = logging.getLogger(__name__)

# Each commit adds a small part; in this interval a busy table collects some hundreds at most.
INTERVAL_SECONDS = 1.0


class MaintenanceLoop:
    def __init__(
        self,
        environment: Environment,
        catalog: Catalog,
        ingestion: Ingestion,
        views: Views,
        sinks: Sinks,
        durable: DurableSubscriptions,
        compactor: SparkCompactor,
        retain_history_ms: int,
    ) -> None:
        self._environment = environment
        # For shards that `Environment.maintain` skips because they are too large.
        self._compactor = compactor
        self._catalog = catalog
        self._ingestion = ingestion
        self._views = views
        self._sinks = sinks
        self._durable = durable
        # For relations without RETAIN HISTORY, unless ALTER SYSTEM SET default_retain_history changes it.
        self._retain_ms = retain_history_ms
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._compactor.stop()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            try:
                self.round()
            except TidemillError as e:
                if self._environment.lost is not None:
                    return
                log.warning("maintenance failed, it is tried again: %s", e)
            except Exception:
                # A bug here must not end retention and compaction for good.
                log.exception("maintenance failed for an unforeseen reason, it is tried again")

    def round(self) -> None:
        """One round over all shards."""
        parameter = self._catalog.state.find_parameter(RETAIN_PARAMETER)
        retain = self._retain_ms if parameter is None else duration_ms(parameter.name, parameter.value)
        # Read before since advances: a hold that is released after this point takes effect one round later.
        kept = self._views.unheld() | self._sinks.unheld() | self._durable.unheld()
        self._catalog.maintain(retain, kept)
        self._ingestion.retain(retain, kept)
        self._views.retain(retain, kept)
        hurried = self._ingestion.hurried()
        self._environment.maintain(hurried)
        self._compactor.look(hurried)
