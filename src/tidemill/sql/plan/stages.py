"""The stages of a query that is maintained at the cost of what changed.

A stage is local to a key: a change of its inputs can change its answer only for the keys of the changed rows
(`reach`). So the change of the answer is the answer over the rows of these keys as they are, less the answer
over these rows as they were. A query is cut where the keys of neighbouring operators differ; the changes of
the inner stage are changes of an input of the outer one. Linear operators belong to the stage around them.

How a key reaches a stage's inputs: "the rows of the answer whose key is k" is pushed down as if it were a
filter. What arrives at a relation are the expressions over its columns that tell which of its rows can
matter for k.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tidemill.sql.plan.accumulated import Accumulated, accumulated
from tidemill.sql.plan.expressions import BoundNode, Op, Ref, Subquery, Window, rewrite, walk
from tidemill.sql.plan.keyed import (
    Pair,
    aliases,
    can_be_key,
    columns_of,
    conjuncts,
    correlation,
    equal_over,
    equal_to,
    equalities,
    facts,
    harmless,
    is_over,
    pairs_of,
    read_subqueries,
    references,
)
from tidemill.sql.plan.operators import (
    Distinct,
    Expand,
    Filter,
    FirstOfEach,
    Group,
    Join,
    Limit,
    Named,
    Operator,
    Output,
    Project,
    Recursive,
    Scan,
    SetOperation,
    Sort,
    Ties,
    expressions,
    inputs,
    keeps_all,
    reads,
    rewrite_plan,
    walk_plan,
    windows,
)
from tidemill.sql.plan.reproducible import check_local, check_reproducible
from tidemill.sql.plan.unkept import NotIncremental, NotReproducible
from tidemill.sql.plan.unnested import has_one_row, unnested
from tidemill.types.model import SqlType

# Stages of one query: each is a job of its own in each tick.
MAX_STAGES = 16

T = TypeVar("T")
Key = tuple[BoundNode, ...]
# Conditions that all rows that matter satisfy, and that cannot fail for others.
Given = Sequence[BoundNode]


@dataclass(frozen=True, slots=True)
class StageInput:
    """`name` is what the stage's plan calls the input, `source` a relation of the query (by its placeholder)
    or another stage (by its name). Of it, the rows with the touched values of the columns `key` are needed;
    without a key (`loose`), its changes alone. A `single` input has one row, which goes with all others: when
    it changes, all is evaluated."""

    name: str
    source: str
    key: tuple[str, ...] = ()
    single: bool = False

    @property
    def loose(self) -> bool:
        return not self.key and not self.single


@dataclass(frozen=True, slots=True)
class Stage:
    """`query` is over the query's relations, `plan` the same over `inputs`. `rules`: its operators that have
    a key, as (operator, key), from the outside in. With `sums` it keeps sums of groups (`accumulated`): these
    of its columns are added up, the others are the groups' key. With `recalled` its old answers are not
    computed again, because they might come out otherwise, but looked up by these columns of it, its key."""

    name: str
    query: Operator
    plan: Operator
    columns: tuple[tuple[str, SqlType], ...]
    inputs: tuple[StageInput, ...]
    rules: tuple[tuple[str, Key], ...]
    sums: tuple[str, ...] = ()
    recalled: tuple[str, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """The key of the groups whose sums are kept."""
        return tuple(name for name, _ in self.columns if name not in self.sums)

    @property
    def linear(self) -> frozenset[str]:
        """The inputs of which the changes alone are needed while the others stay as they are: each row of the
        answer is made of one row of them."""
        singles = {i.name for i in self.inputs if i.single}
        return frozenset() if self.recalled else linear_inputs(self.plan)[1] - singles


def stages_of(plan: Operator, *, sums: bool = True) -> tuple[Stage, ...]:
    """The query's stages, each after those that it reads; the last one gives the query's answer. Without
    `sums` the rows of groups are always looked up. Raises NotIncremental."""
    made: list[Stage] = []
    plan = unnested(plan)
    planner = _Planner(_unordered(plan), made, sums)
    try:
        _add(planner.plan(), made)
    except NotReproducible as otherwise:
        made.clear()
        try:
            _add(_Planner(_unordered(plan), made, sums).recalled(planner.what), made)
        except NotIncremental:
            raise NotIncremental(otherwise.because, _kept_instead(otherwise.instead)) from None
    return tuple(made)


def _kept_instead(instead: str | None) -> str:
    kept = "Or return its key, too; of a query in FROM, make a materialized view."
    return kept.removeprefix("Or ").capitalize() if instead is None else f"{instead} {kept}"


def _plan_stage(plan: Operator, made: list[Stage], sums: bool) -> str:
    stage = _Planner(_unordered(plan), made, sums).plan()
    _add(stage, made)
    return stage.name


def _unordered(plan: Operator) -> Operator:
    while isinstance(plan, Sort) or (isinstance(plan, Limit) and keeps_all(plan)):
        plan = plan.input
    return plan


def _add(stage: Stage, made: list[Stage]) -> None:
    if len(made) == MAX_STAGES:
        raise NotIncremental(f"it has more than {MAX_STAGES} stages")
    made.append(stage)


def linear_inputs(op: Operator) -> tuple[frozenset[str], frozenset[str]]:
    """The names of the scans of a plan, and those in which it is linear if the others do not change."""
    if isinstance(op, Scan):
        return frozenset({op.placeholder}), frozenset({op.placeholder})
    inside = frozenset(
        o.placeholder
        for subquery in read_subqueries(op)
        for o in walk_plan(subquery.plan)
        if isinstance(o, Scan)
    )
    sides = [linear_inputs(under) for under in inputs(op)]
    names = inside.union(*(side[0] for side in sides))
    if isinstance(op, Join):
        (left, of_left), (right, of_right) = sides
        linear = (of_left if op.side in ("", "LEFT") else frozenset[str]()) - right
        if op.side in ("", "RIGHT") and not (isinstance(op.right, Named) and op.right.lateral):
            linear |= of_right - left
    elif isinstance(op, SetOperation) and op.kind == "UNION" and not op.distinct:
        linear = frozenset(n for n in names if all(n not in known or n in own for known, own in sides))
    elif isinstance(op, Project | Filter | Named | Expand) and not any(True for _ in windows(op)):
        linear = sides[0][1]
    else:
        linear = frozenset[str]()
    return names, linear - inside


def _sums_scan(found: Accumulated, made: list[Stage]) -> Scan:
    """The stage of a group's sums, as what it is read from."""
    try:
        stage = _Planner(found.group, made, True).sums(found)
    except _CannotPush as e:
        raise NotIncremental(str(e)) from None
    _add(stage, made)
    return Scan(stage.name, f"w{len(made)}")


