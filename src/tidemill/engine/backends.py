"""SELECT pg_cancel_backend(pid) and SELECT pg_terminate_backend(pid): what another session runs, or the
session itself, is ended.

Called by `planner` for every query: only one that is nothing but such a call is meant. They do something, so
they are no functions like the others: planning or describing them must not, and in the middle of a query
nobody could say how often they are called. Who may is as in PostgreSQL: whoever has the rights of the
session's role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from tidemill.catalog.privileges import PermissionDenied
from tidemill.engine.api import Outcome, Rows
from tidemill.engine.local_rows import stream
from tidemill.engine.plan import Plan, Value
from tidemill.errors import Notice, Unavailable, Unsupported
from tidemill.sql import ast
from tidemill.types.model import BOOL, INT4, Column, SqlType

if TYPE_CHECKING:
    from tidemill.engine.session import EngineSession

_NAMES = ("pg_cancel_backend", "pg_terminate_backend")


@dataclass(slots=True)
class BackendCall:
    """`process_id` is None where it is the statement's parameter."""

    name: str
    process_id: int | None
    columns: tuple[Column, ...]
    param_types: tuple[SqlType, ...]

    async def run(self, session: EngineSession, params: Sequence[Value]) -> Outcome:
        process_id = params[0].scalar.as_py() if self.process_id is None else self.process_id
        done = None if process_id is None else _call(session, self.name, process_id)
        table = pa.table({self.columns[0].name: pa.array([done], pa.bool_())})
        return Rows(self.columns, stream(table))


def plan_call(s: EngineSession, query: ast.Query, types: Sequence[SqlType | None]) -> Plan | None:
    """None where the query is another."""
    tree = query.tree
    if not isinstance(tree, exp.Select) or len(tree.expressions) != 1 or query.as_of is not None:
        return None
    call = tree.expressions[0]
    alias = call.alias if isinstance(call, exp.Alias) else ""
    call = call.this if isinstance(call, exp.Alias) else call
    name = call.meta.get("function", call.name) if isinstance(call, exp.Func) else ""
    if name not in _NAMES:
        return None
    if any(v for k, v in tree.args.items() if k not in ("expressions", "kind")):
        raise _not_alone(name)
    (argument,) = call.expressions if len(call.expressions) == 1 else (None,)
    columns = (Column(alias or name, BOOL),)
    if isinstance(argument, exp.Cast):
        argument = argument.this
    if isinstance(argument, exp.Literal) and argument.this.isdigit() and len(argument.this) < 10:
        return BackendCall(name, int(argument.this), columns, ())
    if isinstance(argument, exp.Parameter | exp.Placeholder):
        return BackendCall(name, None, columns, (types[0] if types and types[0] is not None else INT4,))
    raise _not_alone(name)


def _not_alone(name: str) -> Unsupported:
    return Unsupported(
        f"{name}() in a larger query is not supported",
        hint=f"Write SELECT {name}(n) with the number of one session; mz_internal.mz_sessions has them.",
    )


def _call(s: EngineSession, name: str, process_id: int) -> bool:
    target = s.engine.session(process_id)
    if target is None:
        s.notice(Notice(f"PID {process_id} is not a PostgreSQL backend process", "WARNING"))
        return False
    catalog = s.engine.catalog.state
    mine = s.privileges(catalog)
    cancels = name == "pg_cancel_backend"
    theirs = catalog.find_role(target.role)
    if not mine.superuser and (theirs is None or theirs.superuser or not mine.acts_as(theirs.id)):
        what = "cancel query" if cancels else "terminate process"
        raise PermissionDenied(
            f"permission denied to {what}",
            detail="Only roles with privileges of the role whose session it is may do so.",
        )
    if cancels:
        target.cancel()
        return True
    return target.terminate(
        Unavailable("terminating connection due to administrator command", sqlstate="57P01")
    )
