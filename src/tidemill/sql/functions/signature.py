"""One row of the allow-list: a function, operator or aggregate for one list of argument types.

A row has PostgreSQL's name, the argument types, the result type, and the builder of the Spark form. A builder
gets its arguments as Spark trees in the storage form of the declared types (`types.spark`) and must return
the storage form of the result. A query can only use functions that are in the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidemill.errors import Internal
from tidemill.sql.functions.tree import Tree, call
from tidemill.types.model import SqlType

Builder = Callable[[Sequence[Tree]], Tree]


class Poly(Enum):
    """Polymorphic declared types. All `ELEMENT`s of a call are one type, all `ARRAY`s are arrays of it, all
    `LIST`s lists of it; each `ANY` is independent.
    """

    ELEMENT = "anyelement"
    ARRAY = "anyarray"
    LIST = "anylist"
    ANY = '"any"'


Declared = SqlType | Poly


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function in Python of one row's values, for Spark's tasks and for values at hand. `types` are the
    types of the arguments, with that of the session's time zone if it is `zoned`. A NULL argument gives NULL
    unless `nulls`."""

    key: str
    types: tuple[SqlType, ...]
    result: SqlType
    run: Callable[..., Any]
    zoned: bool = False
    nulls: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Fn:
    """A row. `variadic`: the last declared type may occur any number of times (at least once). `typed`
    builders also get the actual argument types. Results of `volatile` functions differ from row to row and
    must not be folded or repeated.
    """

    name: str
    args: tuple[Declared, ...]
    result: Declared
    build: Builder
    variadic: bool = False
    aggregate: bool = False
    # An aggregate's answer over a window frame would need another rewrite than `build`; those without one are
    # refused there.
    windowed: bool = True
    typed: Callable[[Sequence[Tree], Sequence[SqlType]], Tree] | None = None
    volatile: bool = False
    # A function of PostgreSQL that does not exist here: `build` raises the error that names it.
    refused: bool = False
    # The function that computes it over values at hand, if it has such a form and is brief: here nothing can
    # stop it. It is the one that Spark's tasks run, so the results are the same.
    at_hand: RowFunction | None = None

    def builder(self, types: Sequence[SqlType]) -> Builder:
        """The function that builds the Spark tree for arguments of these types."""
        typed = self.typed
        return self.build if typed is None else lambda args: typed(args, types)


_functions: dict[str, list[Fn]] = {}
_operators: dict[str, list[Fn]] = {}
_known_elsewhere: set[str] = set()
_statement_calls: dict[str, str] = {}


def spark(name: str) -> Builder:
    """The builder for a Spark function with the same meaning as PostgreSQL's."""
    return lambda args: call(name, *args)


def made_of_rows(_args: Sequence[Tree]) -> Tree:
    """The builder of an aggregate that a finisher makes of all rows of the group (`collected`)."""
    raise Internal("an aggregate without a Spark form of its own")


def function(
    name: str,
    args: Sequence[Declared],
    result: Declared,
    build: Builder | str,
    *,
    variadic: bool = False,
    typed: Callable[[Sequence[Tree], Sequence[SqlType]], Tree] | None = None,
    volatile: bool = False,
    refused: bool = False,
    at_hand: RowFunction | None = None,
) -> None:
    """Add a scalar function; a string for `build` names a Spark function."""
    builder = spark(build) if isinstance(build, str) else build
    row = Fn(
        name,
        tuple(args),
        result,
        builder,
        variadic=variadic,
        typed=typed,
        volatile=volatile,
        refused=refused,
        at_hand=at_hand,
    )
    _functions.setdefault(name, []).append(row)


def operator(
    name: str,
    args: Sequence[Declared],
    result: Declared,
    build: Builder,
    *,
    typed: Callable[[Sequence[Tree], Sequence[SqlType]], Tree] | None = None,
    at_hand: RowFunction | None = None,
) -> None:
    _operators.setdefault(name, []).append(Fn(name, tuple(args), result, build, typed=typed, at_hand=at_hand))


def aggregate(
    name: str,
    args: Sequence[Declared],
    result: Declared,
    build: Builder | str,
    *,
    windowed: bool = True,
    typed: Callable[[Sequence[Tree], Sequence[SqlType]], Tree] | None = None,
) -> None:
    builder = spark(build) if isinstance(build, str) else build
    row = Fn(name, tuple(args), result, builder, aggregate=True, windowed=windowed, typed=typed)
    _functions.setdefault(name, []).append(row)


def not_yet(names: str) -> None:
    """Functions that PostgreSQL has and Tidemill does not (separated by blanks): their error is 0A000, not
    42883.
    """
    _known_elsewhere.update(names.split())


def statement_call(name: str, hint: str) -> None:
    """A function with side effects, which is allowed only in the select list of a statement. Anywhere else it
    is refused by name, with this hint."""
    _statement_calls[name] = hint


def statement_call_hint(name: str) -> str | None:
    return _statement_calls.get(name)


def functions_named(name: str) -> Sequence[Fn]:
    return _functions.get(name, ())


def operators_named(name: str) -> Sequence[Fn]:
    return _operators.get(name, ())


def every_function() -> list[Fn]:
    """Scalar functions and aggregates."""
    return [f for group in _functions.values() for f in group]


def every_operator() -> list[Fn]:
    return [f for group in _operators.values() for f in group]


def is_not_yet(name: str) -> bool:
    return name in _known_elsewhere


def is_aggregate_name(name: str) -> bool:
    return any(f.aggregate for f in _functions.get(name, ()))


def inventory() -> list[str]:
    """Every row as text, for the documentation and the tests."""
    rows = [*_functions.values(), *_operators.values()]
    return sorted(
        f"{f.name}({', '.join(map(declared_name, f.args))}) -> {declared_name(f.result)}"
        for group in rows
        for f in group
    )


def declared_name(d: Declared) -> str:
    return d.value if isinstance(d, Poly) else str(d)
