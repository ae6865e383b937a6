"""A statement that is ready to run.

`planner.plan` makes one from a parsed statement and a catalog state, on a worker thread and without I/O.
`run` does the work on the event loop and sends blocking calls to worker threads. A plan is valid as long as
the catalog state it was made from is current.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidemill.engine.api import Outcome, Param
from tidemill.errors import TidemillError, UndefinedObject
from tidemill.sql.parse import ParsedStatement
from tidemill.sql.tokens import TokenKind, scan
from tidemill.types.model import Column, SqlType
from tidemill.types.wire import decode_binary, decode_text, few_from_binary, few_from_text, utf8


@dataclass(frozen=True, slots=True)
class Value:
    """A parameter's value: its type and an Arrow scalar in storage form."""

    type: SqlType
    scalar: pa.Scalar


class Plan(Protocol):
    """`columns` is None where the statement returns no rows."""

    @property
    def param_types(self) -> tuple[SqlType, ...]: ...

    @property
    def columns(self) -> tuple[Column, ...] | None: ...

    async def run(self, params: Sequence[Value]) -> Outcome: ...


@dataclass(slots=True)
class Action:
    """A plan without parameters whose work is one function."""

    act: Callable[[], Awaitable[Outcome]]
    columns: tuple[Column, ...] | None = None
    param_types: tuple[SqlType, ...] = ()

    async def run(self, params: Sequence[Value]) -> Outcome:
        del params
        return await self.act()


@dataclass(slots=True)
class ActionOf:
    """A plan that returns no rows, and whose work is one function of its parameters."""

    act: Callable[[Sequence[Value]], Awaitable[Outcome]]
    param_types: tuple[SqlType, ...]
    columns: tuple[Column, ...] | None = None

    async def run(self, params: Sequence[Value]) -> Outcome:
        return await self.act(params)


class ParameterCount(TidemillError):
    """Bind has a different number of parameters than the statement."""

    sqlstate = "08P01"


def no_parameter(parsed: ParsedStatement) -> UndefinedObject:
    """The error of a statement that was sent without parameters but names one."""
    found = next((t for t in scan(parsed.text) if t.kind is TokenKind.PARAM), None)
    number = "1" if found is None else found.value
    at = None if found is None else parsed.offset + found.start + 1
    return UndefinedObject(f"there is no parameter ${number}", sqlstate="42P02", position=at)


def decode_params(types: Sequence[SqlType], params: Sequence[Param], timezone: str) -> list[Value]:
    """The client's bytes as values; raises `InvalidValue` as PostgreSQL does."""
    if len(types) != len(params):
        raise ParameterCount(
            f"bind message supplies {len(params)} parameters, "
            f"but the prepared statement requires {len(types)}"
        )
    values: list[Value] = []
    for t, p in zip(types, params, strict=True):
        values.append(Value(t, _scalar(p, t, timezone)))
    return values


def _scalar(p: Param, t: SqlType, timezone: str) -> pa.Scalar:
    plain = _plain(p, t)
    return (_decoded(p, t, timezone) if plain is None else plain)[0]


def _plain(p: Param, t: SqlType) -> pa.Array | None:
    if p.format == 0:
        texts = utf8([p.data])
        return None if texts is None else few_from_text(texts, t)
    return few_from_binary([p.data], t)


def _decoded(p: Param, t: SqlType, timezone: str) -> pa.Array:
    raw = pa.array([p.data], pa.binary())
    return decode_text(raw, t, timezone=timezone) if p.format == 0 else decode_binary(raw, t)
