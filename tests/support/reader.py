"""A `Reader` as a session has it, over parts that a test gives."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from tidemill.engine.dml.commits import Commits
from tidemill.engine.read.reader import Reader
from tidemill.engine.read.waiting import Readiness
from tidemill.engine.session.client_events import ClientEvents
from tidemill.engine.session.execution import StatementExecution
from tidemill.engine.session.interrupt import Interrupt
from tidemill.engine.session.portals import Portals
from tidemill.engine.session.transaction import Transaction
from tidemill.engine.session.transactions import Transactions
from tidemill.engine.session.variables import Variables
from tidemill.errors import Notice
from tidemill.sql.bind import SessionInfo

NO_COMMITS = cast("Commits", None)
POOL = ThreadPoolExecutor(1)


def wait_released() -> None:
    """Waits for what readers have released in the background."""
    POOL.submit(lambda: None).result()


def reader_of(
    oracle: Any,
    *,
    explicit: bool = False,
    started: datetime | None = None,
    timeout: int = 0,
    notice: Callable[[Notice], None] = lambda _: None,
    collections: Any = None,
    readiness: Readiness | None = None,
) -> Reader:
    """Its transaction has begun; a statement with that time-out in milliseconds runs."""
    variables, portals, interrupt = Variables({}), Portals(), Interrupt()
    execution = StatementExecution(POOL, interrupt, ClientEvents(variables))
    execution.notice = notice
    transactions = Transactions(NO_COMMITS, variables, portals, notice)
    began = started or datetime.now(UTC)
    transactions.open = Transaction(
        explicit=explicit, started=began, read_only=False, isolation="strict serializable"
    )
    interrupt.begin(timeout)
    values = SimpleNamespace(info=lambda: SessionInfo(now=began))
    runtime = SimpleNamespace(oracle=oracle, collections=collections)
    nothing = cast(Any, None)
    return Reader(
        execution,
        transactions,
        cast(Any, values),
        cast(Any, runtime),
        nothing if readiness is None else readiness,
        nothing,
        nothing,
    )
