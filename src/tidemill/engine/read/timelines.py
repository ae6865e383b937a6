"""The time at which a statement reads relations of another timeline than the server's (`inputs.timelines`):
the latest time at which all of them are complete, or AS OF a time of that timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.catalog.items import Item, Source
from tidemill.errors import TidemillError

if TYPE_CHECKING:
    from tidemill.engine.read.reader import Reader
    from tidemill.engine.read.reading import AsOfTime
    from tidemill.ingest.service import Ingestion


def latest_on(ingestion: Ingestion, items: Sequence[Item]) -> int:
    """The latest time at which all of these sources, of one timeline, are complete. All of them must be
    readable."""
    return min(ingestion.readable(item) for item in items if isinstance(item, Source)) - 1


def choose_on(reader: Reader, timeline: str, as_of: AsOfTime | None, sources: Sequence[Item]) -> int:
    """The time to read at, one for all reads of a transaction. The caller checks whether the sources are
    complete at that time."""
    transaction = reader.transactions.current
    before = transaction.on_timelines.get(timeline)
    if as_of is None:
        chosen = latest_on(reader.readiness.ingestion, sources) if before is None else before
    elif before is not None and transaction.explicit:
        if as_of.time != before and not (as_of.at_least and as_of.time <= before):
            raise TidemillError(
                "AS OF does not match the time of the transaction",
                detail=f'It reads "{timeline}" at {before}, the statement asks for {as_of.time}.',
                hint="All reads of a transaction happen at one time, chosen by its first statement.",
                sqlstate="25000",
            )
        chosen = before
    else:
        chosen = (
            max(latest_on(reader.readiness.ingestion, sources), as_of.time) if as_of.at_least else as_of.time
        )
    if as_of is None or transaction.explicit:
        transaction.on_timelines[timeline] = chosen
    return chosen
