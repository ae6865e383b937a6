"""Runners: send units to where they run, and return their results.

`Runner` is the protocol that `ticker` needs. `SparkRunner` runs one Spark job for all given units.
`LocalRunner` runs them in this process, for tests of the other components. Promises: one `UnitFacts` per
unit, in order. `JobFailed` is raised only if the job itself failed, so that the failing unit is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidemill.errors import TidemillError
from tidemill.ingest import keyed, task
from tidemill.ingest.unit import Unit, UnitFacts


class JobFailed(TidemillError):
    """The job of the units failed as a whole: a worker died, Spark is gone, it took too long. Any unit may be
    the cause, or none."""

    sqlstate = "58000"
    transient = True


class Runner(Protocol):
    @property
    def ready(self) -> bool:
        """Whether a job could run now."""
        ...

    @property
    def cores(self) -> int:
        """The number of tasks that run at once."""
        ...

    def run(self, units: Sequence[Unit], *, lane: str, seconds: float) -> list[UnitFacts]:
        """Run the units in one job of the lane (a scheduling pool), which is cancelled after `seconds`.
        Raises JobFailed. Blocks."""
        ...


class LocalRunner:
    """Runs one unit after the other in this process. `folder` is for states of keyed units."""

    ready = True
    cores = 1

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def run(self, units: Sequence[Unit], *, lane: str, seconds: float) -> list[UnitFacts]:
        for unit in units:
            keyed.discard_states(unit, self._folder)
        return [
            keyed.run_here(unit, self._folder) if unit.keyed else task.ingest(unit, unit.pieces)
            for unit in units
        ]
