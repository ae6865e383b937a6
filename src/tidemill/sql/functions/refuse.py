"""Allow-list rows for PostgreSQL functions that Tidemill does not have yet.

They take part in overload resolution, so a call never resolves to another overload with a different result.
When chosen, they raise `Unsupported` with their name.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.errors import Unsupported
from tidemill.sql.functions.signature import Builder, Declared, aggregate, declared_name, function
from tidemill.sql.functions.tree import Tree


def _refusal(what: str, hint: str | None) -> Builder:
    def build(_args: Sequence[Tree]) -> Tree:
        raise Unsupported(f"{what} is not supported", hint=hint)

    return build


def _signature(name: str, args: Sequence[Declared]) -> str:
    return f"function {name}({', '.join(map(declared_name, args))})"


def refused_function(
    name: str, args: Sequence[Declared], result: Declared, hint: str | None = None, *, variadic: bool = False
) -> None:
    function(name, args, result, _refusal(_signature(name, args), hint), variadic=variadic, refused=True)


def refused_aggregate(name: str, args: Sequence[Declared], result: Declared, hint: str | None = None) -> None:
    aggregate(name, args, result, _refusal(_signature(name, args), hint))
