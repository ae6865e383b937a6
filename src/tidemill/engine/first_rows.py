"""The snapshot of a subscription to a stored relation: its rows at one time, in the shape that was asked for.

Called by `subscribing` for relations whose parts are all that is needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TypeAlias

import pyarrow as pa

from tidemill.catalog.items import Source, SourceTable, Table
from tidemill.engine.followed import stamped
from tidemill.engine.inputs import snapshot_of
from tidemill.engine.session import EngineSession
from tidemill.query.multiset import add_up, check_counts, check_errors
from tidemill.subscribe.shape import shaped
from tidemill.subscribe.spec import Spec
from tidemill.types.arrow import DIFF_COLUMN
from tidemill.types.model import RelationDesc
from tidemill.types.names import physical_names

Collection: TypeAlias = Table | Source | SourceTable


async def first_rows(
    session: EngineSession, item: Collection, as_of: int, spec: Spec
) -> AsyncIterator[pa.RecordBatch]:
    def read() -> pa.RecordBatch:
        names = physical_names(item.desc or RelationDesc())
        with snapshot_of(session.engine, item, as_of) as snapshot:
            table = add_up([snapshot.read(names)])
        table = check_errors(table)
        check_counts(table, names)
        return shaped(stamped(table.select([*names, DIFF_COLUMN]), as_of), spec)

    yield await session.blocking(read)
