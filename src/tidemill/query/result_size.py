"""Whether a query's result can be larger than its inputs: more rows, or longer ones.

`run` calls it with the text that Spark gets. If nothing in a query makes its result longer, the result's
partitions have a known size, as its inputs do (`slots.Slot.expect`). They pass through memory. All other
results are first spooled to disk (`spool`). Anything unknown counts as growing: this costs some milliseconds,
while the opposite error could cost the JVM.
"""

from __future__ import annotations

import re
from enum import IntEnum

# Literals and names, which may have anything in them.
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_CALLED = re.compile(r"([A-Za-z_][A-Za-z_0-9]*)\s*\(")
_ROWS = re.compile(r"\b(?:JOIN|LATERAL|RECURSIVE)\b", re.IGNORECASE)
# Where rows of several partitions meet in one, in an unknown number.
_GATHERED = re.compile(r"\b(?:ORDER|SORT|GROUP|OVER|DISTINCT|INTERSECT|EXCEPT)\b", re.IGNORECASE)

# Keywords that may precede a parenthesis.
_WORDS = """all and any as between by case decimal distinct else end except exists filter from having in
    intersect is like limit not on or order over partition select sets some then union using values when where
    with"""
# Functions whose value is not longer than their arguments.
_STEADY = """abs avg bigint bool_and bool_or boolean cast ceil coalesce count date day dense_rank double every
    exp extract first_value float floor greatest hour if ifnull int isnotnull isnull lag last_value lead least
    length ln log lower ltrim max min minute mod month nth_value ntile nullif octet_length percent_rank pmod
    power rank raise_error round row_number rtrim second sign size smallint sqrt stddev_pop stddev_samp string
    substring sum timestamp timestamp_micros tinyint trim try_cast unix_micros upper var_pop var_samp year"""
# Functions whose value may be any number of times as long as their arguments. (The values of others are a few
# times as long: `upper`, `replace`, numbers as texts.)
_LONG = "array_join array_repeat collect_list collect_set flatten listagg lpad repeat rpad space string_agg"


class Growth(IntEnum):
    NONE = 0
    ROWS = 1  # or a few times as long ones
    WIDTH = 2


_KNOWN = frozenset((_WORDS + " " + _STEADY).split())
_UNBOUNDED = frozenset(_LONG.split())


def growth(text: str, *, small: bool) -> Growth:
    """Of a query in Spark's SQL; `small`: its inputs are one partition that fits the driver."""
    bare = _QUOTED.sub("x", text)
    called = {name.lower() for name in _CALLED.findall(bare)}
    if called & _UNBOUNDED:
        return Growth.WIDTH
    if called - _KNOWN or _ROWS.search(bare) or (not small and _GATHERED.search(bare)):
        return Growth.ROWS
    return Growth.NONE
