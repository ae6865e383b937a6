"""The planner of one stage: how a key is found, and pushed down to the inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tidemill.sql.plan.accumulated import Accumulated, accumulated
from tidemill.sql.plan.expressions import BoundNode, Ref
from tidemill.sql.plan.keyed import aliases, can_be_key, columns_of, harmless, is_over, references
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
    Scan,
    SetOperation,
    Sort,
    expressions,
    keeps_all,
    reads,
    rewrite_plan,
    walk_plan,
)
from tidemill.sql.plan.reproducible import check_local, check_reproducible
from tidemill.sql.plan.stages.groups import group_key, of_each, sums_of
from tidemill.sql.plan.stages.joins import outer_join, pushed_join
from tidemill.sql.plan.stages.keys import check_columns, inside, origin, placed, shown
from tidemill.sql.plan.stages.model import CannotPush, Given, Key, Stage, StageInput
from tidemill.sql.plan.stages.reasons import NO_KEY, whole
from tidemill.sql.plan.stages.subqueries import below, check_common, common, demands, demands_in, names_of
from tidemill.sql.plan.unkept import NotIncremental

# Stages of one query: each is a job of its own in each tick.
MAX_STAGES = 16


@dataclass(slots=True)
class _State:
    """What planning one stage has decided so far."""

    cuts: int  # about how many further stages are needed
    inputs: dict[tuple[str, tuple[str, ...], bool], StageInput]
    renamed: dict[Ref, BoundNode]
    rules: list[tuple[str, Key]]

    def copy(self) -> _State:
        return _State(self.cuts, dict(self.inputs), dict(self.renamed), list(self.rules))


class Planner:
    """Plans one stage."""

    def __init__(self, query: Operator, made: list[Stage], keep_sums: bool) -> None:
        """`made` are the stages so far, to which those below this one are added."""
        self.query = query
        self.made = made
        self.keep_sums = keep_sums
        # The stage is a join: another join inside it is one with it only if it has no longer key.
        self.joins = False
        self._state = _State(0, {}, {}, [])
        # Only the number of cuts matters: no stage is made.
        self._trying = 0
        self._cut: dict[tuple[int, Key], Scan] = {}

    def plan(self) -> Stage:
        try:
            plan = self.outer(self.query)
        except CannotPush as e:
            raise NotIncremental(str(e)) from None
        return self.stage(plan, tuple(dict.fromkeys(self._state.rules)))

    def stage(
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
        columns, read = tuple(columns_of(self.query)), tuple(self._state.inputs.values())
        name = f"stage_{len(self.made)}"
        return Stage(name, self.query, plan, columns, read, rules, sums, recalled)

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
            return self.query_rows(self.query, keys[0])

        outputs = [Ref(t, "", name) for name, t in columns_of(self.query)]
        try:
            plan = self.by_key(what, [(ref,) for ref in outputs], push)
        except CannotPush as e:
            raise NotIncremental(str(e)) from None
        key = tuple(origin(self.query, ref) for ref in outputs if ref.name in chosen)
        return self.stage(plan, ((what, key),), recalled=tuple(chosen))

    # -- operators above the first that needs a key

    def outer(self, op: Operator, given: Given = ()) -> Operator:
        """`given`: conditions that all rows satisfy that the filters above let through."""
        if not reads(op):
            raise NotIncremental("some of its rows are always there")
        if isinstance(op, Scan):
            return self.scan(op, ())
        if isinstance(op, Project | Filter) and demands(op):
            return self.by_key(
                names_of(op), [(e,) for e in common(op)], lambda keys: below(self, op, keys[0])
            )
        if isinstance(op, Filter):
            return replace(op, input=self.outer(op.input, (*given, *harmless(op.condition))))
        if self.keep_sums and isinstance(op, Named) and isinstance(op.input, Group):
            found = accumulated(op.input)
            if found is not None:
                return replace(op, input=found.finish(self.scan(self._sums_scan(found), ())))
        if isinstance(op, Project | Named | Expand):
            return replace(op, input=self.outer(op.input))
        if isinstance(op, Sort) or (isinstance(op, Limit) and keeps_all(op)):
            return self.outer(op.input)
        if isinstance(op, SetOperation) and op.kind == "UNION" and not op.distinct:
            return replace(op, left=self.outer(op.left), right=self.outer(op.right))
        if isinstance(op, Join):
            return outer_join(self, op, given)
        if isinstance(op, Group):
            shared = [f"g{i}" for i, k in enumerate(op.keys) if all(k in s for s in op.sets)]
            types = dict(columns_of(op))
            what = "GROUP BY" if shared or not op.keys else "GROUPING SETS"
            return self.by_outputs(what, op, [Ref(types[n], "", n) for n in shared])
        if isinstance(op, FirstOfEach):
            types = dict(columns_of(op))
            return self.by_outputs("DISTINCT ON", op, [Ref(types[n], "", n) for n in op.keys])
        if isinstance(op, Distinct | SetOperation):
            what = "DISTINCT" if isinstance(op, Distinct) else op.kind
            return self.by_outputs(what, op, [Ref(t, "", n) for n, t in columns_of(op)])
        raise NotIncremental(*whole(op))

    def by_outputs(self, what: str, op: Operator, outputs: Sequence[Ref]) -> Operator:
        candidates = [(ref,) for ref in outputs]
        return self.by_key(what, candidates, lambda keys: self.query_rows(op, keys[0]), op)

    def by_key(
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
        costs = [self.cost(lambda c=c: push([(node,) for node in c])) for c in candidates]
        least = min((cost for cost in costs if cost is not None), default=None)
        if least is None:
            raise NotIncremental(*NO_KEY.get(what, (f"{what} has no key",)))
        chosen = [c for c, cost in zip(candidates, costs, strict=True) if cost == least]
        sides = [tuple(c[i] for c in chosen) for i in range(len(chosen[0]))]
        joint = self.cost(lambda: push(sides))
        if joint is None or joint > least:
            sides = [(node,) for node in chosen[0]]
        if not self._trying:
            self._state.rules.append((what, shown(within, sides[0])))
        return push(sides)

    def cost(self, push: Callable[[], Operator]) -> int | None:
        before = self._state
        self._state = before.copy()
        self._trying += 1
        try:
            push()
            return self._state.cuts - before.cuts
        except CannotPush:
            return None
        finally:
            self._trying -= 1
            self._state = before

    # -- of what only rows with a key matter

    def source(self, op: Operator, key: Key, given: Given) -> Operator:
        """The item of FROM, of which only rows with the key matter; all that matter satisfy `given`."""
        state = self._state.copy()
        try:
            return self._pushed(op, key, given)
        except CannotPush:
            self._state = state
            return self.cut_off(op, key, given)

    def _pushed(self, op: Operator, key: Key, given: Given) -> Operator:
        if isinstance(op, Scan):
            if not all(isinstance(k, Ref) and k.table == op.alias for k in key):
                raise CannotPush("the key is computed")
            return self.scan(op, tuple(k.name for k in key if isinstance(k, Ref)))
        if isinstance(op, Named):
            if op.lateral:
                raise CannotPush("LATERAL")
            return replace(op, input=self.query_rows(op.input, tuple(inside(k, op.alias) for k in key)))
        if isinstance(op, Filter):
            if demands(op):
                check_common(op, key)
                return below(self, op, key)
            return replace(op, input=self.source(op.input, key, (*given, *harmless(op.condition))))
        if isinstance(op, Sort):
            return self.source(op.input, key, given)
        if isinstance(op, Join):
            return pushed_join(self, op, key, given)
        raise CannotPush(type(op).__name__)

    def query_rows(self, op: Operator, key: Key) -> Operator:
        """The query, of which only the rows with the key (over its outputs) matter."""
        if isinstance(op, Project):
            given = {o.name: o.node for o in op.outputs}
            inner = tuple(placed(part, given) for part in key)
            if demands(op):
                check_common(op, inner)
                return below(self, op, inner)
            return replace(op, input=self.source(op.input, inner, ()))
        if isinstance(op, Sort) or (isinstance(op, Limit) and keeps_all(op)):
            return self.query_rows(op.input, key)
        if isinstance(op, SetOperation):
            if op.distinct or op.kind != "UNION":
                check_columns(key)
            if not reads(op.left) or not reads(op.right):
                raise CannotPush("some rows are always there")
            names = zip(columns_of(op.left), columns_of(op.right), strict=True)
            if any(a[0] != b[0] for a, b in names):
                raise CannotPush("columns of other names")
            return replace(op, left=self.query_rows(op.left, key), right=self.query_rows(op.right, key))
        if isinstance(op, Distinct):
            check_columns(key)
            return replace(op, input=self.query_rows(op.input, key))
        if isinstance(op, FirstOfEach):
            return replace(op, input=self.query_rows(op.input, of_each(op, key)))
        if isinstance(op, Group):
            if any(demands_in(node) for node in expressions(op)):
                raise CannotPush("a subquery is in an aggregate")
            inner = tuple(group_key(op, part) for part in key)
            return replace(op, input=self.source(op.input, inner, ()))
        if isinstance(op, Expand):
            kept = {ref.name: ref for ref in op.kept}
            inner = tuple(placed(part, kept) for part in key)
            return replace(op, input=self.source(op.input, inner, ()))
        raise CannotPush(type(op).__name__)

    # -- stages below

    def _below(self, query: Operator) -> str:
        """The name of a stage of its own."""
        return add_stage(Planner(unordered(query), self.made, self.keep_sums).plan(), self.made)

    def _sums_scan(self, found: Accumulated) -> Scan:
        """The stage of a group's sums, as what it is read from."""
        below = Planner(found.group, self.made, True)
        return Scan(add_stage(sums_of(below, found), self.made), f"w{len(self.made)}")

    # -- inputs

    def scan(self, op: Scan, key: tuple[str, ...], *, single: bool = False) -> Scan:
        known = (op.placeholder, key, single)
        found = self._state.inputs.get(known)
        if found is None:
            found = StageInput(f"tm_k_{len(self._state.inputs)}", op.placeholder, key, single)
            self._state.inputs[known] = found
        return Scan(found.name, op.alias)

    def single(self, op: Operator) -> Operator:
        """What has one row, as a stage of its own."""
        return self.cut_off(op, (), (), single=True)

    def cut_off(self, op: Operator, key: Key, given: Given, *, single: bool = False) -> Operator:
        """What stands in FROM as a stage of its own, and its changes as the input here."""
        names = aliases(op)
        if not all(is_over(part, names) for part in key) or (isinstance(op, Named) and op.lateral):
            raise CannotPush("the key is not of one item")
        if isinstance(op, Named) and not reads(op):
            raise CannotPush("some rows are always there")
        inside = list(walk_plan(op))
        defined = {o.alias for o in inside if isinstance(o, Scan | Named)}
        if any(r.table and r.table not in defined for r in references(inside)):
            raise CannotPush("it names columns of the query around it")
        # About as many stages as it becomes.
        keyed = (Join, Group, Distinct, FirstOfEach)
        self._state.cuts += 1 + sum(isinstance(o, keyed) and reads(o) > 0 for o in inside)
        if self._trying:
            return op
        own = set(map(id, inside))
        above = [o for o in walk_plan(self.query) if id(o) not in own]
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
            scan = Scan(self._below(query), f"w{len(self.made)}")
            self._cut[known] = scan
        place = {node: f"c{i}" for i, node in enumerate(parts)}
        for ref in wanted:
            self._state.renamed[ref] = Ref(ref.type, scan.alias, place[ref], ref.label)
        return self.scan(scan, tuple(place[part] for part in key), single=single)


def unordered(plan: Operator) -> Operator:
    while isinstance(plan, Sort) or (isinstance(plan, Limit) and keeps_all(plan)):
        plan = plan.input
    return plan


def add_stage(stage: Stage, made: list[Stage]) -> str:
    if len(made) == MAX_STAGES:
        raise NotIncremental(f"it has more than {MAX_STAGES} stages")
    made.append(stage)
    return stage.name