def _is_linear(op: Operator) -> bool:
    """Whether each row of what stands in FROM is made of one row of one relation."""
    names, linear = linear_inputs(op)
    several = (isinstance(o, Join) and reads(o.left) and reads(o.right) for o in walk_plan(op))
    return names == linear and not any(several)


class _CannotPush(Exception):
    """The key does not reach the inputs of an operator."""


@dataclass(slots=True)
class _State:
    """What planning one stage has decided so far."""

    cuts: int  # about how many further stages are needed
    inputs: dict[tuple[str, tuple[str, ...], bool], StageInput]
    renamed: dict[Ref, BoundNode]
    rules: list[tuple[str, Key]]

    def copy(self) -> _State:
        return _State(self.cuts, dict(self.inputs), dict(self.renamed), list(self.rules))


class _Planner:
    def __init__(self, query: Operator, made: list[Stage], sums: bool) -> None:
        self._query = query
        self._made = made
        self._sums = sums
        self._state = _State(0, {}, {}, [])
        # Only the number of cuts matters: no stage is made.
        self._trying = 0
        self._cut: dict[tuple[int, Key], Scan] = {}
        # The stage is a join: another join inside it is one with it only if it has no longer key.
        self._joins = False

    def plan(self) -> Stage:
        try:
            plan = self._outer(self._query)
        except _CannotPush as e:
            raise NotIncremental(str(e)) from None
        return self._stage(plan, tuple(dict.fromkeys(self._state.rules)))

    def _stage(
        self,
        plan: Operator,
        rules: tuple[tuple[str, Key], ...],
        sums: tuple[str, ...] = (),
        recalled: tuple[str, ...] = (),
    ) -> Stage:
        renamed = self._state.renamed
        if renamed:
            plan = rewrite_plan(plan, lambda n: renamed.get(n) if isinstance(n, Ref) else None)
        if recalled:
            check_local(plan)
            if any(i.single for i in self._state.inputs.values()):
                raise NotIncremental("a subquery that goes with all rows")
        else:
            check_reproducible(plan)
        columns, read = tuple(columns_of(self._query)), tuple(self._state.inputs.values())
        name = f"stage_{len(self._made)}"
        return Stage(name, self._query, plan, columns, read, rules, sums, recalled)

    # -- answers that are looked up

    @property
    def what(self) -> str:
        """The first operator that needs a key."""
        return self._state.rules[0][0] if self._state.rules else "answers"

    def recalled(self, what: str) -> Stage:
        """The query as one stage that is local to columns of its answer."""
        chosen: list[str] = []

        def push(keys: Sequence[Key]) -> Operator:
            chosen[:] = [part.name for part in keys[0] if isinstance(part, Ref)]
            return self._query_rows(self._query, keys[0])

        outputs = [Ref(t, "", name) for name, t in columns_of(self._query)]
        try:
            plan = self._by_key(what, [(ref,) for ref in outputs], push)
        except _CannotPush as e:
            raise NotIncremental(str(e)) from None
        key = tuple(_origin(self._query, ref) for ref in outputs if ref.name in chosen)
        return self._stage(plan, ((what, key),), recalled=tuple(chosen))

    # -- groups of which sums are kept

    def sums(self, found: Accumulated) -> Stage:
        group = found.group
        plan = replace(group, input=self._added(group))
        return self._stage(plan, (("sums", group.keys),), found.sums)

    def _added(self, group: Group) -> Operator:
        """The group's rows, of which the changes are added up: those of inputs, or of a stage below."""
        if _is_linear(group.input):
            if not group.keys:
                return self._outer(group.input)
            if self._cost(lambda: self._source(group.input, group.keys, ())) == 0:
                return self._source(group.input, group.keys, ())
        return self._cut_off(group.input, group.keys, ())

    # -- operators above the first that needs a key

    def _outer(self, op: Operator, given: Given = ()) -> Operator:
        """`given`: conditions that all rows satisfy that the filters above let through."""
        if not reads(op):
            raise NotIncremental("some of its rows are always there")
        if isinstance(op, Scan):
            return self._scan(op, ())
        if isinstance(op, Project | Filter) and self._demands(op):
            return self._by_key(
                _names_of(op), [(e,) for e in self._common(op)], lambda keys: self._below(op, keys[0])
            )
        if isinstance(op, Filter):
            return replace(op, input=self._outer(op.input, (*given, *harmless(op.condition))))
        if self._sums and isinstance(op, Named) and isinstance(op.input, Group):
            found = accumulated(op.input)
            if found is not None:
                return replace(op, input=found.finish(self._scan(_sums_scan(found, self._made), ())))
        if isinstance(op, Project | Named | Expand):
            return replace(op, input=self._outer(op.input))
        if isinstance(op, Sort) or (isinstance(op, Limit) and keeps_all(op)):
            return self._outer(op.input)
        if isinstance(op, SetOperation) and op.kind == "UNION" and not op.distinct:
            return replace(op, left=self._outer(op.left), right=self._outer(op.right))
        if isinstance(op, Join):
            return self._outer_join(op, given)
        if isinstance(op, Group):
            common = [f"g{i}" for i, k in enumerate(op.keys) if all(k in s for s in op.sets)]
            types = dict(columns_of(op))
            what = "GROUP BY" if common or not op.keys else "GROUPING SETS"
            return self._by_outputs(what, op, [Ref(types[n], "", n) for n in common])
        if isinstance(op, FirstOfEach):
            types = dict(columns_of(op))
            return self._by_outputs("DISTINCT ON", op, [Ref(types[n], "", n) for n in op.keys])
        if isinstance(op, Distinct | SetOperation):
            what = "DISTINCT" if isinstance(op, Distinct) else op.kind
            return self._by_outputs(what, op, [Ref(t, "", n) for n, t in columns_of(op)])
        raise NotIncremental(*_whole(op))

    def _outer_join(self, op: Join, given: Given) -> Operator:
        left, right = reads(op.left), reads(op.right)
        if not right and op.side in ("", "LEFT"):
            return replace(op, left=self._outer(op.left, given))
        if not left and op.side in ("", "RIGHT"):
            return replace(op, right=self._outer(op.right, given))
        if has_one_row(op.right) and op.side in ("", "LEFT") and _plain(op):
            return replace(op, left=self._outer(op.left, given), right=self._single(op.right))
        if has_one_row(op.left) and op.side in ("", "RIGHT") and _plain(op):
            return replace(op, left=self._single(op.left), right=self._outer(op.right, given))
        what = {"": "join", "LEFT": "left join", "RIGHT": "right join", "FULL": "full join"}[op.side]
        if isinstance(op.right, Named) and op.right.lateral:
            found = [(outer,) for outer, _ in correlation(op.right.input, aliases(op.left))[1]]
            return self._by_key("LATERAL", found, lambda keys: self._lateral(op, keys[0]))
        self._joins = True
        pairs = _join_pairs(op, given)
        return self._by_key(what, pairs, lambda keys: self._join_sides(op, keys[0], keys[1], given))

    def _by_outputs(self, what: str, op: Operator, outputs: Sequence[Ref]) -> Operator:
        candidates = [(ref,) for ref in outputs]
        return self._by_key(what, candidates, lambda keys: self._query_rows(op, keys[0]), op)

    def _by_key(
        self,
        what: str,
        candidates: Sequence[Key],
        push: Callable[[Sequence[Key]], Operator],
        within: Operator | None = None,
    ) -> Operator:
        """An operator that is local to some of the candidates (each is one part of the key, as it reads on
        each side): to those that need the fewest stages below it. `push` takes the key of each side. For
        EXPLAIN the key is shown over the input of `within`."""
        candidates = [c for c in candidates if all(can_be_key(node.type) for node in c)]
        costs = [self._cost(lambda c=c: push([(node,) for node in c])) for c in candidates]
        least = min((cost for cost in costs if cost is not None), default=None)
        if least is None:
            raise NotIncremental(*_NO_KEY.get(what, (f"{what} has no key",)))
        chosen = [c for c, cost in zip(candidates, costs, strict=True) if cost == least]
        sides = [tuple(c[i] for c in chosen) for i in range(len(chosen[0]))]
        joint = self._cost(lambda: push(sides))
        if joint is None or joint > least:
            sides = [(node,) for node in chosen[0]]
        if not self._trying:
            self._state.rules.append((what, _shown(within, sides[0])))
        return push(sides)

    def _cost(self, push: Callable[[], Operator]) -> int | None:
        before = self._state
        self._state = before.copy()
        self._trying += 1
        try:
            push()
            return self._state.cuts - before.cuts
        except _CannotPush:
            return None
        finally:
            self._trying -= 1
            self._state = before

    # -- what an expression needs

    def _demands(self, op: Project | Filter) -> bool:
        return any(True for _ in windows(op)) or any(True for _ in read_subqueries(op))

    def _common(self, op: Project | Filter) -> list[BoundNode]:
        """The expressions over the operator's input that are a key of all its windows and subqueries."""
        wanted: list[list[BoundNode]] = [list(w.partition) for w in windows(op)]
        for subquery in read_subqueries(op):
            wanted.append([outer for outer, _ in _subquery_pairs(op, subquery)])
        first, *others = wanted
        return [node for node in dict.fromkeys(first) if all(node in other for other in others)]

    def _below(self, op: Project | Filter, key: Key) -> Operator:
        """The operator, local to the key over its input."""
        for window in windows(op):
            if not all(part in window.partition for part in key):
                raise _CannotPush("a window function has another PARTITION BY")
        given = tuple(harmless(op.condition)) if isinstance(op, Filter) else ()
        pushed = {id(s): self._subquery(op, s, key) for s in read_subqueries(op)}
        source = self._source(op.input, key, given)

        def change(node: BoundNode) -> BoundNode | None:
            return pushed.get(id(node))

        if isinstance(op, Filter):
            return Filter(source, rewrite(op.condition, change))
        listed = tuple(Output(o.name, rewrite(o.node, change)) for o in op.outputs)
        return Project(source, listed)

    def _subquery(self, op: Operator, node: Subquery, key: Key) -> Subquery:
        pairs = _subquery_pairs(op, node)
        inner = tuple(_partner(part, pairs) for part in key)
        if node.kind == "in":
            return replace(node, plan=self._query_rows(node.plan, inner))
        outer = frozenset(ref.table for ref in node.outer)
        return replace(node, plan=self._correlated(node.plan, inner, correlation(node.plan, outer)[0]))

    def _correlated(self, plan: Operator, key: Key, base: Filter | None) -> Operator:
        """A query whose rows all come from rows of the input of `base` with this key."""
        if any(True for _ in read_subqueries(plan)):
            raise _CannotPush("a subquery is inside another one")
        if isinstance(plan, Filter) and plan is base:
            return replace(plan, input=self._source(plan.input, key, tuple(harmless(plan.condition))))
        return replace(plan, input=self._correlated(inputs(plan)[0], key, base))

    def _lateral(self, op: Join, key: Key) -> Operator:
        right = op.right
        if not isinstance(right, Named) or not _plain(op):
            raise _CannotPush("a subquery is in the condition of a join")
        base, pairs = correlation(right.input, aliases(op.left))
        inner = tuple(_partner(part, pairs) for part in key)
        left = self._source(op.left, key, ())
        below = self._correlated(right.input, inner, base)
        return replace(op, left=left, right=replace(right, input=below))

    # -- FROM

    def _source(self, op: Operator, key: Key, given: Given) -> Operator:
        """The item of FROM, of which only rows with the key matter; all that matter satisfy `given`."""
        state = self._state.copy()
        try:
            return self._pushed(op, key, given)
        except _CannotPush:
            self._state = state
            return self._cut_off(op, key, given)

    def _pushed(self, op: Operator, key: Key, given: Given) -> Operator:
        if isinstance(op, Scan):
            if not all(isinstance(k, Ref) and k.table == op.alias for k in key):
                raise _CannotPush("the key is computed")
            return self._scan(op, tuple(k.name for k in key if isinstance(k, Ref)))
        if isinstance(op, Named):
            if op.lateral:
                raise _CannotPush("LATERAL")
            return replace(op, input=self._query_rows(op.input, tuple(_inside(k, op.alias) for k in key)))
        if isinstance(op, Filter):
            if self._demands(op):
                self._check_common(op, key)
                return self._below(op, key)
            return replace(op, input=self._source(op.input, key, (*given, *harmless(op.condition))))
        if isinstance(op, Sort):
            return self._source(op.input, key, given)
        if isinstance(op, Join):
            return self._pushed_join(op, key, given)
        raise _CannotPush(type(op).__name__)

    def _check_common(self, op: Project | Filter, key: Key) -> None:
        common = self._common(op)
        if not all(part in common for part in key):
            raise _CannotPush("a window function or subquery has another key")

    def _pushed_join(self, op: Join, key: Key, given: Given) -> Operator:
        left, right = aliases(op.left), aliases(op.right)
        if isinstance(op.right, Named) and op.right.lateral and reads(op.right):
            pairs = correlation(op.right.input, left)[1]
            if op.side not in ("", "LEFT") or not all(any(o == k for o, _ in pairs) for k in key):
                raise _CannotPush("LATERAL has another key")
            return self._lateral(op, key)
        if not reads(op.right) and op.side in ("", "LEFT"):
            return replace(op, left=self._source(op.left, _over(key, left, pairs_of(given)), given))
        if not _plain(op):
            raise _CannotPush("a subquery is in the condition of a join")
        if has_one_row(op.right) and op.side in ("", "LEFT"):
            kept = self._source(op.left, _over(key, left, pairs_of(given)), given)
            return replace(op, left=kept, right=self._single(op.right))
        if op.side == "FULL":
            raise _CannotPush("the key of a full join")
        if not op.side:
            pairs = (*pairs_of(given), *facts(op))
            if self._joins and not _covered(_join_pairs(op, given), key, pairs):
                raise _CannotPush("the join inside has a longer key")
            return self._join_sides(op, _over(key, left, pairs), _over(key, right, pairs), given)
        on = tuple(equalities(op.condition))
        kept, other = (op.left, op.right) if op.side == "LEFT" else (op.right, op.left)
        mine = _over(key, aliases(kept), (*pairs_of(given), *facts(kept)))
        if not reads(other):
            raise _CannotPush("an outer join of rows that are always there")
        theirs = tuple(_matching(part, aliases(other), on, tuple(facts(kept))) for part in mine)
        sides = (mine, theirs) if op.side == "LEFT" else (theirs, mine)
        return self._join_sides(op, *sides, given)

    def _join_sides(self, op: Join, left: Key, right: Key, given: Given = ()) -> Operator:
        if not _plain(op):
            raise _CannotPush("a subquery is in the condition of a join")
        both = (*given, *harmless(op.condition)) if not op.side else ()
        return replace(
            op,
            left=self._source(op.left, left, given if op.side == "LEFT" else both),
            right=self._source(op.right, right, given if op.side == "RIGHT" else both),
        )

    # -- queries

    def _query_rows(self, op: Operator, key: Key) -> Operator:
        """The query, of which only the rows with the key (over its outputs) matter."""
        if isinstance(op, Project):
            given = {o.name: o.node for o in op.outputs}
            inner = tuple(_placed(part, given) for part in key)
            if self._demands(op):
                self._check_common(op, inner)
                return self._below(op, inner)
            return replace(op, input=self._source(op.input, inner, ()))
        if isinstance(op, Sort) or (isinstance(op, Limit) and keeps_all(op)):
            return self._query_rows(op.input, key)
        if isinstance(op, SetOperation):
            if op.distinct or op.kind != "UNION":
                _check_columns(key)
            if not reads(op.left) or not reads(op.right):
                raise _CannotPush("some rows are always there")
            names = zip(columns_of(op.left), columns_of(op.right), strict=True)
            if any(a[0] != b[0] for a, b in names):
                raise _CannotPush("columns of other names")
            return replace(op, left=self._query_rows(op.left, key), right=self._query_rows(op.right, key))
        if isinstance(op, Distinct):
            _check_columns(key)
            return replace(op, input=self._query_rows(op.input, key))
        if isinstance(op, FirstOfEach):
            return replace(op, input=self._query_rows(op.input, _of_each(op, key)))
        if isinstance(op, Group):
            if any(self._demands_in(node) for node in expressions(op)):
                raise _CannotPush("a subquery is in an aggregate")
            inner = tuple(_group_key(op, part) for part in key)
            return replace(op, input=self._source(op.input, inner, ()))
        if isinstance(op, Expand):
            kept = {ref.name: ref for ref in op.kept}
            inner = tuple(_placed(part, kept) for part in key)
            return replace(op, input=self._source(op.input, inner, ()))
        raise _CannotPush(type(op).__name__)

    def _demands_in(self, node: BoundNode) -> bool:
        return any(isinstance(part, Subquery) and reads(part.plan) for part in walk(node))

    # -- inputs

    def _scan(self, op: Scan, key: tuple[str, ...], *, single: bool = False) -> Scan:
        known = (op.placeholder, key, single)
        found = self._state.inputs.get(known)
        if found is None:
            found = StageInput(f"tm_k_{len(self._state.inputs)}", op.placeholder, key, single)
            self._state.inputs[known] = found
        return Scan(found.name, op.alias)

    def _single(self, op: Operator) -> Operator:
        """What has one row, as a stage of its own."""
        return self._cut_off(op, (), (), single=True)

    def _cut_off(self, op: Operator, key: Key, given: Given, *, single: bool = False) -> Operator:
        """What stands in FROM as a stage of its own, and its changes as the input here."""
        names = aliases(op)
        if not all(is_over(part, names) for part in key) or (isinstance(op, Named) and op.lateral):
            raise _CannotPush("the key is not of one item")
        if isinstance(op, Named) and not reads(op):
            raise _CannotPush("some rows are always there")
        inside = list(walk_plan(op))
        defined = {o.alias for o in inside if isinstance(o, Scan | Named)}
        if any(r.table and r.table not in defined for r in references(inside)):
            raise _CannotPush("it names columns of the query around it")
        # About as many stages as it becomes.
        keyed = (Join, Group, Distinct, FirstOfEach)
        self._state.cuts += 1 + sum(isinstance(o, keyed) and reads(o) > 0 for o in inside)
        if self._trying:
            return op
        own = set(map(id, inside))
        above = [o for o in walk_plan(self._query) if id(o) not in own]
        wanted = [r for r in dict.fromkeys(references(above)) if r.table in names]
        parts = list(dict.fromkeys([*wanted, *key]))
        below = op
        for condition in given:
            if is_over(condition, names):
                below = Filter(below, condition)
        query = Project(below, tuple(Output(f"c{i}", node) for i, node in enumerate(parts)))
        known = (id(op), (*parts, *given))
        scan = self._cut.get(known)
        if scan is None:
            scan = Scan(_plan_stage(query, self._made, self._sums), f"w{len(self._made)}")
            self._cut[known] = scan
        place = {node: f"c{i}" for i, node in enumerate(parts)}
        for ref in wanted:
            self._state.renamed[ref] = Ref(ref.type, scan.alias, place[ref], ref.label)
        return self._scan(scan, tuple(place[part] for part in key), single=single)


