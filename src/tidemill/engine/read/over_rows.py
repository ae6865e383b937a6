"""A query over rows in memory that replace its relations: RETURNING, SHOW ... WHERE."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.query.job import Job
from tidemill.query.read import ConstantInput
from tidemill.query.run import collect
from tidemill.sql.bind import BoundQuery

if TYPE_CHECKING:
    from tidemill.engine.read.reader import Reader


async def over_rows(reader: Reader, bound: BoundQuery, rows: pa.Table) -> pa.Table:
    """The result of `bound` with `rows` (under physical names) in place of every relation that it reads."""
    await reader.wait_for_spark()
    bound = bound.with_session(reader.values.info())
    host = reader.runtime.spark
    job = Job(host)
    inputs = {placeholder: ConstantInput(rows) for placeholder in bound.inputs}

    def run() -> pa.Table:
        return collect(host, bound.sql(), inputs, bound.columns, job=job)

    return await reader.execution.interrupt.guard(reader.execution.blocking(run), stop=job.cancel)
