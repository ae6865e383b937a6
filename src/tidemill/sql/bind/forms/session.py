"""Functions that return session values: user, database, time.

They are constants of the statement, or, for now() and mz_now(), values that are fixed at execution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import UndefinedObject
from tidemill.sql.bind.calls import FunctionCall
from tidemill.sql.bind.coerce import settle
from tidemill.sql.bind.determinism import Dependence
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.functions.markers import Fixed
from tidemill.sql.plan.expressions import BoundNode, Const, Convert, SessionValue
from tidemill.types.model import (
    DATE,
    INT4,
    MZ_TIMESTAMP,
    NAME,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    Kind,
    SqlType,
)

if TYPE_CHECKING:
    from tidemill.sql.bind.expr import Binder
    from tidemill.sql.bind.model import SessionInfo


# Creates the node for a call or keyword; the text is how it was written.
_Maker = Callable[["Binder", str], BoundNode]


def now_value(b: Binder, used: str) -> BoundNode:
    b.ctx.depends_on(Dependence.CLOCK, used)
    return SessionValue(TIMESTAMPTZ, Fixed.NOW)


def _statement_began(b: Binder, used: str) -> BoundNode:
    b.ctx.depends_on(Dependence.CLOCK, used)
    return SessionValue(TIMESTAMPTZ, Fixed.STATEMENT)


def _mz_now(b: Binder, used: str) -> BoundNode:
    b.ctx.depends_on(Dependence.READ_TIME, used)
    return SessionValue(MZ_TIMESTAMP, Fixed.MZ_NOW)


def _fact(value: Callable[[SessionInfo], str | int | None], t: SqlType = NAME) -> _Maker:
    """A constant of the session."""

    def make(b: Binder, used: str) -> BoundNode:
        b.ctx.depends_on(Dependence.SESSION, used)
        return _constant(value(b.ctx.session), t)

    return make


def _constant(value: str | int | None, t: SqlType) -> BoundNode:
    if value is None:
        return Const(t, None)
    return Const(t, pa.scalar(value, pa.int32() if t is INT4 else pa.string()))


def _current_setting(b: Binder, call: FunctionCall, position: int | None) -> BoundNode:
    args = [settle(b.ctx, a) for a in b.bind_all(call.args)]
    if not 1 <= len(args) <= 2:
        raise b.no_function(call.name, args, position)
    name = args[0]
    if not isinstance(name, Const) or not isinstance(name.value, pa.Scalar):
        raise unsupported("current_setting() of a name that is no constant", position)
    b.ctx.depends_on(Dependence.SESSION, "current_setting()")
    value = b.ctx.session.setting(name.value.as_py())
    missing_ok = len(args) == 2 and isinstance(args[1], Const) and _truth(args[1])
    if value is None and not missing_ok:
        raise UndefinedObject(
            f'unrecognized configuration parameter "{name.value.as_py()}"',
            sqlstate="42704",
            position=position,
        )
    return _constant(value, TEXT)


def _truth(node: Const) -> bool:
    return isinstance(node.value, pa.Scalar) and node.value.as_py() is True


def _pg_typeof(b: Binder, call: FunctionCall, position: int | None) -> BoundNode:
    args = b.bind_all(call.args)
    if len(args) != 1:
        raise b.no_function(call.name, args, position)
    from tidemill.sql.functions.lattice import base

    # The type's name without a length: char(n) and bpchar are one type.
    name = "character" if args[0].type.kind is Kind.CHAR else str(base(args[0].type))
    return _constant(name, TEXT)


def _nullary(make: _Maker) -> Callable[[Binder, FunctionCall, int | None], BoundNode]:
    def build(b: Binder, call: FunctionCall, position: int | None) -> BoundNode:
        if call.args or call.star:
            raise b.no_function(call.name, b.bind_all(call.args), position)
        return make(b, f"{call.name}()")

    return build


_user = _fact(lambda s: s.user)
_session_user = _fact(lambda s: s.session_user)
_database = _fact(lambda s: s.database)
_schema = _fact(lambda s: s.schemas[0] if s.schemas else None)

FUNCTIONS: dict[str, Callable[[Binder, FunctionCall, int | None], BoundNode]] = {
    "now": _nullary(now_value),
    "transaction_timestamp": _nullary(now_value),
    "statement_timestamp": _nullary(_statement_began),
    "mz_now": _nullary(_mz_now),
    "version": _nullary(_fact(lambda s: s.version, TEXT)),
    "current_database": _nullary(_database),
    "current_schema": _nullary(_schema),
    "pg_backend_pid": _nullary(_fact(lambda s: s.backend_pid, INT4)),
    "current_setting": _current_setting,
    "pg_typeof": _pg_typeof,
}


def _as(t: SqlType) -> _Maker:
    return lambda b, used: Convert(t, now_value(b, used))


def _handler(make: _Maker, word: str) -> Callable[[Binder, exp.Expr], BoundNode]:
    """`word`: the written form, for nodes without one."""

    def build(b: Binder, node: exp.Expr) -> BoundNode:
        if node.this is not None:
            raise unsupported(f"a precision of {type(node).__name__}", position_of(node))
        written = str(node.meta.get("function") or word)
        return make(b, "now()" if written == "now" else written)

    return build


HANDLERS: dict[type[exp.Expr], Callable[[Binder, exp.Expr], BoundNode]] = {
    exp.CurrentTimestamp: _handler(now_value, "current_timestamp"),
    exp.CurrentDate: _handler(_as(DATE), "current_date"),
    exp.Localtime: _handler(_as(TIME), "localtime"),
    exp.Localtimestamp: _handler(_as(TIMESTAMP), "localtimestamp"),
    exp.CurrentUser: _handler(_user, "current_user"),
    exp.CurrentRole: _handler(_user, "current_role"),
    exp.SessionUser: _handler(_session_user, "session_user"),
    exp.CurrentSchema: _handler(_schema, "current_schema"),
    exp.CurrentCatalog: _handler(_database, "current_catalog"),
}
