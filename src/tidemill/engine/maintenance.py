"""The thread that looks after the shards: lets old history go, compacts, checkpoints, sweeps.

It never stands in the way of a statement: it takes no lock for longer than a commit, and what it does can
be killed at any moment.
"""

from __future__ import annotations

import logging
import threading

from tidemill.catalog.store import Catalog
from tidemill.engine.variables import duration_ms
from tidemill.errors import TidemillError
from tidemill.persist.environment import Environment

log = logging.getLogger(__name__)

# Small parts pile up at one per commit; at this interval a busy table has gathered some hundreds at most.
INTERVAL_SECONDS = 1.0


class Maintenance:
    def __init__(self, environment: Environment, catalog: Catalog, retain_history_ms: int) -> None:
        self._environment = environment
        self._catalog = catalog
        # Of relations that say nothing themselves, unless ALTER SYSTEM SET default_retain_history says
        # otherwise.
        self._retain_ms = retain_history_ms
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
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
        """One look at everything."""
        self.retain()
        self._catalog.maintain()
        self._environment.maintain()

    def retain(self) -> None:
        """Move since of each open table to its retention distance behind now; holds keep it back."""
        state = self._catalog.state
        now = self._environment.oracle.now()
        parameter = state.find_parameter("default_retain_history")
        default = self._retain_ms if parameter is None else duration_ms(parameter.name, parameter.value)
        kept = {
            t.shard: default if t.retain_history_ms is None else t.retain_history_ms for t in state.tables()
        }
        for shard in self._environment.open_shards():
            if shard.id in kept:
                shard.downgrade_since(max(0, now - kept[shard.id]))
