"""A status tells what was found last, and since when the trouble is."""

from __future__ import annotations

from tidemill.errors import TidemillError
from tidemill.ingest.status import Report, RunState


def test_what_is_found_is_told_anew() -> None:
    first, second = (
        TidemillError("no file", detail="It is gone."),
        TidemillError("no file", detail="It is short."),
    )
    report = Report()
    report.become(RunState.STALLED, first)
    since = report.status.since
    report.become(RunState.STALLED, second)
    assert (report.status.since, report.status.detail) == (since, "It is short.")
    report.become(RunState.RUNNING)
    assert (report.status.error, report.status.detail, report.status.hint) == (None, None, None)
