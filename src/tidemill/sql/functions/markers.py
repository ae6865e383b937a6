"""Placeholders in a bound query's Spark tree, for values that are known only at execution.

The binder inserts them; `bind.substitute` replaces them with typed literals. A parameter's placeholder
carries its type, so a tree can be completed without the binder's state.
"""

from __future__ import annotations

from enum import Enum

from sqlglot import exp

from tidemill.sql.functions.tree import Tree
from tidemill.types.model import MZ_TIMESTAMP, TEXT, TIMESTAMPTZ, SqlType

_META = "tidemill_marker"


class Fixed(Enum):
    """A value that the session fixes for a statement; the enum's value is the placeholder's name."""

    NOW = "tm_now"
    STATEMENT = "tm_statement"
    MZ_NOW = "tm_mz_now"
    ZONE = "tm_zone"


FIXED_TYPES: dict[Fixed, SqlType] = {
    Fixed.NOW: TIMESTAMPTZ,
    Fixed.STATEMENT: TIMESTAMPTZ,
    Fixed.MZ_NOW: MZ_TIMESTAMP,
    Fixed.ZONE: TEXT,
}


def fixed(which: Fixed) -> Tree:
    node = exp.Placeholder(this=which.value)
    node.meta[_META] = (which, FIXED_TYPES[which])
    return node


def parameter(index: int, t: SqlType) -> Tree:
    """The client's parameter $index (from 1) as a value of `t`."""
    node = exp.Placeholder(this=f"tm_p{index}")
    node.meta[_META] = (index, t)
    return node


def read_marker(node: Tree) -> tuple[Fixed | int, SqlType] | None:
    if not isinstance(node, exp.Placeholder):
        return None
    found: tuple[Fixed | int, SqlType] | None = node.meta.get(_META)
    return found


def zone() -> Tree:
    """The session's time zone, a string."""
    return fixed(Fixed.ZONE)
