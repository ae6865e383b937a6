"""Recovery against its definition, at every prefix of every stream: sound, prompt, each update once,
bounded."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from cdcv2_oracle import Oracle, after, at_or_before, batches, count, history, lowest, statements, stream
from hypothesis import given, settings
from hypothesis import strategies as st

from support.clock import ManualClock
from tidemill.cdcv2 import (
    Contradiction,
    InvalidMessage,
    Message,
    Progress,
    Recovery,
    Stalled,
    Updates,
    Waits,
    recover,
)
from tidemill.cdcv2.tally import Tally
from tidemill.cdcv2.times import Time
from tidemill.errors import LimitExceeded

SIDES = {0: 7, 2: 4, 3: 3}


def follow(messages: Sequence[Message], kind: int, side: int, start: tuple[Time, ...] | None = None) -> None:
    """Push one message after another and compare with the oracle after each."""
    oracle = Oracle(kind, side, start)
    recovery = Recovery(start)
    released: list[Any] = []
    previous: list[Time] = list(start) if start else [0 if kind == 0 else (0,) * kind]
    for message in messages:
        for updates, frontier in recovery.push(message):
            pairs = itertools.pairwise(updates)
            assert not any(at_or_before(b, a) for (_, a, _), (_, b, _) in pairs if a != b)
            released += updates
            assert all(after(previous, t) for t in frontier), "the frontier went back"
            previous = frontier
        oracle.take(message)
        expected = oracle.frontier()
        assert tuple(recovery.frontier) == expected
        assert len(released) == len(set(released))
        assert set(released) == oracle.released(expected)
        updates_kept, statements_kept = oracle.must_keep(expected)
        assert recovery.stashed == updates_kept
        assert recovery.pending_statements <= statements_kept
        # Something waits exactly when something is kept.
        assert bool(recovery.stalls()) == bool(recovery.stashed or recovery.pending_statements)
    assert start is not None or recovery.frontier == []
    if not recovery.frontier:
        assert recovery.stashed == recovery.pending_statements == 0


@pytest.mark.parametrize("kind", [0, 2, 3])
def test_any_stream_at_every_prefix(kind: int) -> None:
    @settings(max_examples=100)
    @given(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 8), st.integers(0, 4))
    def check(seed: int, writers: int, size: int, cuts: int) -> None:
        messages = stream(Random(seed), kind, SIDES[kind], writers=writers, size=size, cuts=cuts)
        follow(messages, kind, SIDES[kind])

    check()


def _rounds(kind: int, rounds: int, seed: int) -> None:
    for n in range(rounds):
        rng = Random(f"{seed} {kind} {n}")
        side = SIDES[kind] - (n % 2)
        follow(stream(rng, kind, side, writers=1 + n % 2, size=rng.randint(0, 8)), kind, side)


@pytest.mark.parametrize(("kind", "rounds"), [(0, 1500), (2, 500), (3, 200)])
def test_random_streams(kind: int, rounds: int) -> None:
    _rounds(kind, rounds, 1)


@pytest.mark.chaos
@pytest.mark.parametrize(("kind", "rounds"), [(0, 50_000), (2, 35_000), (3, 15_000)])
def test_very_many_random_streams(kind: int, rounds: int) -> None:
    _rounds(kind, rounds, Random().randrange(2**32))


@pytest.mark.parametrize("kind", [0, 2, 3])
def test_all_orders_of_small_histories(kind: int) -> None:
    _all_orders(kind, 7)


@pytest.mark.chaos
@pytest.mark.parametrize("kind", [0, 2, 3])
@pytest.mark.parametrize("seed", range(1, 20))
def test_all_orders_of_more_small_histories(kind: int, seed: int) -> None:
    _all_orders(kind, 7, seed)


def _all_orders(kind: int, size: int, seed: int = 0) -> None:
    rng = Random(seed)
    side = 3 if kind < 3 else 2
    updates = history(rng, kind, side, 4)
    said = statements(rng, updates, kind, side, 2)
    carried: list[Message] = [*said, *batches(rng, updates)]
    carried += carried[: max(0, size - len(carried))]
    messages = carried[:size]
    # What is known depends on which messages have come, not on their order: so there are few answers.
    known: list[tuple[tuple[Any, ...], int]] = []
    for some in range(1 << len(messages)):
        oracle = Oracle(kind, side)
        for i, message in enumerate(messages):
            if some >> i & 1:
                oracle.take(message)
        frontier = oracle.frontier()
        known.append((frontier, len(oracle.released(frontier))))
    everything = set(updates)
    for order in itertools.permutations(range(len(messages))):
        recovery = Recovery()
        found: list[Any] = []
        some = 0
        for i in order:
            for released, _ in recovery.push(messages[i]):
                found += released
            some |= 1 << i
            assert (tuple(recovery.frontier), len(found)) == known[some]
        # Each once, and nothing else: so at every prefix, by their number, those of the oracle.
        assert len(found) == len(set(found)) and everything >= set(found)


@pytest.mark.parametrize("kind", [0, 2, 3])
def test_resuming_equals_the_rest_of_the_full_run(kind: int) -> None:
    @settings(max_examples=60)
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        rng = Random(seed)
        messages = stream(rng, kind, SIDES[kind])
        times = sorted({u[1] for m in messages if isinstance(m, Updates) for u in m.updates}, key=str)
        start = lowest(rng.sample(times, min(2, len(times)))) if times else (0 if kind == 0 else (0,) * kind,)
        follow(messages, kind, SIDES[kind], start)
        full = {u for updates, _ in recover(messages) for u in updates}
        rest = [u for updates, _ in recover(messages, resume_from=start) for u in updates]
        assert len(rest) == len(set(rest))
        assert set(rest) == {u for u in full if after(start, u[1])}

    check()


# -- what the well-known implementation gets wrong
# ------------------------------------------------------------


def test_a_repetition_within_one_message_does_not_close_its_time_early() -> None:
    recovery = Recovery()
    assert recovery.push(Progress([0], [5], [(3, 2)])) == [([], [3])]
    assert recovery.push(Updates([("a", 3, 1), ("a", 3, 1)])) == []
    assert recovery.push(Updates([("b", 3, 1)])) == [([("a", 3, 1), ("b", 3, 1)], [5])]


def test_statements_that_cover_only_together_do_not_stall() -> None:
    """Each one's lower is before one half of the frontier only; requiring it of the whole stalls for ever."""
    said = [
        Progress([(0, 0)], [(0, 1), (1, 0)]),
        Progress([(0, 1)], [(0, 2), (1, 1)]),
        Progress([(1, 0)], [(1, 1), (2, 0)]),
        Progress([(0, 2)], [(1, 2)]),
        Progress([(1, 1), (2, 0)], []),
    ]
    for order in itertools.permutations(said):
        assert [f for _, f in recover(order)][-1] == []


