"""PREPARE, EXECUTE and DEALLOCATE: named statements of the session, from SQL.

They share their names with the statements of the protocol (`prepared_statements`). EXECUTE plans the
statement again, with its arguments as parameters: any expression over no relation, assigned to the
parameter's type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from tidemill.catalog.state import CatalogState
from tidemill.engine.api import Complete, Outcome, close_batches
from tidemill.engine.read import reading
from tidemill.engine.read.reader import Reader
from tidemill.engine.session.catalog_view import CatalogView
from tidemill.engine.session.plan import Action, Plan, Value
from tidemill.engine.session.prepared_statements import Statements, no_such_statement
from tidemill.engine.session.preparer import Preparer
from tidemill.engine.session.statement_cache import KeptStatement, check_result
from tidemill.errors import SyntaxError_, TidemillError, UndefinedObject
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, SessionInfo, bind_insert_source, bind_scalar, constant_value
from tidemill.sql.parse import ParsedStatement
from tidemill.types import parse_type
from tidemill.types.model import Column, SqlType, unmodified

# Plans a statement within another one; the second argument are the types of its parameters.
PlanStatement = Callable[[ast.Statement, Sequence[SqlType | None]], Plan]


def plan_prepare(preparer: Preparer, plan: PlanStatement, text: str, statement: ast.Prepare) -> Plan:
    """`text` is that of the whole PREPARE."""
    # As in PostgreSQL, a parameter has a type, but no length or precision.
    types = tuple(unmodified(parse_type(t)) for t in statement.types)
    # Errors are raised before anything runs; positions count from the start of the text.
    plan(statement.statement, types)

    async def act() -> Outcome:
        await preparer.keep(statement.name.value, ParsedStatement(statement.statement, text, 0), types)
        return Complete("PREPARE")

    return Action(act)


def plan_execute(
    view: CatalogView, reader: Reader, statements: Statements, plan: PlanStatement, statement: ast.Execute
) -> Plan:
    try:
        prepared = statements.get(statement.name.value)
    except UndefinedObject:
        # It may exist when this runs.

        async def now() -> Outcome:
            statements.get(statement.name.value)
            return await plan(statement, ()).run(())

        return Action(now)
    kept = cast(KeptStatement, prepared.statement)
    if kept.parsed is None:
        raise SyntaxError_("an empty statement cannot be executed", sqlstate="0A000")
    inner = plan(kept.parsed.statement, kept.param_types)
    check_result(prepared.columns, inner.columns)
    # As in PostgreSQL: if there are no parameters, arguments are ignored.
    arguments = statement.arguments if inner.param_types else ()
    if len(arguments) != len(inner.param_types):
        raise SyntaxError_(
            f'wrong number of parameters for prepared statement "{statement.name.value}"',
            detail=f"Expected {len(inner.param_types)} parameters but got {len(arguments)}.",
        )
    values = [_value(view.info(), a, t) for a, t in zip(arguments, inner.param_types, strict=True)]
    known = [v for v in values if v is not None]
    row = None
    if len(known) < len(values):
        targets = [Column(f"${n + 1}", t) for n, t in enumerate(inner.param_types)]
        row = bind_insert_source(ast.Values((arguments,)), targets, view.resolver(), session=view.info())

    async def act() -> Outcome:
        given = known if row is None else await _evaluated(reader, view.state, row, inner.param_types)
        reader.transactions.enter_execute()
        return await inner.run(given)

    return Action(act, inner.columns)


async def _evaluated(
    reader: Reader, catalog: CatalogState, row: BoundQuery, types: Sequence[SqlType]
) -> list[Value]:
    """The one row that computes the arguments."""
    batches = await reading.answer(reader, catalog, row)
    batch = await anext(batches)
    await close_batches(batches)
    return [Value(t, batch.column(n)[0]) for n, t in enumerate(types)]


def _value(info: SessionInfo, argument: ast.Expr, t: SqlType) -> Value | None:
    """The argument as a parameter of type `t`; None if it must be evaluated. Raises if it is invalid."""
    try:
        bound = bind_scalar(argument.tree, session=info, target=t, clause="EXECUTE parameters")
    except TidemillError as e:
        e.position = e.position or argument.offset + 1
        raise
    scalar = constant_value(bound)
    return None if scalar is None else Value(t, scalar)


async def deallocate(statements: Statements, statement: ast.Deallocate) -> Outcome:
    if statement.name is None:
        statements.clear()
        return Complete("DEALLOCATE ALL")
    if not statements.drop(statement.name.value):
        raise no_such_statement(statement.name.value)
    return Complete("DEALLOCATE")
