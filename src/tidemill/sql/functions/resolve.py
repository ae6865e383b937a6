"""PostgreSQL's overload resolution (chapter 10 of its manual): from a call to a row of the allow-list.

Called by the binder with the argument types. Returns the row and the types to coerce the arguments to.
Returns None where PostgreSQL would report that the function or operator does not exist or is not unique.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidemill.errors import Unsupported
from tidemill.sql.functions.lattice import base, can_coerce, category, common_type, is_preferred
from tidemill.sql.functions.signature import Declared, Fn, Poly, functions_named, operators_named
from tidemill.types.model import INT4, INT8, MZ_TIMESTAMP, NUMERIC, TEXT, Kind, SqlType, array, list_, plain


@dataclass(frozen=True, slots=True)
class ResolvedFunction:
    """A chosen row with its polymorphic types filled in."""

    fn: Fn
    args: tuple[SqlType, ...]
    result: SqlType


def resolve_function(name: str, types: Sequence[SqlType]) -> ResolvedFunction | None:
    return _choose(_candidates(functions_named(name), len(types)), types)


def resolve_operator(name: str, types: Sequence[SqlType]) -> ResolvedFunction | None:
    elements = {base(t.element) for t in types if t.kind in _CONTAINERS.values() and t.element is not None}
    if len(elements) > 1 and name != "||":
        # Two arrays are comparable if they have one type; only || finds a common one.
        return None
    if _is_json_too(name, types):
        return None
    candidates = _operators(name, types)
    if len(types) == 2 and (types[0].kind is Kind.UNKNOWN) != (types[1].kind is Kind.UNKNOWN):
        # A literal next to a typed operand is first tried as that operand's type.
        known = types[0] if types[1].kind is Kind.UNKNOWN else types[1]
        for fn, declared in candidates:
            if all(_exact(d, known) or _CONTAINERS.get(d) is known.kind for d in declared):
                return _fill(fn, declared, [known, known])
    return _choose(candidates, _signed(types))


def _operators(name: str, types: Sequence[SqlType]) -> list[_Candidate]:
    """A number becomes an mz_timestamp beside one, but not beside a date: those of mz_timestamp count only
    where an operand is one."""
    found = _candidates(operators_named(name), len(types))
    if any(t.kind is Kind.MZ_TIMESTAMP for t in types):
        return found
    return [c for c in found if MZ_TIMESTAMP not in c[1]]


# PostgreSQL also has these for json (and ?| for lines), so a literal could be either.
_OF_JSON_TOO = frozenset({"->", "->>", "#>", "#>>"})


def _is_json_too(name: str, types: Sequence[SqlType]) -> bool:
    if len(types) != 2 or types[0].kind is not Kind.UNKNOWN:
        return False
    return name in _OF_JSON_TOO or (name == "?|" and types[1].kind is Kind.UNKNOWN)


# An unsigned number next to a signed one counts as the signed type that holds it. Otherwise PostgreSQL's
# preference for float8 would decide, and lose digits.
_HOLDS = {Kind.UINT2: INT4, Kind.UINT4: INT8, Kind.UINT8: NUMERIC}
_EXACT = frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.NUMERIC})


def _signed(types: Sequence[SqlType]) -> Sequence[SqlType]:
    kinds = {t.kind for t in types}
    if not (kinds & _HOLDS.keys() and kinds & _EXACT):
        return types
    return [_HOLDS.get(t.kind, t) for t in types]


# Declared types that are arrays or lists of the call's element.
_CONTAINERS: dict[Declared, Kind] = {Poly.ARRAY: Kind.ARRAY, Poly.LIST: Kind.LIST}

_Candidate = tuple[Fn, tuple[Declared, ...]]
_Score = Callable[[Declared, SqlType], bool]


def _candidates(rows: Sequence[Fn], count: int) -> list[_Candidate]:
    found: list[_Candidate] = []
    for fn in rows:
        if len(fn.args) == count:
            found.append((fn, fn.args))
        elif fn.variadic and count >= len(fn.args):
            found.append((fn, fn.args + (fn.args[-1],) * (count - len(fn.args))))
    return found


def _exact(declared: Declared, actual: SqlType) -> bool:
    return not isinstance(declared, Poly) and declared == base(actual)


def _accepts(declared: Declared, actual: SqlType) -> bool:
    if isinstance(declared, Poly):
        return declared not in _CONTAINERS or actual.kind in (_CONTAINERS[declared], Kind.UNKNOWN)
    return can_coerce(actual, declared)


def _choose(candidates: list[_Candidate], types: Sequence[SqlType]) -> ResolvedFunction | None:
    for fn, declared in candidates:
        if all(_exact(d, t) for d, t in zip(declared, types, strict=True)):
            return _fill(fn, declared, types)
    left = _left(candidates, types)
    if len(left) != 1:
        return None
    return _fill(left[0][0], left[0][1], types)


def is_ambiguous_function(name: str, types: Sequence[SqlType]) -> bool:
    """Whether several rows match equally well."""
    return len(_left(_candidates(functions_named(name), len(types)), types)) > 1


def is_ambiguous_operator(name: str, types: Sequence[SqlType]) -> bool:
    return _is_json_too(name, types) or len(_left(_operators(name, types), types)) > 1


def _left(candidates: list[_Candidate], types: Sequence[SqlType]) -> list[_Candidate]:
    """The candidates that remain by PostgreSQL's rules, if none matches exactly."""
    left = [c for c in candidates if all(_accepts(d, t) for d, t in zip(c[1], types, strict=True))]
    left = [c for c in left if _fill(c[0], c[1], types) is not None]
    if len(left) > 1:
        left = _best(left, lambda d, t: _exact(d, t), types)
    if len(left) > 1:
        left = _best(left, _exact_or_preferred, types)
    if len(left) > 1:
        left = _by_category(left, types)
    if len(left) > 1:
        left = _unknown_as_known(left, types)
    return left


