"""The statements that a session keeps: current plans, and texts that occur repeatedly (`SELECT 1` of a pool,
the query of a dashboard).

Used by `session`. Promises that a kept plan gives the same answer as a new one. Its key is everything that
planning depends on besides the text and the types of the parameters:

- the state of the catalog: names, columns, views, roles, privileges, system parameters;
- the generation of the session's variables: database, search_path, role, time zone, custom variables, SET
  LOCAL, set_config, and the changes that a rollback reverts;
- whether the transaction is read-only, which current_setting('transaction_read_only') shows;
- for EXECUTE the prepared statement that has the name now, for FETCH and MOVE the columns of the cursor that
  has the name now.

Everything else (the time, the rows of relations, other settings of the transaction, arguments) is read when a
plan runs, never when it is made. `tests/server/test_kept_statements.py` checks this.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tidemill import caches
from tidemill.engine.api import PreparedStatement, same_result
from tidemill.errors import ResultChanged
from tidemill.sql import ast
from tidemill.types.model import Column, SqlType

if TYPE_CHECKING:
    from tidemill.catalog.state import CatalogState
    from tidemill.catalog.store import Catalog
    from tidemill.engine.session.plan import Plan
    from tidemill.engine.session.portals import Portals
    from tidemill.engine.session.prepared_statements import Statements
    from tidemill.engine.session.transactions import Transactions
    from tidemill.engine.session.variables import Variables
    from tidemill.sql.parse import ParsedStatement

# The number of texts that are kept with their plans, some 20 kB each, and of hashes of recent texts.
MAX_KEPT = 8
MAX_SEEN = 8


# Statements that PostgreSQL analyses at Bind; it analyses all others only when they run.
_ANALYSED = (
    *(ast.Query, ast.Insert, ast.Update, ast.Delete, ast.Subscribe, ast.Declare, ast.Explain),
    ast.CreateTableAs,
)


class PlanInputs(NamedTuple):
    """The current inputs of plans. One per session."""

    catalog: Catalog
    variables: Variables
    transactions: Transactions
    statements: Statements
    portals: Portals


class Basis(NamedTuple):
    """The inputs of a plan. Its parts are compared by identity or as numbers."""

    catalog: CatalogState
    variables: int
    read_only: bool
    # The object that the statement's name denoted: a `PreparedStatement`, or the columns of a cursor.
    named: object


class KeptStatement:
    """The value of `PreparedStatement.statement`: the parsed statement, and its plan as long as that is
    current."""

    __slots__ = (
        *("_basis", "_plan", "analysed", "declared_types", "fixed", "follows_name", "param_types", "parsed"),
    )

    def __init__(
        self, parsed: ParsedStatement | None, types: tuple[SqlType | None, ...], *, fixed: bool
    ) -> None:
        """`fixed`: the statement was prepared, so its client may know its columns and the types of its
        parameters."""
        self.parsed = parsed  # None: the empty statement
        # The types of the parameters: those that the client declared, and those inferred since.
        self.declared_types = self.param_types = types
        self.fixed = fixed
        statement = None if parsed is None else parsed.statement
        # PostgreSQL analyses it at Bind. (Both are asked for with every execution.)
        self.analysed = isinstance(statement, _ANALYSED)
        # The result of EXECUTE and FETCH depends on the object that the name denotes when they run.
        self.follows_name = isinstance(statement, ast.Execute | ast.Fetch)
        self._plan: Plan | None = None
        self._basis: Basis | None = None

    def again(self, now: PlanInputs) -> KeptStatement:
        """Another statement of the same text, prepared again; the plan is shared as long as it is current."""
        made = KeptStatement(self.parsed, self.declared_types, fixed=self.fixed)
        plan = self.plan(now)
        if plan is not None:
            made.keep(plan, self._basis)
        return made

    def basis(self, now: PlanInputs) -> Basis:
        """The inputs of a plan that is made now."""
        read_only = now.transactions.read_only
        return Basis(now.catalog.state, now.variables.generation, read_only, self._named(now))

    def plan(self, now: PlanInputs) -> Plan | None:
        """The kept plan, if it is current."""
        known = self._basis
        if (
            known is None
            or known.catalog is not now.catalog.state
            or known.variables != now.variables.generation
            or known.read_only != now.transactions.read_only
            or (self.follows_name and known.named is not self._named(now))
            or not caches.ENABLED
        ):
            return None
        return self._plan

    def keep(self, plan: Plan, basis: Basis | None) -> None:
        self._plan, self._basis = plan, basis
        if self.fixed:
            self.param_types = plan.param_types

    @property
    def planned(self) -> bool:
        """Whether it was planned before, so that a client may know the columns of a `fixed` statement."""
        return self._plan is not None

    def _named(self, now: PlanInputs) -> object:
        if not self.follows_name:
            return None
        statement = None if self.parsed is None else self.parsed.statement
        if isinstance(statement, ast.Execute):
            return now.statements.find(statement.name.value)
        if isinstance(statement, ast.Fetch):
            portal = now.portals.find(statement.cursor.value)
            return None if portal is None else portal.columns
        return None


def check_result(before: Sequence[Column] | None, now: Sequence[Column] | None) -> None:
    """Checks the result of a prepared statement: its client reads rows as they were described."""
    if not same_result(before, now):
        raise ResultChanged


class StatementCache:
    """The texts of one session."""

    __slots__ = ("_kept", "_seen")

    def __init__(self) -> None:
        # The most recently used is last. Created with the first text that occurs twice.
        self._kept: OrderedDict[Hashable, list[PreparedStatement]] | None = None
        self._seen: deque[int] | None = None

    def get(self, text: Hashable) -> list[PreparedStatement] | None:
        if self._kept is None or not caches.ENABLED:
            return None
        found = self._kept.get(text)
        if found is not None:
            self._kept.move_to_end(text)
        return found

    def seen(self, text: Hashable, statements: list[PreparedStatement]) -> None:
        """Records that the text was parsed. The key `text` may include more: the types of its parameters."""
        mark = hash(text)
        if self._seen is None:
            self._seen = deque(maxlen=MAX_SEEN)
        if mark not in self._seen:
            self._seen.append(mark)
            return
        if self._kept is None:
            self._kept = OrderedDict()
        self._kept[text] = statements
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        self._kept = self._seen = None