# -- keys


def _shown(within: Operator | None, key: Key) -> Key:
    if isinstance(within, Group):
        return tuple(_group_key(within, part) for part in key)
    while isinstance(within, Distinct | FirstOfEach | SetOperation):
        within = inputs(within)[0]
    nodes = {o.name: o.node for o in within.outputs} if isinstance(within, Project) else {}
    found = [nodes.get(part.name, part) if isinstance(part, Ref) and not part.table else part for part in key]
    return tuple(n.args[0] if isinstance(n, Op) and n.key == "comparable" else n for n in found)


def _origin(op: Operator, part: Ref) -> BoundNode:
    """What an output is made of, as it is written in the query."""
    if isinstance(op, Group):
        return _group_key(op, part)
    if not isinstance(op, Project):
        return _origin(inputs(op)[0], part) if inputs(op) else part
    node = next((o.node for o in op.outputs if o.name == part.name), part)
    if isinstance(node, Ref):
        for under in walk_plan(op.input):
            if isinstance(under, Named) and under.alias == node.table:
                return _origin(under.input, Ref(node.type, "", node.name))
    return node


def _names_of(op: Operator) -> str:
    return "a window function" if any(True for _ in windows(op)) else "a subquery"


def _join_pairs(op: Join, given: Given) -> list[Key]:
    left, right = aliases(op.left), aliases(op.right)
    pairs: list[Key] = []
    for a, b in (*equalities(op.condition), *(() if op.side else pairs_of(given))):
        if is_over(a, left) and is_over(b, right):
            pairs.append((a, b))
        elif is_over(a, right) and is_over(b, left):
            pairs.append((b, a))
    return list(dict.fromkeys(pairs))


