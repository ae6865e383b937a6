"""A status tells what was found last, and since when the trouble is."""

from __future__ import annotations

from tidemill.errors import TidemillError
from tidemill.ingest import status as ingest_status
from tidemill.ingest.status import Report
from tidemill.sinks import status as sink_status


def test_what_is_found_is_told_anew() -> None:
    first, second = (
        TidemillError("no file", detail="It is gone."),
        TidemillError("no file", detail="It is short."),
    )
    report = Report()
    report.become(ingest_status.State.STALLED, first)
    since = report.status.since
    report.become(ingest_status.State.STALLED, second)
    assert (report.status.since, report.status.detail) == (since, "It is short.")
    report.become(ingest_status.State.RUNNING)
    assert (report.status.error, report.status.detail, report.status.hint) == (None, None, None)

    of_sink = sink_status.become(sink_status.begin(), sink_status.State.STALLED, first)
    again = sink_status.become(of_sink, sink_status.State.STALLED, second)
    assert (again.since, again.detail) == (of_sink.since, "It is short.")
