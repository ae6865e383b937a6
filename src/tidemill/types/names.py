"""Physical column names: the names of columns inside Delta tables.

Called by `arrow`, `delta` and `spark`. The physical name is the user's name if Delta accepts it, else an
escaped one. The metadata of the table stores the mapping (`delta.delta_schema`), so names are never
unescaped. A name depends only on the names before it: a column added later never renames an earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.types.model import RelationDesc

# Characters that Delta (through Spark's Parquet writer) refuses in a column name. Also the escape character,
# control characters (handled below), and the backtick, which SQL readers of the table would have to double.
_REFUSED = frozenset(" ,;{}()\n\t=%`")

# The names of the shard's columns (mz_timestamp, mz_diff, mz_error) and of the hidden columns of envelopes
# start with this.
RESERVED_PREFIX = "mz_"


def physical_names(desc: RelationDesc) -> list[str]:
    """One physical name per column of a stored relation, in order."""
    return physical_names_of(desc.names)


def physical_names_of(names: Sequence[str]) -> list[str]:
    """Like `physical_names`, and for the fields of a record (whose names may repeat)."""
    taken: set[str] = set()
    result: list[str] = []
    for name in names:
        escaped = _escape(name)
        candidate, n = escaped, 2
        while _fold(candidate) in taken:
            # `_escape` never returns `%~`, so a numbered name never equals an escaped one.
            candidate, n = f"{escaped}%~{n}", n + 1
        taken.add(_fold(candidate))
        result.append(candidate)
    return result


def _escape(name: str) -> str:
    escaped = "".join(f"%{ord(ch):02X}" if ch in _REFUSED or ord(ch) < 0x20 else ch for ch in name)
    if escaped == "":
        return "%"
    if escaped.lower().startswith(RESERVED_PREFIX):
        return f"%{escaped}"
    return escaped


def _fold(name: str) -> str:
    """Delta compares names without case. Folding more than Delta does only escapes a name unnecessarily."""
    return name.lower().casefold()
