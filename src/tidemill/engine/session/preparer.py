"""Preparation of statements: texts are parsed, planned and described.

Owned by `session.EngineSession`. Promises that a kept statement runs as if it had been planned when it is
executed: its plan is made again if anything has changed that it depends on (`statement_cache`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from tidemill.catalog.state import CatalogState
from tidemill.engine.api import ConsumeRequest, PreparedStatement, SubscribeRequest
from tidemill.engine.session.interrupt import Interrupt
from tidemill.engine.session.plan import Plan
from tidemill.engine.session.planning_pool import SHORT, PlanningPool
from tidemill.engine.session.prepared_statements import verb_of
from tidemill.engine.session.statement_cache import KeptStatement, PlanInputs, StatementCache, check_result
from tidemill.engine.subscribe.request import subscribe_statement
from tidemill.errors import InvalidTransactionState, SyntaxError_, TidemillError
from tidemill.sql import ast
from tidemill.sql.parse import ParsedStatement, parse
from tidemill.types.model import Column, SqlType
from tidemill.types.wire import type_of_oid

# Plans a statement, with the types of its parameters, against a state of the catalog.
PlanParsed = Callable[[ParsedStatement, Sequence[SqlType | None], CatalogState], Plan]


class Preparer:
    def __init__(
        self, pool: PlanningPool, plan: PlanParsed, inputs: PlanInputs, interrupt: Interrupt
    ) -> None:
        self._planning = pool
        self._plan = plan
        self._inputs = inputs
        self._statements = inputs.statements  # of PREPARE and of the protocol
        self._interrupt = interrupt
        self._cache = StatementCache()

    async def parse(self, sql: str) -> list[PreparedStatement]:
        if (again := self._cache.get(sql)) is not None:
            return again
        parsed = await self._planning.run(len(sql), parse, sql)
        found = [self._prepared(p, (), fixed=False) for p in parsed]
        if len(sql) <= SHORT:
            self._cache.seen(sql, found)
        return found

    async def prepare(self, sql: str, param_oids: Sequence[int]) -> PreparedStatement:
        key = (sql, tuple(param_oids))
        if (again := self._cache.get(key)) is not None:
            return await self._described_again(again[0])
        parsed = await self._planning.run(len(sql), parse, sql)
        if len(parsed) > 1:
            raise SyntaxError_("cannot insert multiple commands into a prepared statement")
        types = tuple(type_of_oid(o) if o else None for o in param_oids)
        prepared = await self._described(parsed[0] if parsed else None, types)
        if len(sql) <= SHORT:
            self._cache.seen(key, [prepared])
        return prepared

    async def _described_again(self, before: PreparedStatement) -> PreparedStatement:
        """Another statement of the same text; the plan is shared as long as it is valid."""
        known = cast(KeptStatement, before.statement)
        statement = known.again(self._inputs)
        prepared = replace(before, statement=statement, described=None)
        self.check_allowed(prepared)
        await self.plan(prepared)
        return prepared

    async def prepare_subscribe(self, request: SubscribeRequest | ConsumeRequest) -> PreparedStatement:
        text = request.name if isinstance(request, ConsumeRequest) else request.query
        parsed = await self._planning.run(len(text), subscribe_statement, request)
        return await self._described(parsed, ())

    async def _described(
        self, parsed: ParsedStatement | None, types: tuple[SqlType | None, ...]
    ) -> PreparedStatement:
        prepared = self._prepared(parsed, types, fixed=True)
        self.check_allowed(prepared)
        await self.plan(prepared)
        return prepared

    async def keep(self, name: str, parsed: ParsedStatement, types: tuple[SqlType | None, ...]) -> None:
        """PREPARE."""
        self._statements.check_new(name)
        self._statements.add(name, await self._described(parsed, types))

    def _prepared(
        self, parsed: ParsedStatement | None, types: tuple[SqlType | None, ...], *, fixed: bool
    ) -> PreparedStatement:
        statement = KeptStatement(parsed, types, fixed=fixed)
        if parsed is None:
            return PreparedStatement("", "", (), None, statement, allowed_when_failed=True)
        allowed = isinstance(parsed.statement, ast.Commit | ast.Rollback | ast.RollbackTo)
        return PreparedStatement(
            parsed.text, verb_of(parsed.statement), (), None, statement, allowed_when_failed=allowed
        )

    async def describe(self, prepared: PreparedStatement) -> None:
        if prepared.columns is None:
            return
        planned = await self.plan(prepared)
        parsed = cast(KeptStatement, prepared.statement).parsed
        gone = planned is not None and planned.columns is None
        if gone and parsed is not None and isinstance(parsed.statement, ast.Execute):
            self._statements.get(parsed.statement.name.value)  # raises: it is gone

    async def bind(self, prepared: PreparedStatement) -> tuple[Column, ...] | None:
        statement = cast(KeptStatement, prepared.statement)
        if statement.analysed:
            # Most plans are current: a coroutine for the look would cost a small statement too much.
            if statement.plan(self._inputs) is None:
                await self.plan(prepared)
        elif statement.follows_name:
            try:
                await self.plan(prepared)
            except TidemillError:
                return None  # its execution fails
        return prepared.columns

    async def plan(self, prepared: PreparedStatement) -> Plan | None:
        """The plan, made again if it is not current. Sets the description in `prepared`."""
        statement = cast(KeptStatement, prepared.statement)
        if statement.parsed is None:
            return None
        found = statement.plan(self._inputs)
        if found is None:
            basis, first = statement.basis(self._inputs), not statement.planned
            found = await self._planning.run(
                len(prepared.text), self._plan, statement.parsed, statement.param_types, basis.catalog
            )
            self._interrupt.check()
            if statement.fixed and not first and not statement.follows_name:
                check_result(prepared.columns, found.columns)
            statement.keep(found, basis)
            prepared.param_types = found.param_types
            prepared.columns = found.columns
        return found

    def check_allowed(self, prepared: PreparedStatement) -> None:
        """Raises in a failed transaction block, except for statements that end it."""
        if self._inputs.transactions.failed and not prepared.allowed_when_failed:
            raise aborted()

    def clear(self) -> None:
        self._cache.clear()


def aborted() -> InvalidTransactionState:
    return InvalidTransactionState(
        "current transaction is aborted, commands ignored until end of transaction block", sqlstate="25P02"
    )
