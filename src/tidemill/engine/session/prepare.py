"""PREPARE, EXECUTE and DEALLOCATE: named statements of the session, from SQL.

They share their names with the statements of the protocol (`prepared_statements`). EXECUTE plans the
statement again, with its arguments as parameters: any expression over no relation, assigned to the
parameter's type.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from tidemill.catalog.state import CatalogState
from tidemill.engine.api import Complete, Outcome, close_batches
from tidemill.engine.read import reading
from tidemill.engine.session.plan import Action, Plan, Value
from tidemill.engine.session.prepared_statements import no_such_statement
from tidemill.engine.session.session import EngineSession
from tidemill.engine.session.statement_cache import KeptStatement, check_result
from tidemill.errors import SyntaxError_, TidemillError, UndefinedObject
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, bind_insert_source, bind_scalar, constant_value
from tidemill.sql.parse import ParsedStatement
from tidemill.types import parse_type
from tidemill.types.model import Column, SqlType, unmodified


def plan_prepare(s: EngineSession, text: str, statement: ast.Prepare, catalog: CatalogState) -> Plan:
    """`text` is that of the whole PREPARE."""
    from tidemill.engine.session.planner import plan_statement

    # As in PostgreSQL, a parameter has a type, but no length or precision.
    types = tuple(unmodified(parse_type(t)) for t in statement.types)
    # Errors are raised before anything runs; positions count from the start of the text.
    plan_statement(s, statement.statement, types, catalog)

    async def act(s: EngineSession) -> Outcome:
        await s.preparer.keep(statement.name.value, ParsedStatement(statement.statement, text, 0), types)
        return Complete("PREPARE")

    return Action(act)


@dataclass(slots=True)
class ExecutePlan:
    """EXECUTE name (arguments): the kept statement's plan, with the arguments as its parameters."""

    inner: Plan
    # The arguments' values that are already known; otherwise the one row that computes them.
    values: Sequence[Value] | None
    row: BoundQuery | None
    catalog: CatalogState

    @property
    def param_types(self) -> tuple[SqlType, ...]:
        return ()

    @property
    def columns(self) -> tuple[Column, ...] | None:
        return self.inner.columns

    async def run(self, session: EngineSession, params: Sequence[Value]) -> Outcome:
        del params
        values = self.values
        if values is None:
            values = await self._evaluated(session)
        session.enter_execute()
        return await self.inner.run(session, values)

    async def _evaluated(self, session: EngineSession) -> list[Value]:
        assert self.row is not None
        batches = await reading.answer(session, self.catalog, self.row)
        batch = await anext(batches)
        await close_batches(batches)
        types = self.inner.param_types
        return [Value(t, batch.column(n)[0]) for n, t in enumerate(types)]


def plan_execute(s: EngineSession, statement: ast.Execute, catalog: CatalogState) -> Plan:
    from tidemill.engine.session.planner import plan_statement

    try:
        prepared = s.statements.get(statement.name.value)
    except UndefinedObject:
        # It may exist when this runs.
        return Action(lambda s: _execute_now(s, statement))
    kept = cast(KeptStatement, prepared.statement)
    if kept.parsed is None:
        raise SyntaxError_("an empty statement cannot be executed", sqlstate="0A000")
    inner = plan_statement(s, kept.parsed.statement, kept.param_types, catalog)
    check_result(prepared.columns, inner.columns)
    # As in PostgreSQL: if there are no parameters, arguments are ignored.
    arguments = statement.arguments if inner.param_types else ()
    if len(arguments) != len(inner.param_types):
        raise SyntaxError_(
            f'wrong number of parameters for prepared statement "{statement.name.value}"',
            detail=f"Expected {len(inner.param_types)} parameters but got {len(arguments)}.",
        )
    values = [_value(s, a, t) for a, t in zip(arguments, inner.param_types, strict=True)]
    known = [v for v in values if v is not None]
    if len(known) == len(values):
        return ExecutePlan(inner, known, None, catalog)
    targets = [Column(f"${n + 1}", t) for n, t in enumerate(inner.param_types)]
    rows = ast.Values((arguments,))
    row = bind_insert_source(rows, targets, s.resolver(catalog), session=s.info())
    return ExecutePlan(inner, None, row, catalog)


async def _execute_now(s: EngineSession, statement: ast.Execute) -> Outcome:
    s.statements.get(statement.name.value)
    return await plan_execute(s, statement, s.engine.catalog.state).run(s, ())


def _value(s: EngineSession, argument: ast.Expr, t: SqlType) -> Value | None:
    """The argument as a parameter of type `t`; None if it must be evaluated. Raises if it is invalid."""
    try:
        bound = bind_scalar(argument.tree, session=s.info(), target=t, clause="EXECUTE parameters")
    except TidemillError as e:
        e.position = e.position or argument.offset + 1
        raise
    scalar = constant_value(bound)
    return None if scalar is None else Value(t, scalar)


def plan_deallocate(statement: ast.Deallocate) -> Action:
    async def act(s: EngineSession) -> Outcome:
        if statement.name is None:
            s.statements.clear()
            return Complete("DEALLOCATE ALL")
        if not s.statements.drop(statement.name.value):
            raise no_such_statement(statement.name.value)
        return Complete("DEALLOCATE")

    return Action(act)