def test_a_statement_that_needs_only_one_element_of_the_frontier() -> None:
    recovery = Recovery()
    recovery.push(Progress([(0, 0)], [(0, 5), (5, 0)]))
    assert recovery.push(Progress([(0, 5)], [(5, 5)])) == [([], [(5, 0)])]
    assert recovery.push(Progress([(5, 0)], [])) == [([], [])]


def test_repeated_statements_are_kept_once() -> None:
    recovery = Recovery()
    pairs = Recovery()
    for _ in range(50):
        recovery.push(Progress([7], [9], [(8, 1)]))
        pairs.push(Progress([(7, 7)], [(9, 9)], [((8, 8), 1)]))
    assert recovery.pending_statements == 1
    assert pairs.pending_statements == 1


def test_it_can_start_in_the_middle() -> None:
    messages = [Updates([("old", 3, 1), ("new", 7, 1)]), Progress([5], [9], [(7, 1)])]
    recovery = Recovery(resume_from=[5])
    assert [r for m in messages for r in recovery.push(m)] == [([("new", 7, 1)], [9])]
    # A statement that begins before the snapshot serves as well.
    assert list(recover([messages[0], Progress([2], [9], [(3, 1), (7, 1)])], resume_from=[5])) == [
        ([("new", 7, 1)], [9])
    ]


# -- the rest of the face
# --------------------------------------------------------------------------------------


def test_progress_alone_moves_the_frontier() -> None:
    assert list(recover([Progress([0], [4]), Progress([4], [9]), Progress([9], [])])) == [
        ([], [4]),
        ([], [9]),
        ([], []),
    ]


