"""Every kind of contradiction, in every order of arrival: an error that names both sides, the time
withheld, and nothing released that the statements before it do not bear out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from cdcv2_oracle import after, at_or_before, batches, count, history, statements
from test_cdcv2_columns import SCHEMA, as_columns

from tidemill.cdcv2 import (
    AvroCodec,
    ColumnRecovery,
    Contradiction,
    InvalidMessage,
    JsonCodec,
    Message,
    Progress,
    Recovery,
    Updates,
    content_of,
    problems,
    recover,
    sealed,
)
from tidemill.cdcv2.column_recovery import keys_of
from tidemill.cdcv2.column_stash import sum_hashes
from tidemill.cdcv2.digest import seal_of
from tidemill.cdcv2.times import Time

A, B = ("a", 3, 1), ("b", 3, 1)
LATER = ("z", 7, 1)

# What is said (in any order), at which time it cannot be true, and the words for it. Nothing is said of
# time 0, so that none is reported before all of it was said.
CASES: dict[str, tuple[list[Message], Any, str]] = {
    "two diffs": (
        [Updates([A]), Updates([("a", 3, 2)]), Progress([1], [5], [(3, 2)])],
        3,
        problems.TWO_DIFFS,
    ),
    "two diffs in one message": (
        [Updates([A, ("a", 3, -1)]), Progress([1], [5], [(3, 1)])],
        3,
        problems.TWO_DIFFS,
    ),
    "zero diff": (
        [Updates([("a", 3, 0)]), Updates([B]), Progress([1], [5], [(3, 2)])],
        3,
        problems.ZERO_DIFF,
    ),
    "counts differ": (
        [Progress([1], [5], [(3, 2)]), Progress([2], [8], [(3, 1)])],
        3,
        problems.COUNTS_DIFFER,
    ),
    "counted and not": ([Progress([1], [5], [(3, 2)]), Progress([2], [8])], 3, problems.COUNTS_DIFFER),
    "too many": ([Updates([A]), Updates([B]), Progress([1], [5], [(3, 1)])], 3, problems.TOO_MANY),
    "some where none is": ([Updates([A]), Progress([1], [5])], 3, problems.TOO_MANY),
    "counted twice": ([Progress([1], [5], [(3, 1), (3, 1)]), Updates([A])], 3, problems.COUNT_REPEATED),
    "counted before": ([Progress([4], [5], [(3, 1)]), Updates([A])], 3, problems.COUNT_OUTSIDE),
    "counted behind": ([Progress([1], [3], [(3, 1)]), Updates([A])], 3, problems.COUNT_OUTSIDE),
    "crossed": ([Progress([5], [3]), Updates([A])], 3, problems.BOUNDS_CROSSED),
    "from nowhere": ([Progress([], [3])], 3, problems.BOUNDS_CROSSED),
    "no antichain below": ([Progress([3, 4], [])], 3, problems.NO_ANTICHAIN),
    "no antichain above": ([Progress([3], [5, 6])], 3, problems.NO_ANTICHAIN),
    "repeated bound": ([Progress([3, 3], [5])], 3, problems.NO_ANTICHAIN),
    "broken seal": (
        [replace(sealed(Progress([3], [5], [(3, 1)]), [content_of([A])]), upper=[6]), Updates([A])],
        3,
        problems.SEAL_BROKEN,
    ),
    "digests differ": (
        [sealed(Progress([1], [5], [(3, 1)]), [1]), sealed(Progress([2], [8], [(3, 1)]), [2])],
        3,
        problems.CONTENTS_DIFFER,
    ),
    "content": (
        [sealed(Progress([1], [5], [(3, 1)]), [content_of([B])]), Updates([A])],
        3,
        problems.CONTENT_WRONG,
    ),
    "pairs": (
        [Progress([(0, 0)], [], [((1, 2), 1)]), Updates([("a", (1, 2), 1), ("b", (1, 2), 1)])],
        (1, 2),
        problems.TOO_MANY,
    ),
    "pairs that overlap": (
        [Progress([(0, 0)], [(2, 2)], [((1, 1), 1)]), Progress([(1, 0)], [])],
        (1, 1),
        problems.COUNTS_DIFFER,
    ),
}


def _named(messages: Sequence[Message]) -> list[Message]:
    return [replace(m, origin=f"origin {i}") for i, m in enumerate(messages)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_in_every_order(name: str, columns: bool) -> None:
    said, time, kind = CASES[name]
    gap = Progress([0], [1]) if isinstance(time, int) else Progress([(0, 0)], [(1, 0), (0, 1)])
    for order in itertools.permutations(_named(said)):
        recovery: Any = ColumnRecovery(SCHEMA) if columns else Recovery()
        found: list[Contradiction] = []
        released: list[Any] = []
        for message in (*order, gap):
            try:
                out = recovery.push(as_columns(message) if columns else message)
            except Contradiction as e:
                found.append(e)
                out = recovery.drain()
            released += [u for updates, _ in out for u in (updates.rows() if columns else updates)]
        assert [(e.kind, e.time) for e in found] == [(kind, time)], order
        assert after(recovery.frontier, time) and not released
        error = found[0]
        # Both are named, or the one that refutes itself.
        assert "origin" in error.first
        if kind in (problems.TWO_DIFFS, problems.COUNTS_DIFFER, problems.CONTENTS_DIFFER):
            assert error.second is not None and "origin" in error.second
            named = {o for o in ("origin 0", "origin 1") if o in f"{error.first} {error.second}"}
            assert len(named) == (1 if name == "two diffs in one message" else 2)
        [stall] = recovery.stalls()
        assert at_or_before(stall.time, time)


@pytest.mark.parametrize("name", [n for n, (_, time, _) in CASES.items() if time == 3])
def test_earlier_times_go_on_and_later_ones_wait(name: str) -> None:
    said, _, _ = CASES[name]
    # Digests of Python values, so rows only.
    recovery = Recovery()
    released: list[Any] = []
    others = [
        Updates([("late", 7, 1), ("early", 0, 1)]),
        Progress([0], [1], [(0, 1)]),
        Progress([8], [9]),
        Progress([6], [8], [(7, 1)]),
    ]
    for message in (*said, *others):
        try:
            out = recovery.push(message)
        except Contradiction:
            out = recovery.drain()
        released += [u for updates, _ in out for u in updates]
    assert released == [("early", 0, 1)]
    assert recovery.frontier in ([1], [3])


def test_what_comes_after_its_time_was_reported_is_dropped() -> None:
    recovery = Recovery()
    assert recovery.push(Updates([A])) == []
    assert recovery.push(Progress([0], [5], [(3, 1)])) == [([A], [5])]
    for late in (Updates([("a", 3, 2)]), Updates([B]), Progress([2], [5], [(3, 2)]), Updates([("a", 3, 0)])):
        assert recovery.push(late) == []
    # A statement that refutes itself is told even so.
    with pytest.raises(Contradiction) as caught:
        recovery.push(Progress([0], [5], [(3, 1), (3, 1)]))
    assert caught.value.time is None and recovery.frontier == [5]


def test_a_release_in_the_push_that_finds_a_contradiction_is_not_lost() -> None:
    recovery = Recovery()
    recovery.push(Progress([0], [5], [(1, 1), (3, 1)]))
    with pytest.raises(Contradiction):
        recovery.push(Updates([("early", 1, 1), ("a", 3, 0)]))
    assert recovery.drain() == [([("early", 1, 1)], [3])]
    released: list[Any] = []
    with pytest.raises(Contradiction):
        for updates, _ in recover(
            [Progress([0], [5], [(1, 1), (3, 1)]), Updates([("early", 1, 1), ("a", 3, 0)])]
        ):
            released += updates
    assert released == [("early", 1, 1)]


def test_incomparable_times_go_on() -> None:
    recovery = Recovery()
    recovery.push(Progress([(0, 0)], [], [((0, 5), 1), ((5, 0), 1)]))
    with pytest.raises(Contradiction):
        recovery.push(Updates([("a", (0, 5), 0)]))
    assert recovery.push(Updates([("b", (5, 0), 1)])) == [([("b", (5, 0), 1)], [(0, 5)])]


def test_several_at_once() -> None:
    with pytest.raises(Contradiction) as caught:
        Recovery().push(Updates([("a", 3, 0), ("b", 4, 0)]))
    assert [e.time for e in (caught.value, *caught.value.others)] == [3, 4]


# -- digests
# -----------------------------------------------------------------------------------------------------


def with_digests(progress: Progress, updates: Sequence[Any], *, columns: bool = False) -> Progress:
    contents: list[int] = []
    for time, _ in progress.counts:
        mine = [u for u in updates if u[1] == time]
        if columns:
            batch: Any = as_columns(Updates(mine))
            contents.append(sum_hashes(keys_of(batch), batch.diffs))
        else:
            contents.append(content_of(mine))
    return sealed(progress, contents)


def _mutated(rng: Random, message: Message) -> Message:
    """One thing in it is another."""

    def moved(time: Time) -> Time:
        if isinstance(time, int):
            return rng.choice([t for t in (time - 1, time + 1, time + 3) if t >= 0])
        i = rng.randrange(len(time))
        return (*time[:i], time[i] + 1, *time[i + 1 :])

    if isinstance(message, Updates):
        rows = list(message.updates)
        i = rng.randrange(len(rows))
        data, time, diff = rows[i]
        choice = rng.randrange(4)
        if choice == 0:
            rows[i] = (data + "x", time, diff)
        elif choice == 1:
            rows[i] = (data, moved(time), diff)
        elif choice == 2:
            rows[i] = (data, time, diff + rng.choice([1, -1]))
        else:
            del rows[i]
        return Updates(rows)
    lower, upper, counts = list(message.lower), list(message.upper), list(message.counts)
    contents, seal = list(message.contents or ()), message.seal or 0
    choice = rng.randrange(6)
    if choice == 0:
        lower[0] = moved(lower[0])
    elif choice == 1 and upper:
        upper[0] = moved(upper[0])
    elif choice == 2:
        upper = [] if upper else [moved(lower[0])]
    elif choice == 3 and counts:
        counts[0] = (counts[0][0], counts[0][1] + rng.choice([-1, 1]))
    elif choice == 4 and counts:
        counts[0] = (moved(counts[0][0]), counts[0][1])
    elif choice == 5 and counts:
        contents[0] += 1
    else:
        seal += 1
    return Progress(lower, upper, counts, contents, seal)


def _one_mutation(kind: int, seed: int, *, columns: bool) -> None:
    rng = Random(f"{kind} {seed}")
    side = 6 if kind == 0 else 3
    updates = history(rng, kind, side, 6)
    good: list[Message] = [
        with_digests(p, updates, columns=columns) for p in statements(rng, updates, kind, side, 2)
    ]
    good += batches(rng, updates)
    if rng.random() < 0.5:
        good += good
    i = rng.randrange(len(good))
    bad = [*good[:i], _mutated(rng, good[i]), *good[i + 1 :]]
    if rng.random() < 0.3:
        bad.append(good[i])
    rng.shuffle(bad)
    recovery: Any = ColumnRecovery(SCHEMA) if columns else Recovery()
    released: list[Any] = []
    errors = 0
    for message in bad:
        try:
            out = recovery.push(as_columns(message) if columns else message)
        except (Contradiction, InvalidMessage):
            errors += 1
            out = recovery.drain()
        for rows, _ in out:
            released += [(d[0], t, n) for d, t, n in rows.rows()] if columns else rows
    # Never a wrong release: each update that came out is one of the history, once, and no time is half there.
    assert len(released) == len(set(released)) and set(released) <= set(updates)
    assert set(released) == {u for u in updates if not after(recovery.frontier, u[1])}
    # All is there, or something says why not.
    assert recovery.frontier == [] or errors or recovery.stalls()


@pytest.mark.parametrize("kind", [0, 2, 3])
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_any_single_mutation(kind: int, columns: bool) -> None:
    for seed in range(100 if columns else 400):
        _one_mutation(kind, seed, columns=columns)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", [0, 2, 3])
@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_any_single_mutation_long(kind: int, columns: bool) -> None:
    first = Random().randrange(2**32)
    for seed in range(first, first + (3000 if columns else 20_000)):
        _one_mutation(kind, seed, columns=columns)


def _mangled(rng: Random, message: bytes) -> bytes:
    """Cut off, added to, a byte changed, left out, or a bit flipped."""
    at = rng.randrange(len(message))
    return rng.choice(
        [
            message[:at],
            message + rng.randbytes(2),
            message[:at] + rng.randbytes(1) + message[at + 1 :],
            message[:at] + message[at + 1 :],
            message[:at] + bytes([message[at] ^ (1 << rng.randrange(8))]) + message[at + 1 :],
        ]
    )


def _one_mangled(kind: int, seed: int, codec: AvroCodec | JsonCodec) -> None:
    """From bytes to the history: messages that repeat, come in any order and are cut otherwise, and one of
    them is not what was written."""
    rng = Random(f"mangled {kind} {seed}")
    side = 6 if kind == 0 else 3
    updates = history(rng, kind, side, 6)
    said = [with_digests(p, updates, columns=True) for p in statements(rng, updates, kind, side, 2)]
    carried: list[bytes] = []
    for message in [*said, *batches(rng, updates), *batches(rng, updates)]:
        carried += codec.encode(as_columns(message))
    rng.shuffle(carried)
    i = rng.randrange(len(carried))
    bad = [*carried[:i], _mangled(rng, carried[i]), *carried[i + 1 :]]
    errors: list[Any] = []
    recovery = ColumnRecovery(SCHEMA, require_digests=True)
    released: list[Any] = []
    for first in range(0, len(bad), 3):
        for message in codec.decode(bad[first : first + 3], None, errors):
            try:
                out = recovery.push(message)
            except (Contradiction, InvalidMessage) as e:
                errors.append(e)
                out = recovery.drain()
            for rows, _ in out:
                released += [(d[0], t, n) for d, t, n in rows.rows()]
    assert len(released) == len(set(released)) and set(released) <= set(updates)
    assert set(released) == {u for u in updates if not after(recovery.frontier, u[1])}
    assert recovery.frontier == [] or errors or recovery.stalls()


@pytest.mark.parametrize("kind", [0, 2])
@pytest.mark.parametrize("form", [AvroCodec, JsonCodec])
def test_any_single_message_that_is_mangled(kind: int, form: type[AvroCodec | JsonCodec]) -> None:
    codec = form(SCHEMA, kind, digests=True)
    for seed in range(60):
        _one_mangled(kind, seed, codec)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", [0, 2, 3])
@pytest.mark.parametrize("form", [AvroCodec, JsonCodec])
def test_any_single_message_that_is_mangled_long(kind: int, form: type[AvroCodec | JsonCodec]) -> None:
    codec, first = form(SCHEMA, kind, digests=True), Random().randrange(2**32)
    for seed in range(first, first + 3000):
        _one_mangled(kind, seed, codec)


def test_digests_of_overlapping_statements_agree() -> None:
    updates = [("a", 3, 1), ("b", 4, 1), ("c", 4, 2)]
    said = [
        with_digests(Progress(lower, upper, count(updates, lower, upper)), updates)
        for lower, upper in (([0], [4]), ([2], [5]), ([4], []), ([0], []))
    ]
    for order in itertools.permutations([*said, Updates(updates[:2]), Updates(updates[1:])]):
        assert sorted(u for out, _ in recover(order) for u in out) == updates


def test_digests_can_be_required() -> None:
    recovery = Recovery(require_digests=True)
    with pytest.raises(InvalidMessage, match="without a digest"):
        recovery.push(Progress([0], [5]))
    assert recovery.push(sealed(Progress([0], [5]), [])) == [([], [5])]


def test_the_seal_does_not_depend_on_order() -> None:
    one = sealed(Progress([(0, 1), (1, 0)], [], [((1, 1), 2), ((2, 2), 3)]), [7, 8])
    other = sealed(Progress([(1, 0), (0, 1)], [], [((2, 2), 3), ((1, 1), 2)]), [8, 7])
    assert one.seal == other.seal == seal_of(other)
