"""Function calls: overload resolution and coercion of the arguments.

A `Function` is one row of the allow-list for one list of argument types. `builtins` has those that depend
only on their arguments; the engine adds those that read the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tidemill.sql.bind.calls import FunctionCall
from tidemill.sql.functions.signature import Poly
from tidemill.sql.local.cast import common, explicit, to_type, unify
from tidemill.sql.local.context import LocalContext
from tidemill.sql.local.expr import Expressions
from tidemill.sql.local.jsons import json_operand
from tidemill.sql.local.kinds import INTEGERS, STRINGS, Category, Reg, Type, category, kind
from tidemill.sql.local.logic import all_refs
from tidemill.sql.local.model import Env, NotLocal, Runtime, Typed
from tidemill.types import model
from tidemill.types.arrow import element_type
from tidemill.types.model import TEXT, Kind, SqlType

Declared = Type | Poly


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """`call` gets the runtime and the arguments' values. Unless `lenient`, a NULL argument gives NULL without
    a call. `variadic`: the last argument may occur any number of times. `rows`: it returns a list, one row
    each. The last `optional` arguments may be omitted (and are None then).
    """

    name: str
    args: tuple[Declared, ...]
    result: Declared
    call: Callable[..., Any]
    lenient: bool = False
    variadic: bool = False
    rows: bool = False
    optional: int = 0
    # Its arguments have individual types: a literal alone has none.
    typed: bool = False
    # It takes exactly these types, without coercion: coerced ones would match two functions of its name.
    exact: bool = False
    # It makes JSON of its arguments.
    json: bool = False


def compile_call(x: Expressions, call: FunctionCall, where: exp.Expr | None = None) -> Typed:
    from tidemill.sql.local import grouping

    if grouping.is_aggregate(call.name):
        if x.aggregates is None:
            raise NotLocal(f"{call.name}() is not allowed here")
        return x.aggregates.add(x, call, where)
    if call.star or call.distinct or call.order or where is not None:
        raise NotLocal(f"{call.name}() is no aggregate")
    fn, made = apply(x.ctx, call.name, x.all(call.args))
    return x.set_returning(fn, made) if fn.rows else made


def apply(ctx: LocalContext, name: str, args: Sequence[Typed]) -> tuple[Function, Typed]:
    """The call of the function of this name that accepts these arguments; a set-returning one returns its
    list.
    """
    for exact in (True, False):
        for fn in ctx.functions.get(name, ()):
            declared = _arity(fn, len(args))
            if fn.typed and all(a.untyped for a in args):
                raise NotLocal(f"{name}() of literals")
            if fn.exact and not exact:
                continue
            if declared is not None and all(
                _takes(d, a, exact=exact) for d, a in zip(declared, args, strict=False)
            ):
                return fn, _applied(ctx, fn, declared, args)
    raise NotLocal(f"no function {name}({', '.join(str(a.type) for a in args)})")


_INTS = (Kind.INT2, Kind.INT4, Kind.INT8)
# Types that cast implicitly to a numeric argument.
_WIDENS: dict[Kind, tuple[Kind, ...]] = {
    Kind.INT2: (Kind.INT2,),
    Kind.INT4: (Kind.INT2, Kind.INT4),
    Kind.INT8: _INTS,
    Kind.NUMERIC: (*_INTS, Kind.NUMERIC),
    Kind.OID: (*_INTS, Kind.OID),
}
# Types that a function of any type accepts: their text depends on no format or zone.
_ANY = STRINGS | INTEGERS | {Kind.BOOL, Kind.JSONB}


def _arity(fn: Function, count: int) -> Sequence[Declared] | None:
    """The declared types of `count` arguments."""
    if fn.variadic:
        least = len(fn.args) - 1
        return None if count < least else [*fn.args[:least], *([fn.args[-1]] * (count - least))]
    return fn.args if len(fn.args) - fn.optional <= count <= len(fn.args) else None


def _takes(declared: Declared, arg: Typed, *, exact: bool) -> bool:
    if arg.untyped or arg.type == model.UNKNOWN:
        return True
    if isinstance(declared, Poly):
        if declared is Poly.ANY:
            return isinstance(arg.type, Reg) or arg.type.kind in _ANY
        return declared is not Poly.ARRAY or category(arg.type) is Category.ARRAY
    if declared == arg.type:
        return True
    if exact:
        return False
    if category(declared) is Category.NUMBER:
        return kind(arg.type) in _WIDENS.get(kind(declared), ())
    return category(declared) is category(arg.type) and category(declared) is not Category.OTHER


def _applied(ctx: LocalContext, fn: Function, declared: Sequence[Declared], args: Sequence[Typed]) -> Typed:
    values, element = _coerced(ctx, declared, args)
    if fn.json:
        values = [json_operand(v) for v in values]
    runs = [v.run for v in values]
    missing = [None] * (len(declared) - len(args))
    result = _result(fn, element)
    function = fn.call

    def lenient(e: Env, rt: Runtime) -> Any:
        return function(rt, *(run(e, rt) for run in runs), *missing)

    def strict(e: Env, rt: Runtime) -> Any:
        found = [run(e, rt) for run in runs]
        if None in found:
            return [] if fn.rows else None
        return function(rt, *found, *missing)

    return Typed(result, lenient if fn.lenient else strict, all_refs(values))


def _coerced(
    ctx: LocalContext, declared: Sequence[Declared], args: Sequence[Typed]
) -> tuple[list[Typed], SqlType | None]:
    """The arguments in their declared types, and the type of `Poly.ELEMENT`."""
    element: SqlType | None = None
    for d, a in zip(declared, args, strict=False):
        if d is Poly.ARRAY and isinstance(a.type, SqlType) and a.type.kind is Kind.ARRAY:
            one = element_type(a.type)
            met = one if element is None else common(element, one)
            element = one if isinstance(met, Reg) else met
        elif d is Poly.ELEMENT and element is not None and not a.untyped:
            met = common(element, a.type)
            element = element if isinstance(met, Reg) else met
    if element is None and Poly.ELEMENT in declared:
        pairs = zip(declared, args, strict=False)
        _, t = unify(ctx, [a for d, a in pairs if d is Poly.ELEMENT])
        element = model.OID if isinstance(t, Reg) else t
    if element is None and Poly.ARRAY in declared:
        raise NotLocal("an array of unknown type")
    values: list[Typed] = []
    for d, a in zip(declared, args, strict=False):
        if d is Poly.ANY:
            open_ = a.untyped or a.type == model.UNKNOWN
            named = explicit(ctx, a, TEXT) if isinstance(a.type, Reg) else a
            values.append(to_type(ctx, a, TEXT) if open_ else named)
            continue
        target: Type
        if d is Poly.ELEMENT:
            target = element or TEXT
        elif d is Poly.ARRAY:
            target = model.array(element or TEXT)
        else:
            assert not isinstance(d, Poly)
            target = d
        values.append(
            to_type(ctx, a, target) if a.untyped or a.type == model.UNKNOWN else explicit(ctx, a, target)
        )
    return values, element


def _result(fn: Function, element: SqlType | None) -> Type:
    if fn.result is Poly.ELEMENT:
        return Reg.TYPE if element == model.REGTYPE else element or TEXT
    if fn.result is Poly.ARRAY:
        return model.array(element or TEXT)
    if isinstance(fn.result, Poly):
        raise NotLocal(f"{fn.name}() of any type")
    return fn.result