def _covered(own: Sequence[Key], key: Key, pairs: Sequence[Pair]) -> bool:
    """Whether each of a join's own pairs is a part of the key."""
    return all(
        any(one == part or one in equal_to(part, pairs) for part in key for one in pair) for pair in own
    )


def _over(key: Key, names: frozenset[str], pairs: Sequence[Pair]) -> Key:
    found = [equal_over(part, names, pairs) for part in key]
    if any(node is None for node in found):
        raise _CannotPush("the key is not of one side of a join")
    return tuple(node for node in found if node is not None)


def _matching(part: BoundNode, names: frozenset[str], on: Sequence[Pair], known: Sequence[Pair]) -> BoundNode:
    """What equals the key on the side of an outer join that is filled with NULLs."""
    for a, b in on:
        for mine, theirs in ((a, b), (b, a)):
            if is_over(theirs, names) and not is_over(mine, names):
                own = frozenset(n.table for n in walk(mine) if isinstance(n, Ref))
                if mine == part or equal_over(part, own, known) == mine:
                    return theirs
    raise _CannotPush("the key is not of one side of a join")


def _inside(node: BoundNode, alias: str) -> BoundNode:
    """The expression over the outputs of the query of this name."""

    def change(part: BoundNode) -> BoundNode | None:
        if isinstance(part, Ref):
            if part.table != alias:
                raise _CannotPush("the key is of another item")
            return Ref(part.type, "", part.name)
        return None

    return rewrite(node, change)


