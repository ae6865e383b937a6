"""Runners: they send units to where they run, and return their results.

`Runner` is the protocol that `ticker` needs. `SparkRunner` runs one Spark job for all given units.
`LocalRunner` runs them in this process, for tests of everything around it. Promises: one `UnitFacts` per
unit, in order. `JobFailed` is raised only when the job itself failed, so that the failing unit is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidemill.errors import TidemillError
from tidemill.ingest import keyed, task
from tidemill.ingest.unit import Unit, UnitFacts


class JobFailed(TidemillError):
    """The job that carried the units failed as a whole: a worker died, Spark is gone, it took too long. Any
    of them may be the cause, or none."""

    sqlstate = "58000"
    transient = True


class Runner(Protocol):
    @property
    def ready(self) -> bool:
        """Whether a job would run now."""
        ...

    @property
    def cores(self) -> int:
        """How many tasks run at once."""
        ...

    def run(self, units: Sequence[Unit], *, lane: str, seconds: float) -> list[UnitFacts]:
        """Do the units in one job of the lane (a scheduling pool); it is cancelled after `seconds`. Raises
        JobFailed. Blocks."""
        ...


class LocalRunner:
    """One unit after the other, in this process. `folder` is for states of keyed units."""

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
