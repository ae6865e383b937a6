"""Function calls by their PostgreSQL names, recovered from sqlglot's node classes.

sqlglot's parser turns known functions into separate classes with keyword arguments. This module maps them
back to a name and ordered arguments. A class that is not listed, or an argument that the listing does not
expect, is an unknown call.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from tidemill.errors import Unsupported
from tidemill.sql.bind.errors import position_of


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """`name(args)`; `star` for count(*), `distinct` and `order` for aggregates."""

    name: str
    args: tuple[exp.Expr, ...]
    star: bool = False
    distinct: bool = False
    order: tuple[exp.Ordered, ...] = ()


# class -> name, argument keys in PostgreSQL's order. Keys after "|" are sqlglot's annotations, which are
# ignored.
_CLASSES: dict[type[exp.Expr], tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    exp.Abs: ("abs", ("this",), ()),
    exp.Acos: ("acos", ("this",), ()),
    exp.AnyValue: ("any_value", ("this",), ()),
    exp.ArrayAgg: ("array_agg", ("this",), ("nulls_excluded",)),
    exp.ArrayAppend: ("array_append", ("this", "expression"), ("null_propagation",)),
    exp.ArrayConcat: ("array_cat", ("this", "expressions"), ("null_propagation",)),
    exp.ArrayPosition: ("array_position", ("this", "expression"), ()),
    exp.ArrayPrepend: ("array_prepend", ("expression", "this"), ("null_propagation",)),
    exp.ArraySize: ("array_length", ("this", "expression"), ()),
    exp.ArrayToString: ("array_to_string", ("this", "expression", "null"), ()),
    exp.Ascii: ("ascii", ("this",), ()),
    exp.Asin: ("asin", ("this",), ()),
    exp.Atan: ("atan", ("this",), ()),
    exp.Atan2: ("atan2", ("this", "expression"), ()),
    exp.Avg: ("avg", ("this",), ()),
    exp.BitLength: ("bit_length", ("this",), ()),
    exp.BitwiseAndAgg: ("bit_and", ("this",), ()),
    exp.BitwiseOrAgg: ("bit_or", ("this",), ()),
    exp.BitwiseXorAgg: ("bit_xor", ("this",), ()),
    exp.Cbrt: ("cbrt", ("this",), ()),
    exp.Ceil: ("ceil", ("this",), ()),
    exp.Chr: ("chr", ("expressions",), ("charset",)),
    exp.Concat: ("concat", ("expressions",), ("safe", "coalesce")),
    exp.ConcatWs: ("concat_ws", ("expressions",), ("safe", "coalesce")),
    exp.Corr: ("corr", ("this", "expression"), ()),
    exp.Cos: ("cos", ("this",), ()),
    exp.Count: ("count", ("this", "expressions"), ("big_int",)),
    exp.CumeDist: ("cume_dist", (), ()),
    exp.CurrentDatabase: ("current_database", (), ()),
    exp.CurrentVersion: ("version", (), ()),
    exp.Degrees: ("degrees", ("this",), ()),
    exp.DenseRank: ("dense_rank", (), ()),
    exp.Exp: ("exp", ("this",), ()),
    exp.Explode: ("unnest", ("this",), ()),
    exp.ExplodingGenerateSeries: ("generate_series", ("start", "end", "step"), ()),
    exp.FirstValue: ("first_value", ("this",), ()),
    exp.Floor: ("floor", ("this",), ()),
    exp.GenerateSeries: ("generate_series", ("start", "end", "step"), ()),
    exp.GroupConcat: ("string_agg", ("this", "separator"), ()),
    exp.Hex: ("to_hex", ("this",), ()),
    exp.Lag: ("lag", ("this", "offset", "default"), ()),
    exp.LastValue: ("last_value", ("this",), ()),
    exp.Lead: ("lead", ("this", "offset", "default"), ()),
    exp.Left: ("left", ("this", "expression"), ()),
    exp.Ln: ("ln", ("this",), ()),
    exp.LogicalAnd: ("bool_and", ("this",), ()),
    exp.LogicalOr: ("bool_or", ("this",), ()),
    exp.Lower: ("lower", ("this",), ()),
    exp.MD5: ("md5", ("this",), ()),
    exp.Max: ("max", ("this", "expressions"), ()),
    exp.Min: ("min", ("this", "expressions"), ()),
    exp.NthValue: ("nth_value", ("this", "offset"), ()),
    exp.Ntile: ("ntile", ("this",), ()),
    exp.PercentRank: ("percent_rank", (), ()),
    exp.Pi: ("pi", (), ()),
    exp.Radians: ("radians", ("this",), ()),
    exp.Rank: ("rank", (), ()),
    exp.Repeat: ("repeat", ("this", "times"), ()),
    exp.Replace: ("replace", ("this", "expression", "replacement"), ()),
    exp.Reverse: ("reverse", ("this",), ()),
    exp.Right: ("right", ("this", "expression"), ()),
    exp.Round: ("round", ("this", "decimals"), ()),
    exp.RowNumber: ("row_number", (), ()),
    exp.Sign: ("sign", ("this",), ()),
    exp.Sin: ("sin", ("this",), ()),
    exp.SplitPart: ("split_part", ("this", "delimiter", "part_index"), ()),
    exp.Sqrt: ("sqrt", ("this",), ()),
    exp.StartsWith: ("starts_with", ("this", "expression"), ()),
    exp.Stddev: ("stddev", ("this",), ()),
    exp.StddevPop: ("stddev_pop", ("this",), ()),
    exp.StddevSamp: ("stddev_samp", ("this",), ()),
    exp.StrPosition: ("strpos", ("this", "substr"), ()),
    exp.Substring: ("substring", ("this", "start", "length"), ()),
    exp.Sum: ("sum", ("this",), ()),
    exp.Tan: ("tan", ("this",), ()),
    exp.Translate: ("translate", ("this", "from_", "to"), ()),
    exp.Trunc: ("trunc", ("this", "decimals"), ()),
    exp.Upper: ("upper", ("this",), ()),
    exp.Uuid: ("gen_random_uuid", (), ("is_string",)),
    exp.Variance: ("variance", ("this",), ()),
    exp.VariancePop: ("var_pop", ("this",), ()),
}


def call_of(node: exp.Expr) -> FunctionCall | None:
    """The call that the node represents; None if it is not a known call (an operator, a special form, another
    dialect's function)."""
    if isinstance(node, exp.Anonymous):
        return _peeled(_anonymous_name(node), list(node.expressions))
    if isinstance(node, exp.Trim):
        position = str(node.args.get("position") or "BOTH").upper()
        name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(position, "btrim")
        return _peeled(name, [a for a in (node.this, node.args.get("expression")) if a is not None])
    if isinstance(node, exp.Pad):
        name = "lpad" if node.args.get("is_left") else "rpad"
        fill = node.args.get("fill_pattern")
        return _peeled(name, [node.this, node.expression, *([] if fill is None else [fill])])
    if isinstance(node, exp.SHA2Digest):
        return _peeled(f"sha{node.args['length'].name}", [node.this])
    listed = _CLASSES.get(type(node))
    if listed is None:
        return None
    name, keys, ignored = listed
    args: list[exp.Expr] = []
    for key, value in node.args.items():
        if value and key not in keys and key not in ignored and not key.startswith("_"):
            raise Unsupported(f"this form of {name}() is not supported", position=position_of(node))
    for key in keys:
        value = node.args.get(key)
        if isinstance(value, list):
            args.extend(value)
        elif value is not None:
            args.append(value)
    return _peeled(_spelt(name, node), args)


def row_of(node: exp.Expr) -> list[exp.Expr] | None:
    """The fields of a row constructor, `(a, b)` or `ROW(a, b)`; None for anything else."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Tuple) or (isinstance(node, exp.Anonymous) and str(node.this).lower() == "row"):
        return list(node.expressions)
    return None


# sqlglot has one class for these functions; the length of the written name distinguishes them.
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "ceil": ("ceiling",),
    "substring": ("substr",),
}


def _spelt(name: str, node: exp.Expr) -> str:
    """The name as written, for the output column. A call in special syntax (POSITION(a IN b)) has no
    position."""
    if "start" not in node.meta:
        return "position" if name == "strpos" else name
    width = node.meta["end"] - node.meta["start"] + 1
    return next((other for other in _SPELLINGS.get(name, ()) if len(other) == width), name)


def _anonymous_name(node: exp.Anonymous) -> str:
    name = node.this
    return name.this if isinstance(name, exp.Identifier) else str(name).lower()


def _peeled(name: str, args: list[exp.Expr]) -> FunctionCall:
    """Removes DISTINCT and ORDER BY, which the parser wraps around arguments."""
    star, distinct = False, False
    order: tuple[exp.Ordered, ...] = ()
    plain: list[exp.Expr] = []
    for arg in args:
        current = arg
        if isinstance(current, exp.Order):
            order = tuple(current.expressions)
            current = current.this
        if isinstance(current, exp.Distinct):
            distinct = True
            inner = [_order_off(e) for e in current.expressions]
            for item, keys in inner:
                plain.append(item)
                order = keys or order
            continue
        if isinstance(current, exp.Star):
            star = True
            continue
        if current is not None:
            plain.append(current)
    return FunctionCall(name, tuple(plain), star, distinct, order)


def _order_off(node: exp.Expr) -> tuple[exp.Expr, tuple[exp.Ordered, ...]]:
    if isinstance(node, exp.Order):
        return node.this, tuple(node.expressions)
    return node, ()
