"""Which column an error about an unknown one proposes: PostgreSQL's choices, and its silence."""

from __future__ import annotations

import time

import pytest

from tidemill.sql.bind.suggest import column_hint

COLUMNS = [("t", "name"), ("t", "amount"), ("u", "created_at"), ("", "y")]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("nmae", ['"t.name"']),
        ("nam", ['"t.name"']),
        ("names", ['"t.name"']),
        ("Name", ['"t.name"']),
        ("amuont", ['"t.amount"']),
        ("createdat", ['"u.created_at"']),
        ("created_when", []),  # more than three edits
        ("nuka", []),  # more than half the letters
        ("x", []),
        ("id", []),
    ],
)
def test_the_nearest_column_is_named(given: str, named: list[str]) -> None:
    hint = column_hint(given, COLUMNS)
    wanted = f"Perhaps you meant to reference the column {' or the column '.join(named)}." if named else None
    assert hint == wanted


def test_two_equally_near_are_both_named_and_of_three_none() -> None:
    columns = [("t", "name"), ("u", "name"), ("u", "other")]
    assert column_hint("nam", columns) == (
        'Perhaps you meant to reference the column "t.name" or the column "u.name".'
    )
    assert column_hint("nam", [*columns, ("v", "name")]) is None
    assert column_hint("nam", [*columns, ("v", "name"), ("w", "nam_")]) is None


def test_long_names_in_wide_tables_cost_little() -> None:
    columns = [("t", f"{i:04d}{'x' * 251}") for i in range(1600)]
    began = time.process_time()
    column_hint("y" * 255, columns)
    assert time.process_time() - began < 1