def _exact_or_preferred(declared: Declared, actual: SqlType) -> bool:
    if actual.kind is Kind.UNKNOWN or isinstance(declared, Poly):
        return False
    return _exact(declared, actual) or (is_preferred(declared) and category(declared) == category(actual))


def _best(candidates: list[_Candidate], scores: _Score, types: Sequence[SqlType]) -> list[_Candidate]:
    def score(c: _Candidate) -> int:
        return sum(scores(d, t) for d, t in zip(c[1], types, strict=True))

    most = max(score(c) for c in candidates)
    return [c for c in candidates if score(c) == most]


def _by_category(candidates: list[_Candidate], types: Sequence[SqlType]) -> list[_Candidate]:
    """An unknown argument takes the string category if any candidate does, else the category all agree on."""
    left = candidates
    wanted: dict[int, tuple[str, bool]] = {}
    for i, t in enumerate(types):
        if t.kind is not Kind.UNKNOWN:
            continue
        declared = [c[1][i] for c in left]
        categories = {_category(d) for d in declared}
        if "S" in categories:
            chosen = "S"
        elif len(categories) == 1:
            chosen = next(iter(categories))
        else:
            return candidates
        has_preferred = any(
            not isinstance(d, Poly) and is_preferred(d) and category(d) == chosen for d in declared
        )
        wanted[i] = (chosen, has_preferred)
    kept = [
        c
        for c in left
        if all(
            _category(c[1][i]) == cat and (not pref or _is_preferred(c[1][i]))
            for i, (cat, pref) in wanted.items()
        )
    ]
    return kept or candidates


def _unknown_as_known(candidates: list[_Candidate], types: Sequence[SqlType]) -> list[_Candidate]:
    known = {base(t) for t in types if t.kind is not Kind.UNKNOWN}
    if len(known) != 1 or all(t.kind is not Kind.UNKNOWN for t in types):
        return candidates
    only = next(iter(known))
    kept = [c for c in candidates if all(_accepts(d, only) for d in c[1])]
    return kept if len(kept) == 1 else candidates


def _category(d: Declared) -> str:
    return "P" if isinstance(d, Poly) else category(d)


def _is_preferred(d: Declared) -> bool:
    return not isinstance(d, Poly) and is_preferred(d)


def _fill(fn: Fn, declared: Sequence[Declared], types: Sequence[SqlType]) -> ResolvedFunction | None:
    """Replaces the polymorphic types by those of the arguments; None if they do not agree."""
    elements: list[SqlType] = []
    for d, t in zip(declared, types, strict=True):
        if d is Poly.ELEMENT:
            elements.append(t)
        elif _CONTAINERS.get(d) is t.kind and t.element is not None:
            elements.append(t.element)
    element: SqlType | None = None
    if elements:
        element, _ = common_type(elements)
        if element is None:
            return None
        element = plain(base(element))
    filled: list[SqlType] = []
    for d, t in zip(declared, types, strict=True):
        if d is Poly.ELEMENT or d in _CONTAINERS:
            if element is None:
                return None
            filled.append(_made(d, element))
        elif d is Poly.ANY:
            filled.append(TEXT if t.kind is Kind.UNKNOWN else t)
        else:
            assert isinstance(d, SqlType)
            filled.append(d)
    result = fn.result
    if isinstance(result, Poly):
        if result is Poly.ANY or element is None:
            return None
        result = _made(result, element)
    return ResolvedFunction(fn, tuple(filled), result)


def _made(declared: Declared, element: SqlType) -> SqlType:
    if declared is Poly.ELEMENT:
        return element
    if declared is Poly.LIST:
        return list_(element)
    if element.kind is Kind.ARRAY:
        raise Unsupported("an array of arrays is not supported", hint="Use a list, as of list_agg().")
    return array(element)