def test_released_in_the_order_of_times() -> None:
    updates = [("x", 5, 1), ("y", 2, 1), ("z", 3, 1)]
    [(released, _)] = recover([Updates(updates), Progress([0], [], count(updates, [0], []))])
    assert [t for _, t, _ in released] == [2, 3, 5]


def test_stalls_say_what_waits_for_what_and_how_long() -> None:
    clock = ManualClock()
    recovery = Recovery(clock=clock)
    assert recovery.stalls() == []
    recovery.push(Progress([4], [6]))
    clock.advance(1500)
    [gap] = recovery.stalls()
    assert (gap.time, gap.waits, gap.nearest, gap.seconds) == (0, Waits.GAP, (4,), 1.5)
    assert gap.describe() == "time 0 waits for 1.5 s for a statement, GAP between it and [4]"
    recovery.push(Progress([0], [4], [(2, 3)]))
    recovery.push(Updates([("a", 2, 1)]))
    clock.advance(2000)
    [missing] = recovery.stalls()
    assert (missing.time, missing.waits, missing.have, missing.want) == (2, Waits.MISSING, 1, 3)
    assert missing.describe() == "time 2 waits for 2.0 s, MISSING 2 of 3 updates"
    recovery.push(Updates([("b", 2, 1), ("c", 2, 1)]))
    assert recovery.frontier == [6] and recovery.stalls() == []
    recovery.push(Updates([("d", 8, 1)]))
    [tail] = recovery.stalls()
    assert (tail.waits, tail.nearest) == (Waits.GAP, ())


def test_a_bounded_input_that_ends_in_a_stall_is_an_error() -> None:
    released: list[Any] = []
    with pytest.raises(Stalled, match="MISSING 1 of 2 updates") as caught:
        for updates, _ in recover(
            [Progress([0], [9], [(1, 1), (4, 2)]), Updates([("a", 1, 1), ("b", 4, 1)])]
        ):
            released += updates
    assert released == [("a", 1, 1)]
    assert caught.value.stalls[0].time == 4


def test_nan_is_one_value() -> None:
    row = (float("nan"), 1)
    again = (float("nan"), 1)
    [(updates, _)] = recover([Updates([(row, 0, 1)]), Updates([(again, 0, 1)]), Progress([0], [], [(0, 1)])])
    assert len(updates) == 1
    first: Any = updates[0][0]
    assert math.isnan(first[0])


@pytest.mark.parametrize(
    "message",
    [
        Updates([("a", -1, 1)]),
        Updates([("a", 2**63, 1)]),
        Updates([("a", True, 1)]),
        Updates([("a", (1, -1), 1)]),
        Updates([("a", (), 1)]),
        Updates([("a", (1,) * 17, 1)]),
        Updates([("a", 1, 1), ("b", (1, 1), 1)]),
        Updates([("a", 1.0, 1)]),  # pyright: ignore[reportArgumentType]
        Updates([("a", 1, True)]),
        Updates([("a", 1, 2**63)]),
        Updates([("a", 1, 1.0)]),  # pyright: ignore[reportArgumentType]
        Updates([([], 1, 1)]),
        Updates([("a", 1)]),  # pyright: ignore[reportArgumentType]
        Progress([0], [2**63]),
        Progress([0], list(range(1001))),
        Progress([0], [9], [(1, -1)]),
        Progress([0], [9], [(1, True)]),
        Progress([0], [9], [((1, 1), 1)]),
        Progress([0], [9], [(1, 1)], contents=[5]),
        Progress([0], [9], [(1, 1)], contents=[5, 6], seal=0),
    ],
    ids=lambda m: str(m)[:80],
)
def test_what_is_no_statement_is_refused_whole(message: Message) -> None:
    recovery = Recovery()
    recovery.push(Progress([0], [1]))
    with pytest.raises(InvalidMessage, match="message 1"):
        recovery.push(message)
    assert recovery.stashed == 0 and recovery.frontier == [1] and not recovery.stalls()


def test_a_message_that_is_refused_says_nothing_of_the_kind_of_times() -> None:
    recovery = Recovery()
    no_diff: Any = 1.5
    refused = [
        Progress([0], [2**63]),
        Updates([("a", 1, 1), ("b", (1, 1), 1)]),
        Updates([("a", 1, no_diff)]),
    ]
    for message in refused:
        with pytest.raises(InvalidMessage):
            recovery.push(message)
    assert recovery.push(Progress([(0, 0)], [])) == [([], [])]


