"""The data structures of compiled expressions and queries.

A row of a running query is an `Env`: a list whose first field is the environment of the enclosing query. The
other fields (slots) are the rows of the FROM items and the values computed from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tidemill.errors import LimitExceeded
from tidemill.sql.local.kinds import Reg, Type
from tidemill.types.model import TEXT, UNKNOWN

Env = list[Any]
Row = tuple[Any, ...]
# The limit of rows that one statement may make. The largest catalogs have some 100,000; an accidental product
# of two is ten thousand million, which would block the process for hours.
MAX_STEPS = 5_000_000


class NotLocal(Exception):
    """The query uses something that this package does not support; the text is for tests and the log."""


class LocalTooLarge(LimitExceeded):
    """The query produces more rows than the limit. A query without system relations can run elsewhere."""


class SessionFacts(Protocol):
    """The engine's knowledge of names and OIDs."""

    def reg_input(self, kind: Reg, text: str) -> int:
        """The OID of the object that a text names; raises if no such object exists."""
        ...

    def reg_output(self, kind: Reg, oid: int) -> str: ...


class Runtime:
    """One execution: the rows of relations, the session's facts, and values computed once."""

    def __init__(
        self,
        facts: SessionFacts,
        rows: Callable[[str], Sequence[Row]],
        params: Sequence[Any],
        check: Callable[[], None],
        steps: int | None = None,
    ) -> None:
        self.facts = facts
        self.params = params
        self._rows = rows
        self._check = check
        self._steps = 0
        self._most = MAX_STEPS if steps is None else steps
        # Values that are constant within a statement, by the identity of the object that computes them.
        self.cache: dict[object, Any] = {}

    def rows(self, relation_id: str) -> Sequence[Row]:
        found = self.cache.get(relation_id)
        if found is None:
            found = self.cache[relation_id] = self._rows(relation_id)
        return found

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def spend(self, rows: int) -> None:
        """Called wherever rows are made: raises if the statement was cancelled or exceeds its limit."""
        self._steps += rows
        self._check()
        if self._steps > self._most:
            raise LocalTooLarge(
                f"the query over system relations makes more than {self._most} rows on its way",
                hint="Join by equality, or ask for less at a time.",
            )


Run = Callable[[Env, Runtime], Any]
# (levels up, slot): the columns that an expression uses.
Refs = frozenset[tuple[int, int]]
NOTHING: Refs = frozenset()


@dataclass(slots=True)
class Typed:
    """A compiled expression."""

    type: Type
    run: Run
    refs: Refs = NOTHING
    # The text of a literal that has no type yet (None for NULL), and whether it is one.
    literal: str | None = None
    untyped: bool = False
    # $n, while its type is unknown.
    param: int | None = None
    # The two sides of an equality, for joins.
    sides: tuple[Typed, Typed] | None = None
    # Where it is one plain column: (levels up, slot, index).
    column: tuple[int, int, int] | None = None


@dataclass(slots=True)
class LocalVisible:
    """A column that can be referenced. * does not include `hidden` ones (tableoid)."""

    name: str
    value: Typed
    hidden: bool = False


@dataclass(slots=True)
class LocalItem:
    """A FROM item under its name; `qualified` is its alternative name (schema.name)."""

    name: str
    columns: list[LocalVisible]
    slot: int
    qualified: tuple[str, ...] = ()


@dataclass(slots=True)
class LocalScope:
    """The names of one query level. `columns` resolves unqualified names and *."""

    parent: LocalScope | None = None
    items: list[LocalItem] = field(default_factory=list)
    columns: list[LocalVisible] = field(default_factory=list)
    # Slots given out, the first being the enclosing environment.
    size: int = 1

    def slot(self) -> int:
        self.size += 1
        return self.size - 1

    def find(self, parts: Sequence[str], name: str) -> Typed | None:
        """The column, in this level or an enclosing one."""
        if parts:
            items = [i for i in self.items if _answers(i, parts)]
            if len(items) > 1:
                raise NotLocal(f"{parts[-1]} is ambiguous")
            found = [v for v in items[0].columns if v.name == name] if items else []
            if items and not found:
                raise NotLocal(f"no column {name}")
        else:
            found = [v for v in self.columns if v.name == name]
        if len(found) > 1:
            raise NotLocal(f"{name} is ambiguous")
        if found:
            return found[0].value
        outside = None if self.parent is None else self.parent.find(parts, name)
        return None if outside is None else deeper(outside)

    def item(self, name: str) -> LocalItem | None:
        return next((i for i in self.items if i.name == name), None)

    def env(self, outer: Env | None) -> Env:
        return [outer, *([None] * (self.size - 1))]


def _answers(item: LocalItem, parts: Sequence[str]) -> bool:
    if len(parts) == 1:
        return item.name == parts[0]
    return len(item.qualified) >= len(parts) and item.qualified[-len(parts) :] == tuple(parts)


def deeper(value: Typed) -> Typed:
    """A value of an enclosing level, as seen from one level further in."""
    run = value.run
    refs = frozenset((depth + 1, slot) for depth, slot in value.refs)
    column = value.column
    if column is not None:
        column = (column[0] + 1, column[1], column[2])
    return Typed(value.type, lambda e, rt: run(e[0], rt), refs, column=column)


def outward(refs: Refs) -> Refs:
    """The refs of a subquery's interior as seen from the enclosing level."""
    return frozenset((depth - 1, slot) for depth, slot in refs if depth > 0)


def slot_column(slot: int, index: int, type_: Type) -> Typed:
    return Typed(type_, lambda e, rt: e[slot][index], frozenset({(0, slot)}), column=(0, slot, index))


@dataclass(slots=True)
class Level:
    """A compiled query at some depth: its columns and its rows, given the environment around it. `refs` are
    as seen from there."""

    names: list[str]
    types: list[Type]
    rows: Callable[[Env | None, Runtime], list[Row]]
    refs: Refs = NOTHING
    # Outputs that are untyped literals take the type that a set operation requires.
    outputs: Sequence[Typed] = ()

    def settled(self) -> Level:
        """Literals without a type become text."""
        types: list[Type] = [TEXT if t == UNKNOWN else t for t in self.types]
        return self if types == self.types else replace(self, types=types, outputs=())

    def once(self, e: Env | None, rt: Runtime) -> list[Row]:
        """Its rows, computed once per statement if they depend on nothing outside."""
        if self.refs:
            return self.rows(e, rt)
        return rt.once(id(self), lambda: self.rows(e, rt))


Ctes = Mapping[str, Level]
