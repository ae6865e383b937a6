"""PREPARE and EXECUTE: statements kept by name in the session, in SQL rather than in the protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemill.catalog.state import CatalogState
from tidemill.engine.api import Complete, Outcome
from tidemill.engine.controls import no_such_prepared
from tidemill.engine.plan import Action, Plan, Value
from tidemill.engine.session import MAX_PREPARED, EngineSession, KeptStatement
from tidemill.errors import DuplicateObject, LimitExceeded, SyntaxError_, Unsupported
from tidemill.sql import ast
from tidemill.sql.bind import bind_scalar, constant_value
from tidemill.types import parse_type
from tidemill.types.model import Column, SqlType


def plan_prepare(s: EngineSession, statement: ast.Prepare, catalog: CatalogState) -> Plan:
    from tidemill.engine.planner import plan_statement

    types = tuple(parse_type(t) for t in statement.types)
    # Planned now so that what is wrong with it is said now; EXECUTE plans again if the catalog has changed.
    plan_statement(s, statement.statement, types, catalog)

    async def act(s: EngineSession) -> Outcome:
        name = statement.name.value
        if name in s.prepared:
            raise DuplicateObject(f'prepared statement "{name}" already exists', sqlstate="42P05")
        if len(s.prepared) >= MAX_PREPARED:
            raise LimitExceeded(
                f"too many prepared statements (limit {MAX_PREPARED})", hint="DEALLOCATE some."
            )
        s.prepared[name] = KeptStatement(statement.statement, types)
        return Complete("PREPARE")

    return Action(act)


@dataclass(slots=True)
class ExecutePlan:
    """EXECUTE name (arguments): the kept statement's plan, with the arguments as its parameters."""

    inner: Plan
    values: Sequence[Value]

    @property
    def param_types(self) -> tuple[SqlType, ...]:
        return ()

    @property
    def columns(self) -> tuple[Column, ...] | None:
        return self.inner.columns

    async def run(self, session: EngineSession, params: Sequence[Value]) -> Outcome:
        del params
        return await self.inner.run(session, self.values)


def plan_execute(s: EngineSession, statement: ast.Execute, catalog: CatalogState) -> Plan:
    from tidemill.engine.planner import plan_statement

    kept = s.prepared.get(statement.name.value)
    if kept is None:
        raise no_such_prepared(statement.name.value)
    inner = plan_statement(s, kept.statement, kept.types, catalog)
    if len(statement.arguments) != len(inner.param_types):
        raise SyntaxError_(
            f'wrong number of parameters for prepared statement "{statement.name.value}"',
            detail=f"Expected {len(inner.param_types)} parameters but got {len(statement.arguments)}.",
        )
    values: list[Value] = []
    for argument, t in zip(statement.arguments, inner.param_types, strict=True):
        scalar = constant_value(bind_scalar(argument.tree, session=s.info(), target=t))
        if scalar is None:
            raise Unsupported("an argument of EXECUTE must be a constant", position=argument.offset + 1)
        values.append(Value(t, scalar))
    return ExecutePlan(inner, values)