def _placed(node: BoundNode, given: Mapping[str, BoundNode]) -> BoundNode:
    """The expression over outputs as one over what they are made of."""

    def change(part: BoundNode) -> BoundNode | None:
        if isinstance(part, Ref) and not part.table:
            if part.name not in given:
                raise _CannotPush("the key is made of other columns")
            return given[part.name]
        return None

    made = rewrite(node, change)
    parts = list(walk(made))
    if any(isinstance(p, Subquery | Window) for p in parts) or not any(isinstance(p, Ref) for p in parts):
        raise _CannotPush("the key does not follow from columns")
    return made


def _check_columns(key: Key) -> None:
    """Rows that are equal have equal columns, but perhaps not equal expressions: -0.0 = 0.0."""
    if not all(isinstance(part, Ref) for part in key):
        raise _CannotPush("the key is computed")


def _group_key(op: Group, part: BoundNode) -> BoundNode:
    if isinstance(part, Ref) and part.name.startswith("g"):
        key = op.keys[int(part.name[1:])]
        if all(key in s for s in op.sets):
            if not any(isinstance(p, Ref) for p in walk(key)):
                raise _CannotPush("the key is constant")
            return key
    raise _CannotPush("the key is not one of GROUP BY")


def _of_each(op: FirstOfEach, key: Key) -> Key:
    """The key in outputs that the rows of each key share."""
    if not isinstance(op.input, Project):
        raise _CannotPush("DISTINCT ON")
    nodes = {o.name: o.node for o in op.input.outputs}
    on = [nodes[name] for name in op.keys]
    shared = [n.args[0] if isinstance(n, Op) and n.key == "comparable" else n for n in on]
    made: list[BoundNode] = []
    for part in key:
        if not isinstance(part, Ref):
            raise _CannotPush("the key is computed")
        node = nodes.get(part.name)
        plain = node.args[0] if isinstance(node, Op) and node.key == "comparable" else node
        if plain is None or plain not in shared:
            raise _CannotPush("the key is not one of DISTINCT ON")
        # `comparable` changes no value of the types that can be keys.
        found = next((name for name, n in nodes.items() if n == plain), part.name)
        made.append(Ref(part.type, "", found))
    return tuple(made)


