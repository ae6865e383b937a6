"""What reading the collections of a query needs besides the query. One per session; plans keep it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.catalog.state import CatalogState
from tidemill.engine.read.waiting import Readiness
from tidemill.engine.relations.system import SYSTEM_RELATIONS_BY_ID, Situation
from tidemill.inputs.opened import SystemRows
from tidemill.inputs.queries import QueryRuntime

if TYPE_CHECKING:
    from tidemill.engine.session.execution import StatementExecution
    from tidemill.engine.session.transactions import Transactions
    from tidemill.engine.session.values import SessionValues
    from tidemill.engine.subscribe.subscriptions import Subscriptions


@dataclass(frozen=True, slots=True)
class Reader:
    """`situation` gives the contents of the system relations for this session now."""

    execution: StatementExecution
    transactions: Transactions
    values: SessionValues
    runtime: QueryRuntime
    readiness: Readiness
    situation: Callable[[CatalogState], Situation]
    subscriptions: Subscriptions

    async def now(self) -> int:
        """The time of a read that begins now."""
        return await self.execution.blocking(self.runtime.oracle.read_ts)

    async def wait_for_spark(self) -> None:
        await self.execution.wait_for_spark(self.runtime.spark)

    def system_rows(self, catalog: CatalogState) -> SystemRows:
        situation = self.situation(catalog)
        return lambda relation_id: SYSTEM_RELATIONS_BY_ID[relation_id].table(situation)
