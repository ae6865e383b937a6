"""The hint for an unknown column: the column that was probably meant.

PostgreSQL's rule: the nearest name by edit distance over all visible columns, at most three edits and at most
half the letters away. Two equally near names are both suggested; three or more suppress the hint.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_DISTANCE = 3


def column_hint(name: str, columns: Iterable[tuple[str, str]]) -> str | None:
    """`columns` are (the FROM item's name, the column's)."""
    best, nearest = min(MAX_DISTANCE, len(name) // 2), list[tuple[str, str]]()
    for column in columns:
        distance = _distance(name, column[1], best)
        if distance < best:
            best, nearest = distance, []
        if distance == best:
            nearest.append(column)
    if not 1 <= len(nearest) <= 2:
        return None
    named = " or the column ".join('"' + ".".join(filter(None, c)) + '"' for c in nearest)
    return f"Perhaps you meant to reference the column {named}."


def _distance(a: str, b: str, limit: int) -> int:
    """Insertions, deletions and replacements from `a` to `b`; more than `limit` if there are more."""
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        corner, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (x != y))
        if min(row) > limit:
            return limit + 1
    return row[-1]
