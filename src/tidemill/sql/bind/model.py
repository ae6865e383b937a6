"""The binder's inputs and outputs.

The engine passes names (`NameResolver`), session values (`SessionInfo`) and a parsed query. It gets a
`BoundQuery`: typed columns, the plan over placeholder names, and the relation of each placeholder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

import pyarrow as pa
from sqlglot import exp

from tidemill.errors import Internal
from tidemill.sql.bind.constant import Constants
from tidemill.sql.bind.determinism import DETERMINED, Dependence, Determinism
from tidemill.sql.functions.markers import Fixed, read_marker
from tidemill.sql.functions.tree import sql_text
from tidemill.sql.lower.queries import lower_query
from tidemill.sql.plan.expressions import known_parameters
from tidemill.sql.plan.operators import Operator, is_ordered, rewrite_plan
from tidemill.types.model import Column, RelationDesc, SqlType


class NameResolver(Protocol):
    """Finds relations by name, using the session's database and search path."""

    def relation(self, parts: tuple[str, ...], position: int | None) -> Relation:
        """Raises UndefinedObject (42P01) if it does not exist, with `position`."""
        ...


@dataclass(frozen=True, slots=True)
class Relation:
    """A table, source, materialized view (read by its id) or view (expanded)."""

    id: str
    path: tuple[
        str, ...
    ]  # its full name: the schema's and, of what users made, the database's before its own
    desc: RelationDesc
    physical: tuple[str, ...] = ()  # the columns' names in the Spark view, in order
    view: exp.Expr | None = None  # the query of a view
    view_scope: NameResolver | None = None  # how that query's names resolve
    # Columns that can be named but are not part of *, with their names in the Spark view.
    hidden: tuple[tuple[Column, str], ...] = ()

    @property
    def name(self) -> str:
        """The name in messages."""
        return ".".join(self.path)


def _no_setting(_name: str) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The session values that expressions may use. `now` is fixed per transaction. `mz_now` is the time of
    the read; it is None while unknown, and `substitute` must complete a query that uses it."""

    database: str = "materialize"
    schemas: tuple[str, ...] = ("public",)
    user: str = "materialize"
    session_user: str = "materialize"
    backend_pid: int = 0
    now: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    mz_now: int | None = None
    time_zone: str = "UTC"
    setting: Callable[[str], str | None] = field(default=_no_setting, compare=False)
    version: str = "Tidemill"
    # The start of the statement; None if it equals `now`.
    statement: Callable[[], datetime] | None = field(default=None, compare=False)

    def statement_began(self) -> datetime:
        return self.now if self.statement is None else self.statement()


class Lowered:
    """A plan and its Spark tree, which is made once, when it is needed. The tree contains markers for
    parameters and session values, and must not be changed."""

    def __init__(self, plan: Operator) -> None:
        self.plan = plan
        self._tree: exp.Expr | None = None

    def tree(self) -> exp.Expr:
        if self._tree is None:
            self._tree = lower_query(self.plan)
        return self._tree


@dataclass(frozen=True, slots=True)
class BoundQuery:
    """A query that is ready to run, or, with parameters, ready for `substitute`.

    In its plan each relation is named by a placeholder. The output columns are c0, c1, ... in the order of
    `columns`, with their storage types. `used` are the physical columns that each placeholder must provide.
    `constants` is set if the query is a list of rows without relations (which may still need Spark: see
    `constant_rows`).
    """

    columns: tuple[Column, ...]
    lowered: Lowered
    inputs: Mapping[str, str]
    used: Mapping[str, frozenset[str]]
    # Those whose values are not known yet.
    param_types: tuple[SqlType, ...]
    session: SessionInfo
    determinism: Determinism = DETERMINED
    constants: Constants | None = None
    # The values of the parameters, after `substitute`.
    params: tuple[pa.Scalar, ...] = ()

    @property
    def plan(self) -> Operator:
        """The plan, with the values of parameters that are known."""
        plan = self.lowered.plan
        return rewrite_plan(plan, known_parameters(self.params)) if self.params else plan

    @property
    def ordered(self) -> bool:
        return is_ordered(self.lowered.plan)

    @property
    def uses_now(self) -> bool:
        return self.determinism.on(Dependence.CLOCK) is not None

    @property
    def uses_mz_now(self) -> bool:
        return self.determinism.on(Dependence.READ_TIME) is not None

    @property
    def uses_time_zone(self) -> bool:
        """Whether a time is read or shown in the session's time zone."""
        markers = (read_marker(node) for node in self.lowered.tree().find_all(exp.Placeholder))
        return self.determinism.on(Dependence.TIME_ZONE) is not None or any(
            marker is not None and marker[0] is Fixed.ZONE for marker in markers
        )

    @property
    def is_constant(self) -> bool:
        return not self.inputs

    @property
    def spark(self) -> exp.Expr:
        """The query as a Spark tree; values that are not known yet are still markers."""
        from tidemill.sql.bind.substitute import complete

        return complete(self.lowered.tree(), self.params, self.session)

    def sql(self) -> str:
        """The query as Spark SQL text. All values must be known."""
        tree = self.spark
        for node in tree.find_all(exp.Placeholder):
            marker = read_marker(node)
            raise Internal(f"marker {marker[0] if marker else node.this} left in a query")
        return sql_text(tree)

    def describe(self) -> str:
        """The query for EXPLAIN: its columns, its inputs and its Spark form over their names."""
        from tidemill.sql.bind.describe import describe

        return describe(self)

    def with_session(self, session: SessionInfo) -> BoundQuery:
        """The same query with the session values of another time (for a prepared statement that runs
        again)."""
        return replace(self, session=session)


@dataclass(frozen=True, slots=True)
class BoundExpr:
    """A scalar expression over given columns, which `tree` names with the caller's alias."""

    type: SqlType
    tree: exp.Expr
    param_types: tuple[SqlType, ...]
    session: SessionInfo
    constants: Constants | None = None

    def sql(self) -> str:
        from tidemill.sql.bind.substitute import complete

        return sql_text(complete(self.tree, (), self.session))
