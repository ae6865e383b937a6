"""Functions that ask the session: who, where, when. They are constants of the statement, or, for now() and
mz_now(), values that are fixed when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import UndefinedObject
from tidemill.sql.bind.calls import FunctionCall
from tidemill.sql.bind.coerce import settle
from tidemill.sql.bind.errors import position_of, unsupported
from tidemill.sql.bind.ir import Const, Convert, Node, SessionValue
from tidemill.sql.functions.markers import Fixed
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


def now_value(b: Binder) -> Node:
    b.ctx.uses_now = True
    return SessionValue(TIMESTAMPTZ, Fixed.NOW)


def _statement_began(b: Binder) -> Node:
    b.ctx.uses_now = True
    return SessionValue(TIMESTAMPTZ, Fixed.STATEMENT)


def _mz_now(b: Binder) -> Node:
    b.ctx.uses_mz_now = True
    return SessionValue(MZ_TIMESTAMP, Fixed.MZ_NOW)


def _constant(value: str | int | None, t: SqlType) -> Node:
    if value is None:
        return Const(t, None)
    return Const(t, pa.scalar(value, pa.int32() if t is INT4 else pa.string()))


def _schema(b: Binder) -> Node:
    schemas = b.ctx.session.schemas
    return _constant(schemas[0] if schemas else None, NAME)


def _current_setting(b: Binder, call: FunctionCall, position: int | None) -> Node:
    args = [settle(b.ctx, a) for a in b.bind_all(call.args)]
    if not 1 <= len(args) <= 2:
        raise b.no_function(call.name, args, position)
    name = args[0]
    if not isinstance(name, Const) or not isinstance(name.value, pa.Scalar):
        raise unsupported("current_setting() of a name that is no constant", position)
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


def _pg_typeof(b: Binder, call: FunctionCall, position: int | None) -> Node:
    args = b.bind_all(call.args)
    if len(args) != 1:
        raise b.no_function(call.name, args, position)
    from tidemill.sql.functions.lattice import base

    # A type's own name, which tells no length: char(n) and bpchar are one.
    name = "character" if args[0].type.kind is Kind.CHAR else str(base(args[0].type))
    return _constant(name, TEXT)


def _nullary(make: Callable[[Binder], Node]) -> Callable[[Binder, FunctionCall, int | None], Node]:
    def build(b: Binder, call: FunctionCall, position: int | None) -> Node:
        if call.args or call.star:
            raise b.no_function(call.name, b.bind_all(call.args), position)
        return make(b)

    return build


def _user(b: Binder) -> Node:
    return _constant(b.ctx.session.user, NAME)


def _session_user(b: Binder) -> Node:
    return _constant(b.ctx.session.session_user, NAME)


def _database(b: Binder) -> Node:
    return _constant(b.ctx.session.database, NAME)


FUNCTIONS: dict[str, Callable[[Binder, FunctionCall, int | None], Node]] = {
    "now": _nullary(now_value),
    "transaction_timestamp": _nullary(now_value),
    "statement_timestamp": _nullary(_statement_began),
    "mz_now": _nullary(_mz_now),
    "version": _nullary(lambda b: _constant(b.ctx.session.version, TEXT)),
    "current_database": _nullary(_database),
    "current_schema": _nullary(_schema),
    "pg_backend_pid": _nullary(lambda b: _constant(b.ctx.session.backend_pid, INT4)),
    "current_setting": _current_setting,
    "pg_typeof": _pg_typeof,
}


def _handler(make: Callable[[Binder], Node]) -> Callable[[Binder, exp.Expr], Node]:
    def build(b: Binder, node: exp.Expr) -> Node:
        if node.this is not None:
            raise unsupported(f"a precision of {type(node).__name__}", position_of(node))
        return make(b)

    return build


HANDLERS: dict[type[exp.Expr], Callable[[Binder, exp.Expr], Node]] = {
    exp.CurrentTimestamp: _handler(now_value),
    exp.CurrentDate: _handler(lambda b: Convert(DATE, now_value(b))),
    exp.Localtime: _handler(lambda b: Convert(TIME, now_value(b))),
    exp.Localtimestamp: _handler(lambda b: Convert(TIMESTAMP, now_value(b))),
    exp.CurrentUser: _handler(_user),
    exp.CurrentRole: _handler(_user),
    exp.SessionUser: _handler(_session_user),
    exp.CurrentSchema: _handler(_schema),
    exp.CurrentCatalog: _handler(_database),
}
