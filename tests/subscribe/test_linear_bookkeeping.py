"""What a linear follower does around its evaluations, without Spark: the changes of inputs at their own
pace, errors at their times, and what is closed. (Its expressions: `test_linear_follower`.)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import pyarrow as pa
import pytest
import told_spans
from hypothesis import given, settings
from hypothesis import strategies as st

from support.bound import Names
from tidemill.errors import InvalidValue, TidemillError, Unavailable
from tidemill.query.evaluations import Evaluations, Member
from tidemill.query.linear_changes import ChangePiece
from tidemill.sql.bind import linearity
from tidemill.subscribe.changes import CollectionChanges
from tidemill.subscribe.leaping import StillFailing
from tidemill.subscribe.linear import LinearFollower
from tidemill.types.arrow import DIFF_COLUMN, TIME_COLUMN
from tidemill.types.model import INT4, Column, RelationDesc

DESC = RelationDesc((Column("a", INT4),))
NAMES = Names({"t": DESC, "u": DESC})
# Negative numbers cannot be evaluated, as a division by zero could not.
QUERY = "SELECT a FROM t UNION ALL SELECT a FROM u"

Update = tuple[int, int, int]  # value, time, diff


class Identity:
    """Stands for `Evaluations`: every formula gives the column as it is."""

    def __init__(self) -> None:
        self.joined: set[Member] = set()
        self.away = False

    @property
    def members(self) -> int:
        return len(self.joined)

    def join(self, relations: Iterable[str]) -> Member:
        member = Member(frozenset(relations))
        self.joined.add(member)
        return member

    def come_back(self, member: Member) -> None:
        self.joined.add(member)

    def leave(self, member: Member) -> None:
        self.joined.discard(member)

    def evaluate(self, member: Member, pieces: Sequence[ChangePiece], *, apart: bool = False) -> None:
        # Others neither wait for one that may fail, nor share its job.
        assert apart is (member not in self.joined) or not pieces
        if pieces and self.away:
            raise Unavailable("Spark is gone")
        for piece in pieces:
            values: list[int] = piece.table.column(0).to_pylist()
            bad = [v for v in values if v < 0]
            if bad:
                raise InvalidValue(f"cannot evaluate {bad[-1]}")  # any of them, as Spark's tasks do
            numbers = pa.array(range(len(values)), pa.int64())
            piece.add(pa.StructArray.from_arrays([pa.array(values, pa.int32())], ["c0"]), numbers)


def telling(
    updates: Sequence[Update], uppers: Sequence[int], error: tuple[int, str] | None = None
) -> told_spans.Told:
    return told_spans.Told(DESC, [((value,), time, diff) for value, time, diff in updates], uppers, error)


def follower(
    inputs: Mapping[str, told_spans.Told], query: str = QUERY, identity: Identity | None = None
) -> LinearFollower:
    bound = NAMES.bind(query)
    named = {placeholder: inputs[relation] for placeholder, relation in bound.inputs.items()}
    evaluations = cast(Evaluations, identity or Identity())
    return LinearFollower(evaluations, bound.columns, linearity(bound).branches, named, 0)


def rows(changes: CollectionChanges) -> list[Update]:
    return list(zip(*(c.to_pylist() for c in changes.updates.columns), strict=True))


UPDATES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 5), st.sampled_from([-2, -1, 1, 2])), max_size=8
)
SPANS = st.sets(st.integers(1, 5)).map(lambda cuts: [*sorted(cuts), 6])


@given(t=UPDATES, u=UPDATES, of_t=SPANS, of_u=SPANS, twice=st.booleans())
@settings(max_examples=100, deadline=None)
def test_every_change_of_every_branch_is_told_once_at_its_time(
    t: list[Update], u: list[Update], of_t: list[int], of_u: list[int], twice: bool
) -> None:
    query = f"{QUERY} UNION ALL SELECT a FROM t" if twice else QUERY
    follow = follower({"t": telling(t, of_t), "u": telling(u, of_u)}, query)
    found: Counter[tuple[int, int]] = Counter()
    lower = 0
    while follow.frontier < 6:
        changes = follow.advance()
        if changes is None:
            continue
        assert (changes.lower, changes.upper, changes.error) == (lower, follow.frontier, None)
        lower = changes.upper
        assert changes.updates.column_names == ["a", TIME_COLUMN, DIFF_COLUMN]
        told = rows(changes)
        assert [time for _, time, _ in told] == sorted(time for _, time, _ in told)
        for value, time, diff in told:
            assert changes.lower <= time < changes.upper and diff
            assert (value, time) not in found
            found[value, time] = diff
    expected: Counter[tuple[int, int]] = Counter()
    for value, time, diff in [*t, *u, *(t if twice else ())]:
        expected[value, time] += diff
    assert found == {key: diff for key, diff in expected.items() if diff}
    assert follow.advance() is None


def test_an_error_of_an_input_waits_for_the_others_and_comes_after_what_was_before_it() -> None:
    t = telling([(1, 3, 1), (2, 5, 1), (3, 7, 1)], [10], (5, "decoding failed"))
    u = telling([(1, 3, 1), (2, 5, 1), (3, 7, 1)], [5, 10])
    follow = follower({"t": t, "u": u})
    first = follow.advance()
    # At 5 the other one is not complete.
    assert first is not None and (first.upper, first.error, rows(first)) == (5, None, [(1, 3, 2)])
    second = follow.advance()
    assert second is not None and (second.lower, second.upper) == (5, 10)
    assert (second.error, rows(second)) == ((5, "decoding failed"), [])


def test_the_first_of_two_errors_of_inputs() -> None:
    t = telling([(1, 2, 1), (2, 6, 1)], [10], (7, "later"))
    u = telling([(1, 4, 1)], [10], (4, "earlier"))
    told = follower({"t": t, "u": u}).advance()
    assert told is not None and (told.error, rows(told)) == ((4, "earlier"), [(1, 2, 1)])


@pytest.mark.parametrize("last", range(1, 9))
def test_a_failure_comes_at_its_time_after_all_that_can_be_told(last: int) -> None:
    """Whichever of eight times it is, and whatever fails later."""
    history = [(-time if time >= last else time, time, 1) for time in range(1, 9)]
    follow = follower({"t": telling(history, [9]), "u": telling([(9, 8, 1)], [9])})
    if last > 1:
        changes = follow.advance()
        assert changes is not None and (changes.lower, changes.upper) == (0, last)
        assert rows(changes) == [(time, time, 1) for time in range(1, last)]
        assert follow.frontier == last
    else:
        # Nothing is before it, but time.
        changes = follow.advance()
        assert changes is not None and (changes.upper, rows(changes)) == (1, [])
    for _ in range(2):
        with pytest.raises(TidemillError, match=f"cannot evaluate -{last}$"):
            follow.advance()
    assert follow.frontier == last


def test_a_failure_at_the_very_first_time() -> None:
    follow = follower({"t": telling([(-1, 0, 1)], [9]), "u": telling([], [9])})
    for _ in range(2):
        with pytest.raises(TidemillError, match="cannot evaluate -1"):
            follow.advance()
    assert follow.frontier == 0


def test_a_spark_that_is_gone_is_no_failure_of_the_query() -> None:
    identity = Identity()
    identity.away = True
    follow = follower({"t": telling([(1, 3, 1)], [9]), "u": telling([], [9])}, identity=identity)
    with pytest.raises(Unavailable):
        follow.advance()


def test_it_closes_its_inputs_and_leaves() -> None:
    identity = Identity()
    inputs = {"t": telling([], [9]), "u": telling([], [9])}
    follow = follower(inputs, identity=identity)
    assert identity.members == 1
    follow.close()
    assert identity.members == 0
    assert [one.closed for one in inputs.values()] == [1, 1]


@given(t=UPDATES, u=UPDATES, uppers=st.lists(st.integers(1, 5), max_size=3, unique=True))
@settings(deadline=None)
def test_it_goes_on_behind_errors(t: list[Update], u: list[Update], uppers: list[int]) -> None:
    """Rows that cannot be evaluated come and go: at each time there is an error if one is there."""
    bad = [(-value - 1, time, diff) for value, time, diff in u]
    histories = {"t": [*t, *bad], "u": u}
    ends = [*sorted(uppers), 6]
    identity = Identity()
    follow = follower({n: telling(h, ends) for n, h in histories.items()}, identity=identity)
    sums: Counter[int] = Counter()
    failing: set[int] = set()
    while follow.frontier < 6 and max(failing, default=0) < 5:
        try:
            found = follow.leap() if follow.frontier in failing else follow.advance()
        except InvalidValue:
            failing.add(follow.frontier)
            continue
        assert found is not None
        if isinstance(found, StillFailing):
            failing.update(range(max(failing) + 1, found.upper))
            continue
        if found.lower in failing:
            failing.update(range(max(failing) + 1, found.upper - 1))
            assert identity.members == 1
        for value, _, diff in rows(found):
            sums[value] += diff
        at = found.upper - 1
        wanted: Counter[int] = Counter()
        for value, time, diff in (x for h in histories.values() for x in h):
            wanted[value] += diff if time <= at else 0
        assert {v: n for v, n in sums.items() if n} == {v: n for v, n in wanted.items() if n}
    for at in range(6):
        there: Counter[int] = Counter()
        for value, time, diff in histories["t"]:
            there[value] += diff if time <= at else 0
        assert (at in failing) == any(n for v, n in there.items() if v < 0), at
