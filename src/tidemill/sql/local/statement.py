"""A whole statement: compiled once, executed any number of times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import UndefinedObject, Unsupported
from tidemill.sql.bind.model import NameResolver, SessionInfo
from tidemill.sql.functions.rowwise import stored
from tidemill.sql.local.cast import writer
from tidemill.sql.local.context import LocalContext
from tidemill.sql.local.functions import Function
from tidemill.sql.local.kinds import REGTYPES, Reg, Type, is_vector, shown
from tidemill.sql.local.model import Level, NotLocal, Row, Runtime, SessionFacts
from tidemill.sql.local.query import compile_level
from tidemill.types.arrow import arrow_type
from tidemill.types.model import NUMERIC, TEXT, Column, Kind, SqlType


@dataclass(frozen=True, slots=True)
class LocalQuery:
    """`relations` are the ids of the relations that it reads."""

    columns: tuple[Column, ...]
    param_types: tuple[SqlType, ...]
    relations: frozenset[str]
    level: Level

    def run(
        self,
        facts: SessionFacts,
        rows: Callable[[str], Sequence[Row]],
        params: Sequence[Any],
        check: Callable[[], None],
        steps: int | None = None,
    ) -> pa.Table:
        """The result, with columns c0, c1, ... `rows` returns a relation's rows; `check` raises if the
        statement was cancelled. Raises `LocalTooLarge` if the query makes more rows than the limit.
        """
        rt = Runtime(facts, rows, params, check, steps)
        found = self.level.rows(None, rt)
        arrays: list[pa.Array] = []
        for i, t in enumerate(self.level.types):
            write = writer(t) if isinstance(t, Reg) or is_vector(t) else None
            values = [r[i] for r in found]
            if write is not None:
                values = [None if v is None else write(v, rt) for v in values]
            if t is Reg.PROC:
                oids = [r[i] for r in found]
                values = [
                    None if v is None else {"oid": v, "name": n} for v, n in zip(oids, values, strict=True)
                ]
            if t == REGTYPES:
                name = writer(Reg.TYPE)
                assert name is not None
                values = [None if v is None else [{"oid": o, "name": name(o, rt)} for o in v] for v in values]
            told = shown(t)
            if told == NUMERIC:
                values = [stored(v, told) for v in values]
            arrays.append(pa.array(values, arrow_type(told)))
        return pa.Table.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])


def compile_query(
    query: exp.Expr,
    names: NameResolver,
    session: SessionInfo,
    functions: Mapping[str, Sequence[Function]],
    is_local: Mapping[str, int],
    param_types: Sequence[SqlType | None],
) -> LocalQuery:
    """The compiled query; raises `NotLocal` if it cannot run here. `is_local` has the ids of the relations
    with rows in memory, and their OIDs.
    """
    ctx = LocalContext(session, names, functions, is_local, list(param_types))
    try:
        level = compile_level(ctx, query, None, {})
    except (UndefinedObject, Unsupported) as e:
        # An unknown name or type: the binder reports it with its position.
        raise NotLocal(e.primary) from e
    types: list[Type] = level.types
    if not types or any(isinstance(t, SqlType) and t.kind is Kind.RECORD for t in types):
        raise NotLocal("an answer of no columns, or of records")
    columns = tuple(Column(n, shown(t)) for n, t in zip(level.names, types, strict=True))
    given = tuple(TEXT if t is None or t.kind is Kind.UNKNOWN else t for t in ctx.params)
    return LocalQuery(columns, given, frozenset(ctx.relations), level)
