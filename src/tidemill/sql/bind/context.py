"""The state shared by all parts of one statement's binding: parameter types, unique names, inputs so far."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.errors import LimitExceeded, TidemillError
from tidemill.sql.bind.determinism import Dependence, Determinism
from tidemill.sql.bind.errors import IndeterminateType
from tidemill.sql.bind.model import Relation, SessionInfo
from tidemill.sql.plan.operators import Operator, size
from tidemill.types.model import TEXT, Kind, SqlType

# Views may be nested. A deeper chain is probably a mistake, and each level uses Python stack frames.
MAX_VIEW_DEPTH = 64
# Each reference to a view or WITH query repeats it. Thirty that reference the previous one twice would be a
# billion copies. This limit on the operators and expressions of the repetitions is about ten megabytes of
# Spark SQL and two seconds of work: a node of the plan is some five nodes there.
MAX_REPEATED_NODES = 10_000

# The maximum of a Bind message, which has a 16-bit count.
MAX_PARAMETERS = 65535


class BindContext:
    """One per statement that is bound. Not thread-safe."""

    def __init__(self, session: SessionInfo, param_types: Sequence[SqlType | None]) -> None:
        self.session = session
        # $1 is at index 0; None until the parameter is used where its type is known.
        self.params: list[SqlType | None] = [
            None if t is None or t.kind is Kind.UNKNOWN else t for t in param_types
        ]
        # Numbers of parameters that became text because nothing determined their type (`leave_param`).
        self._open_params: set[int] = set()
        # placeholder -> relation id, and the physical columns that the query uses.
        self.inputs: dict[str, str] = {}
        self.used: dict[str, set[str]] = {}
        self._placeholders: dict[str, str] = {}
        # Spark alias of a base relation -> its placeholder.
        self.bases: dict[str, str] = {}
        # Dependencies other than rows, as written in the query.
        self._dependences: dict[str, Dependence] = {}
        self.view_depth = 0
        # Views (by id) and WITH queries (by identity) that were copied into the query, and the total size of
        # repeated copies.
        self._written: set[str | int] = set()
        self._sizes: dict[int, tuple[Operator, int]] = {}
        self._repeated = 0
        self._aliases = 0

    def depends_on(self, dependence: Dependence, used: str) -> None:
        """Record a dependency. `used` is its text in the query: `now()` or `current_user`."""
        self._dependences.setdefault(used, dependence)

    def determinism(self) -> Determinism:
        return Determinism(dict(self._dependences))

    def alias(self) -> str:
        """A table alias that nothing else in the statement has."""
        self._aliases += 1
        return f"t{self._aliases}"

    def input(self, relation: Relation, alias: str) -> str:
        """The placeholder of a stored relation: one per relation, even if the query names it several
        times."""
        placeholder = self._placeholders.get(relation.id)
        if placeholder is None:
            placeholder = f"tm_in_{len(self.inputs)}"
            self._placeholders[relation.id] = placeholder
            self.inputs[placeholder] = relation.id
            self.used[placeholder] = set()
        self.bases[alias] = placeholder
        return placeholder

    def write_out(self, what: str | int, plan: Operator) -> None:
        """Note that a view or WITH query is part of the query, perhaps again."""
        if what not in self._written:
            self._written.add(what)
            return
        self._repeated += size(plan, self._sizes)
        if self._repeated > MAX_REPEATED_NODES:
            raise LimitExceeded(
                "statement too complex",
                detail="Views and WITH queries that it names more than once make it too large.",
                hint="Name them less often, or put what they give into a table.",
                sqlstate="54001",
            )

    def use(self, alias: str, name: str) -> None:
        placeholder = self.bases.get(alias)
        if placeholder is not None:
            self.used[placeholder].add(name)

    def param_type(self, index: int) -> SqlType | None:
        if index < 1 or index > MAX_PARAMETERS:
            raise TidemillError(f"there is no parameter ${index}", sqlstate="42P02")
        while len(self.params) < index:
            self.params.append(None)
        # Another reference relies on the current type, so it must not change any more.
        self._open_params.discard(index)
        return self.params[index - 1]

    def fix_param(self, index: int, t: SqlType, position: int | None) -> None:
        """The context determines the parameter's type. The first context that does so decides."""
        known = self.params[index - 1]
        if known is None or index in self._open_params:
            self.params[index - 1] = t
            self._open_params.discard(index)
        elif known != t:
            raise TidemillError(
                f"inconsistent types deduced for parameter ${index}",
                detail=f"{known} versus {t}",
                sqlstate="42P08",
                position=position,
            )

    def leave_param(self, index: int) -> None:
        """Nothing in its SELECT determined the type, so it became text. The other side of a UNION, or the
        column that it is inserted into, may still change the type, unless something else relies on it."""
        self._open_params.add(index)

    def final_params(self) -> tuple[SqlType, ...]:
        for i, t in enumerate(self.params):
            if t is None:
                raise IndeterminateType(f"could not determine data type of parameter ${i + 1}")
        return tuple(t if t is not None else TEXT for t in self.params)
