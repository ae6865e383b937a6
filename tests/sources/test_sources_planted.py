"""The conformance suite itself: a sound source passes, and each planted bug is caught by the check that is
there for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sources import conformance
from sources.conformance import CHECKS, Subject
from sources.planted import PlantedSource
from tidemill.sources.contract import MAX_BATCH_ROWS, SourcePiece

MANY = SourcePiece("a", 0, 8_000_000)

BUGS: list[tuple[str, Callable[[Subject], None]]] = [
    ("goes back", conformance.frontier_only_advances),
    ("a key that is no column", conformance.description_is_of_the_definition),
    ("drops the last of two", conformance.any_cut_gives_the_same_rows),
    ("begins one too early", conformance.any_cut_gives_the_same_rows),
    ("counts from the piece", conformance.any_cut_gives_the_same_rows),
    ("remembers", conformance.any_piece_can_be_read_again),
    ("remembers", conformance.an_abandoned_read_leaves_no_trace),
    ("hashes text", conformance.reader_travels),
    ("heavy", conformance.reader_travels),
    ("splits with a gap", conformance.split_covers_exactly),
    ("splits one by one", conformance.split_covers_exactly),
    ("stands still", conformance.cut_respects_limits_and_progresses),
    ("ignores limits", conformance.cut_respects_limits_and_progresses),
    ("another type", conformance.batches_are_as_the_contract_says),
    ("no tombstones", conformance.batches_are_as_the_contract_says),
    ("nulls", conformance.batches_are_as_the_contract_says),
    ("out of order", conformance.batches_are_as_the_contract_says),
    ("counts twice", conformance.batches_are_as_the_contract_says),
    ("empty batches", conformance.batches_are_as_the_contract_says),
    ("large batches", conformance.batches_are_as_the_contract_says),
    ("collects", conformance.memory_is_bounded_by_a_batch),
]


def planted(bug: str) -> Subject:
    records = {"a": MAX_BATCH_ROWS + 1} if bug == "large batches" else None
    return Subject(bug, lambda: PlantedSource(bug, records), (0, 1, 2, 3), MANY)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_a_sound_source_passes(check: Callable[[Subject], None]) -> None:
    check(planted(""))


@pytest.mark.parametrize(("bug", "check"), BUGS, ids=[f"{bug}-{check.__name__}" for bug, check in BUGS])
def test_a_planted_bug_is_caught(bug: str, check: Callable[[Subject], None]) -> None:
    with pytest.raises(AssertionError):
        check(planted(bug))


def test_every_check_catches_something() -> None:
    assert {check for _, check in BUGS} == set(CHECKS)


def test_a_source_without_records_proves_nothing() -> None:
    with pytest.raises(AssertionError, match="nothing to read"):
        conformance.split_covers_exactly(Subject("empty", PlantedSource, (0,)))