def test_times_up_to_the_last() -> None:
    last = 2**63 - 1
    assert list(recover([Updates([("a", last, 1)]), Progress([0], [], [(last, 1)])])) == [
        ([("a", last, 1)], [])
    ]


@pytest.mark.parametrize(("kind", "rounds"), [(0, 300), (2, 100)])
def test_spilling_changes_nothing(kind: int, rounds: int) -> None:
    for n in range(rounds):
        messages = stream(Random(f"spill {kind} {n}"), kind, SIDES[kind], size=12)
        plain, spilling = Recovery(), Recovery(max_stashed=6)
        for message in messages:
            assert spilling.push(message) == plain.push(message)
            assert spilling.stashed >= plain.stashed
        assert spilling.frontier == [] and spilling.stashed == 0


def test_a_contradiction_with_an_update_on_disk() -> None:
    recovery = Recovery(max_stashed=3)
    recovery.push(Updates([("a", 1, 1), ("b", 7, 1), ("c", 8, 1)], "first"))
    recovery.push(Updates([("d", 8, 1)]))
    recovery.push(Updates([("b", 7, 2)], "second"))
    assert recovery.stashed == 5
    with pytest.raises(Contradiction, match="two different diffs") as caught:
        recovery.push(Progress([0], [9], [(1, 1), (7, 1), (8, 2)]))
    assert "first" in caught.value.first and "second" in str(caught.value.second)
    assert recovery.drain() == [([("a", 1, 1)], [7])]


def test_limits_have_names() -> None:
    recovery = Recovery(max_stashed=2, max_spilled=2)
    with pytest.raises(LimitExceeded, match="more than 2 stashed updates on disk"):
        for n in range(9):
            recovery.push(Updates([("a", n, 1)]))
    with pytest.raises(LimitExceeded, match="more than 2 stashed updates at one time"):
        Recovery(max_stashed=2).push(Updates([(n, 5, 1) for n in "abc"]))
    recovery = Recovery(max_statements=3)
    with pytest.raises(LimitExceeded, match="more than 3 pending statements"):
        for n in range(2, 20, 2):
            recovery.push(Progress([n], [n + 1]))
    recovery = Recovery(max_times=3)
    with pytest.raises(LimitExceeded, match="more than 3 unreported times"):
        for n in range(9):
            recovery.push(Updates([("a", n, 1)]))


@pytest.mark.parametrize("kind", [0, 2])
def test_a_tally_goes_on_where_it_was_kept(kind: int) -> None:
    """Written down as JSON after every message and read into a new one, it does what it would have done."""

    def fresh() -> Tally:
        return Tally(None, content=lambda _: 0)

    for n in range(60):
        messages = stream(Random(f"kept {kind} {n}"), kind, SIDES[kind])
        one, kept = fresh(), fresh()
        seen: set[Any] = set()
        for i, message in enumerate(messages):
            for tally in (one, kept):
                if isinstance(message, Updates):
                    updates = {(d, t) for d, t, _ in message.updates} - seen
                    times = list({t for _, t in updates})
                    tally.agree(times, "x")
                    wanted = list(itertools.compress(times, tally.news(times)))
                    tally.observe([(t, sum(u[1] == t for u in updates)) for t in wanted], f"message {i}")
                else:
                    tally.declare(message, f"message {i}")
            if isinstance(message, Updates):
                seen |= {(d, t) for d, t, _ in message.updates}
            assert one.advance() == kept.advance()
            state = json.loads(json.dumps(kept.dump()))
            kept = fresh()
            kept.load(state)
            assert kept.dump() == one.dump()
            assert (one.reported, one.progress) == (kept.reported, kept.progress)


def test_a_kept_contradiction() -> None:
    one, other = Tally(None, content=lambda _: 0), Tally(None, content=lambda _: 0)
    one.agree([3], "x")
    one.poison(3, "of some kind", "this", "that")
    other.load(one.dump())
    assert other.poisoned(3) and other.news([3, 4]) == [False, True]
    [stall] = [s for s in other.stalls() if s.time == 3] or [None]
    assert stall is None or stall.waits is Waits.CONTRADICTION