# -- subqueries


def _subquery_pairs(op: Operator, node: Subquery) -> list[Pair]:
    """The key of a subquery: expressions over the rows around it, and over its own."""
    if node.kind == "in" and not node.outer:
        alone = isinstance(op, Filter) and any(part is node for part in conjuncts(op.condition))
        if alone:
            return [
                (operand, Ref(t, "", name))
                for operand, (name, t) in zip(node.operands, columns_of(node.plan), strict=False)
                if operand.type.kind is t.kind
            ]
        return []
    if node.kind == "in" or not node.outer:
        return []
    return correlation(node.plan, frozenset(ref.table for ref in node.outer))[1]


def _partner(part: BoundNode, pairs: Sequence[Pair]) -> BoundNode:
    for outer, inner in pairs:
        if outer == part:
            return inner
    raise _CannotPush("a subquery has another key")


def _plain(op: Join) -> bool:
    return op.condition is None or not any(isinstance(n, Subquery | Window) for n in walk(op.condition))


# -- what is not local

_NO_KEY: dict[str, tuple[str, ...]] = {
    "GROUP BY": (
        "an aggregate over all rows",
        "Group by something, in a view of its own, and add the groups up in a query over it.",
    ),
    "GROUPING SETS": (
        "GROUPING SETS without a common key",
        "Write the sets as queries with GROUP BY, and UNION ALL between them.",
    ),
    "a window function": (
        "a window function without a common PARTITION BY",
        "Write PARTITION BY, the same in all windows of one SELECT.",
    ),
    "a subquery": (
        "a subquery that has no equality with the query around it",
        "Correlate it by an equality (=), or join the relations by one.",
    ),
    **{
        what: (
            f"a {what} without an equality of columns of both sides",
            "Join by an equality (=) of values of one type.",
        )
        for what in ("join", "left join", "right join", "full join", "LATERAL")
    },
}


def _whole(op: Operator) -> tuple[str, ...]:
    if isinstance(op, Limit):
        word = "LIMIT" if op.count is not None else "OFFSET"
        return (
            f"{word} over all rows",
            "With ORDER BY at the end of a query the first rows are kept; row_number() gives those of a key.",
        )
    if isinstance(op, Ties):
        return ("WITH TIES over all rows",)
    if isinstance(op, Recursive):
        return ("WITH RECURSIVE",)
    return (type(op).__name__,)
