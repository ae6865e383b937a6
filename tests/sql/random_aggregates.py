"""Random calls of every aggregate of the allow-list over the table w: plain, DISTINCT, with ORDER BY and
FILTER, and over windows."""

from __future__ import annotations

import random

from random_expressions import Expressions, Made
from random_values import ELEMENTS, SCALARS

from tidemill.sql.functions.signature import Fn, Poly, every_function
from tidemill.types.model import BOOL, BYTEA, FLOAT4, FLOAT8, JSONB, NUMERIC, Kind, SqlType, array

_OURS = {Kind.UINT2, Kind.UINT4, Kind.UINT8, Kind.MZ_TIMESTAMP, Kind.LIST, Kind.MAP, Kind.OID}
# Their answers depend on which row comes first, or are json, which is jsonb here.
_SKIPPED = frozenset(("any_value", "list_agg"))
# Sums of floats and quotients: their last digits depend on the order of the rows.
_LOOSE = frozenset(("sum", "avg", "corr"))
_LOOSE_PREFIXES = ("stddev", "var", "regr_", "covar_")
_ORDERED = frozenset(("array_agg", "string_agg", "jsonb_agg", "jsonb_agg_strict"))
_MODEST = ("i2", "m", "i", "r / 1e20::float8")
_CONDITIONS = ("id > 3", "b", "i > 0", "false", "s IS NOT NULL", "id < 12")
_FRAMES = (
    "ORDER BY id",
    "ORDER BY id ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING",
    "PARTITION BY b ORDER BY id DESC ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "PARTITION BY id % 3",
    "ORDER BY id RANGE BETWEEN 3 PRECEDING AND CURRENT ROW",
)


def rows() -> list[Fn]:
    def asked(row: Fn) -> bool:
        kinds = {d.kind for d in (*row.args, row.result) if isinstance(d, SqlType)}
        return row.aggregate and not row.refused and not kinds & _OURS and row.name not in _SKIPPED

    return [r for r in every_function() if asked(r)]


def aggregates(seed: int, count: int) -> list[tuple[Made, bool]]:
    """Calls, and whether each is a window's: it has a value in every row then."""
    rng = random.Random(seed)
    made = Expressions(rng)
    every = rows()
    rng.shuffle(every)
    found: list[tuple[Made, bool]] = []
    for i in range(count):
        row = every[i % len(every)]
        element = rng.choice(ELEMENTS)
        types = [_type(d, element, rng) for d in row.args]
        args = [made.expr(t, rng.choice((0, 0, 0, 1))) for t in types]
        if row.name == "string_agg":
            args[1] = "'\\x2c'::bytea" if row.args[1] == BYTEA else rng.choice(("','", "''", "s"))
        if row.name.startswith(_LOOSE_PREFIXES) or row.name in ("corr", "avg"):
            # Of large floats the squares are out of range, sooner or later.
            args = [rng.choice(_MODEST) if t == FLOAT8 else a for a, t in zip(args, types, strict=True)]
        floats = any(t in (FLOAT4, FLOAT8) for t in types)
        # Of -0 and 0 either is the least.
        loose = floats or row.name in _LOOSE or row.name.startswith(_LOOSE_PREFIXES)
        over = rng.random() < 0.25 and row.windowed
        inner = ", ".join(args) or "*"
        if not over and len(args) == 1 and rng.random() < 0.2 and JSONB not in types and not floats:
            inner = f"DISTINCT {inner}" + (f" ORDER BY {inner}" if row.name in _ORDERED else "")
        elif row.name in _ORDERED and not over:
            inner += " ORDER BY id" + rng.choice(("", " DESC"))
        text = f"{row.name}({inner})"
        if rng.random() < 0.3:
            text += f" FILTER (WHERE {rng.choice(_CONDITIONS)})"
        if over:
            frames = [f for f in _FRAMES if "ORDER" in f or row.name not in _ORDERED]
            text += f" OVER ({rng.choice(frames)})"
        found.append((Made(text, loose), over))
    return found


def _type(declared: object, element: SqlType, rng: random.Random) -> SqlType:
    if declared is Poly.ELEMENT:
        return element
    if declared is Poly.ARRAY:
        return array(element)
    if declared is Poly.ANY:
        return rng.choice([t for t in SCALARS if t not in (NUMERIC, JSONB)])
    assert isinstance(declared, SqlType)
    return declared if declared in SCALARS else BOOL
