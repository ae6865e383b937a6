"""The state shared by all parts of one statement's binding: parameter types, unique names, inputs so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from tidemill.errors import LimitExceeded, TidemillError
from tidemill.sql.bind.determinism import Dependence, Determinism
from tidemill.sql.bind.errors import IndeterminateType
from tidemill.sql.bind.model import Relation, SessionInfo
from tidemill.types.model import TEXT, Kind, SqlType

# Views may stand on views; a chain this long is a mistake, and each level costs a stack of Python frames.
MAX_VIEW_DEPTH = 64
# A view or WITH query that is named again is written out again: thirty that each name the one before twice
# would be a billion. This many nodes of repetitions are some ten megabytes and two seconds of work.
MAX_REPEATED_NODES = 50_000

# As many as a Bind message can bring: it counts them with 16 bits.
MAX_PARAMETERS = 65535


class BindContext:
    """One per call of the binder. Not thread-safe."""

    def __init__(self, session: SessionInfo, param_types: Sequence[SqlType | None]) -> None:
        self.session = session
        # $1 is at index 0; None until the parameter is used where its type is known.
        self.params: list[SqlType | None] = [
            None if t is None or t.kind is Kind.UNKNOWN else t for t in param_types
        ]
        # Numbers of parameters that are text for lack of another type (`leave_param`).
        self._open_params: set[int] = set()
        # placeholder -> relation id, and the physical columns that were named.
        self.inputs: dict[str, str] = {}
        self.used: dict[str, set[str]] = {}
        self._placeholders: dict[str, str] = {}
        # Spark alias of a base relation -> its placeholder.
        self.bases: dict[str, str] = {}
        # Dependencies beyond rows, as they were written.
        self._dependences: dict[str, Dependence] = {}
        self.view_depth = 0
        # Views (by their ids) and WITH queries (by their identity here) that were written out, and the size
        # of what was written out again.
        self._written: set[str | int] = set()
        self._repeated = 0
        self._aliases = 0

    def depends_on(self, dependence: Dependence, used: str) -> None:
        """`used`: what the query calls it, `now()` or `current_user`."""
        self._dependences.setdefault(used, dependence)

    def determinism(self) -> Determinism:
        return Determinism(dict(self._dependences))

    def alias(self) -> str:
        """A table alias that nothing else in the statement has."""
        self._aliases += 1
        return f"t{self._aliases}"

    def input(self, relation: Relation, alias: str) -> str:
        """The placeholder of a stored relation, one per relation however often it is named."""
        placeholder = self._placeholders.get(relation.id)
        if placeholder is None:
            placeholder = f"tm_in_{len(self.inputs)}"
            self._placeholders[relation.id] = placeholder
            self.inputs[placeholder] = relation.id
            self.used[placeholder] = set()
        self.bases[alias] = placeholder
        return placeholder

    def write_out(self, what: str | int, tree: Callable[[], exp.Expr]) -> None:
        """A view or WITH query takes its place in the query, once more perhaps."""
        if what not in self._written:
            self._written.add(what)
            return
        self._repeated += sum(1 for _ in tree().walk())
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
        # Whoever names it again goes by what it is now.
        self._open_params.discard(index)
        return self.params[index - 1]

    def fix_param(self, index: int, t: SqlType, position: int | None) -> None:
        """The parameter's context says its type; the first one that does decides."""
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
        """Nothing in its SELECT said its type, and it became text. The other side of a UNION, or the column
        it is inserted into, may still decide otherwise, as long as nothing else has relied on it."""
        self._open_params.add(index)

    def final_params(self) -> tuple[SqlType, ...]:
        for i, t in enumerate(self.params):
            if t is None:
                raise IndeterminateType(f"could not determine data type of parameter ${i + 1}")
        return tuple(t if t is not None else TEXT for t in self.params)
