"""Groups of which sums are kept: a change is added to the sums of its group, whose rows are never looked at.

`count`, `sum` and `avg` of exact numbers, `bool_and` and `bool_or` follow from sums and counts of the group's
rows. `partials` are the aggregates that are kept for a group, `finished` makes the group's columns of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tidemill.sql.functions.resolve import resolve_function
from tidemill.sql.functions.tree import Tree, and_, bigint, call, cast, divide, eq, gt, if_, not_, null
from tidemill.sql.plan.expressions import Aggregate, BoundNode, Convert, Op, Ref
from tidemill.sql.plan.keyed import can_be_key
from tidemill.sql.plan.operators import Group, Operator, Output, Project, Scan
from tidemill.types.model import BOOL, INT8, NUMERIC, Kind

_INTEGERS = frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.UINT2, Kind.UINT4, Kind.UINT8})
_DECIMAL = "DECIMAL(38,18)"


@dataclass(frozen=True, slots=True)
class Accumulated:
    """`group` computes the sums of a group's rows: its keys g0, ..., and a0, ..., of which a0 is the number
    of rows. `finish` makes of a scan of them the columns of the group that was asked for."""

    group: Group
    finish: Callable[[Scan], Project]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(f"g{i}" for i in range(len(self.group.keys)))

    @property
    def sums(self) -> tuple[str, ...]:
        return tuple(f"a{i}" for i in range(len(self.group.aggregates)))


def accumulated(op: Group) -> Accumulated | None:
    """None if the group's columns do not follow from sums."""
    if len(op.sets) != 1 or set(op.sets[0]) != set(op.keys):
        return None
    if not all(can_be_key(key.type) for key in op.keys):
        return None
    partials: list[Aggregate] = [Aggregate(INT8, _function("count", None), ())]
    finishers: list[Callable[[Scan], BoundNode]] = []
    for call_ in op.aggregates:
        parts = _parts(call_)
        if parts is None:
            return None
        places: list[int] = []
        for part in parts:
            if part not in partials:
                partials.append(part)
            places.append(partials.index(part))
        finishers.append(_finisher(call_, [partials[p] for p in places], places))

    def finish(scan: Scan) -> Project:
        keys = [Output(f"g{i}", Ref(k.type, scan.alias, f"g{i}")) for i, k in enumerate(op.keys)]
        values = [Output(f"a{i}", made(scan)) for i, made in enumerate(finishers)]
        return Project(scan, (*keys, *values))

    return Accumulated(replace(op, aggregates=tuple(partials)), finish)


def is_accumulating(op: Operator) -> bool:
    return isinstance(op, Group) and accumulated(op) is not None


def _function(name: str, arg: BoundNode | None):
    found = resolve_function(name, [] if arg is None else [arg.type])
    assert found is not None
    return found.fn


def _parts(call_: Aggregate) -> tuple[Aggregate, ...] | None:
    name = call_.fn.name
    if call_.distinct or call_.direct is not None:
        return None
    if name == "count" and len(call_.args) <= 1:
        return (replace(call_, order=()),)
    if len(call_.args) != 1:
        return None
    arg = call_.args[0]
    if name in ("sum", "avg") and (arg.type.kind in _INTEGERS or arg.type.kind is Kind.NUMERIC):
        # In the type in which Spark adds up; an average of any number is one of numerics.
        if name == "avg" and arg.type.kind in _INTEGERS:
            arg = Convert(NUMERIC, arg)
        added = Aggregate(call_.type, _function("sum", arg), (arg,), where=call_.where)
        return added, count_of(call_.args[0], call_.where)
    if name in ("bool_and", "every", "bool_or"):
        true = Op(BOOL, "and", (arg, call_.where), lambda a: and_(*a)) if call_.where is not None else arg
        false: BoundNode = Op(BOOL, "not", (arg,), lambda a: not_(a[0]))
        if call_.where is not None:
            false = Op(BOOL, "and", (false, call_.where), lambda a: and_(*a))
        return count_of(None, true), count_of(None, false)
    return None


def count_of(arg: BoundNode | None, where: BoundNode | None) -> Aggregate:
    """The number of rows, or of values."""
    return Aggregate(INT8, _function("count", arg), () if arg is None else (arg,), where=where)


def _finisher(
    call_: Aggregate, parts: Sequence[Aggregate], places: Sequence[int]
) -> Callable[[Scan], BoundNode]:
    name = call_.fn.name

    def made(scan: Scan) -> BoundNode:
        refs = tuple(Ref(p.type, scan.alias, f"a{i}") for p, i in zip(parts, places, strict=True))
        if name == "count":
            return refs[0]
        return Op(call_.type, f"{name} of sums", refs, _BUILD[name])

    return made


def _sum(args: Sequence[Tree]) -> Tree:
    return if_(eq(args[1], bigint(0)), null(), args[0])


def _avg(args: Sequence[Tree]) -> Tree:
    count = cast(call("nullif", args[1], bigint(0)), _DECIMAL)
    return cast(divide(cast(args[0], _DECIMAL), count), _DECIMAL)


def _all(args: Sequence[Tree]) -> Tree:
    none = and_(eq(args[0], bigint(0)), eq(args[1], bigint(0)))
    return if_(none, null(), eq(args[1].copy(), bigint(0)))


def _any(args: Sequence[Tree]) -> Tree:
    none = and_(eq(args[0], bigint(0)), eq(args[1], bigint(0)))
    return if_(none, null(), gt(args[0].copy(), bigint(0)))


_BUILD: dict[str, Callable[[Sequence[Tree]], Tree]] = {
    "sum": _sum,
    "avg": _avg,
    "bool_and": _all,
    "every": _all,
    "bool_or": _any,
}
