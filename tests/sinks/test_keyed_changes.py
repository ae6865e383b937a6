"""Changes of keys against a model, and the table of keys against a set."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import LimitExceeded
from tidemill.sinks import known_keys
from tidemill.sinks.keyed_changes import KeyedChanges, NotOne
from tidemill.sinks.known_keys import KnownKeys, key_hashes

Update = tuple[int, str, int, int]


def table(updates: list[Update]) -> pa.Table:
    k, v, t, d = ([u[i] for u in updates] for i in range(4))
    return pa.table(
        {
            "k": pa.array(k, pa.int64()),
            "v": pa.array(v, pa.string()),
            "mz_timestamp": pa.array(t, pa.int64()),
            "mz_diff": pa.array(d, pa.int64()),
        }
    )


def keyed() -> KeyedChanges:
    return KeyedChanges(lambda rows: rows.column("k").cast(pa.string()).combine_chunks().cast(pa.binary()))


# What each key becomes at each step; None: it goes, or is not there.
steps = st.lists(
    st.dictionaries(st.integers(0, 5), st.none() | st.sampled_from("abc"), max_size=4), max_size=12
)


@settings(deadline=None)
@given(steps, st.lists(st.booleans(), min_size=12, max_size=12), st.randoms(use_true_random=False))
def test_changes_are_those_of_the_model(
    states: list[dict[int, str | None]], cuts: list[bool], rng: object
) -> None:
    changes, now, pending, at_cut = (
        keyed(),
        dict[int, str](),
        list[Update](),
        list[tuple[int, int, object, object]](),
    )
    found: list[tuple[int, int, object, object]] = []

    def flush() -> None:
        rows = table(pending)
        got, keys = changes.of(rows, initial=False)
        values = rows.column("v").to_pylist()
        for b, a, t, key in zip(got.before, got.after, got.times, keys.to_pylist(), strict=True):
            old, new = (None if i < 0 else values[i] for i in (int(b), int(a)))
            found.append((int(t), int(key), old, new))
        assert got.times.tolist() == sorted(got.times.tolist())
        pending.clear()

    for t, (state, cut) in enumerate(zip(states, cuts, strict=False)):
        of_time: list[Update] = []
        for k, v in state.items():
            before = now.get(k)
            if before == v:
                continue
            if before is not None:
                of_time.append((k, before, t, -1))
            if v is not None:
                of_time.append((k, v, t, 1))
            now.pop(k, None)
            if v is not None:
                now[k] = v
            at_cut.append((t, k, before, v))
        rng.shuffle(of_time)  # type: ignore[attr-defined]
        pending += of_time
        if cut:
            flush()
    flush()
    assert sorted(found, key=lambda c: c[:2]) == sorted(at_cut, key=lambda c: c[:2])


@pytest.mark.parametrize(
    ("before", "updates", "at", "k"),
    [
        ([], [(1, "a", 5, 1), (1, "b", 5, 1)], 5, 1),
        ([], [(1, "a", 5, 2)], 5, 1),
        ([(1, "a", 4, 1)], [(2, "b", 5, 1), (1, "b", 7, 1)], 7, 1),
        ([], [(1, "a", 5, 1), (2, "b", 6, 1), (1, "c", 8, 1), (2, "d", 9, 1)], 8, 1),
        ([(1, "a", 4, 1)], [(1, "a", 5, -1), (1, "b", 5, 1), (1, "c", 5, 1)], 5, 1),
    ],
)
def test_two_rows_of_a_key_are_found(before: list[Update], updates: list[Update], at: int, k: int) -> None:
    changes = keyed()
    changes.recall(table(before))
    rows = table(updates)
    with pytest.raises(NotOne) as caught:
        changes.of(rows, initial=False)
    assert (caught.value.at, rows.column("k")[caught.value.row].as_py()) == (at, k)
    # Nothing was taken: what is before that time still goes.
    earlier = table([u for u in updates if u[2] < at])
    got, _ = changes.of(earlier, initial=False)
    assert len(got.times) == earlier.num_rows


def test_two_rows_in_two_pieces_of_a_snapshot() -> None:
    changes = keyed()
    changes.of(table([(1, "a", 4, 1), (2, "a", 4, 1)]), initial=True)
    with pytest.raises(NotOne):
        changes.of(table([(3, "a", 4, 1), (2, "b", 4, 1)]), initial=True)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 3000), max_size=900)), max_size=8))
def test_known_keys_are_a_set(steps: list[tuple[bool, set[int]]]) -> None:
    known, model = KnownKeys(), set[int]()
    for add, numbers in steps:
        mine = sorted(numbers)
        hashes = key_hashes(pa.array([b"%d" % n for n in mine], pa.binary()))
        slots = known.find(hashes)
        assert (slots >= 0).tolist() == [n in model for n in mine]
        if add:
            known.add(hashes[slots < 0])
            model |= numbers
        else:
            known.remove(slots[slots >= 0])
            model -= numbers
        assert len(known) == len(model)


def test_the_number_of_keys_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "MAX_KEYS", 10)
    known = KnownKeys()
    hashes = key_hashes(pa.array([b"%d" % n for n in range(11)], pa.binary()))
    with pytest.raises(LimitExceeded, match="more than 10 keys"):
        known.add(hashes)
    known.add(hashes[:10])
    assert (known.find(hashes) >= 0).tolist() == [True] * 10 + [False]
    assert np.unique(known.find(hashes[:10])).size == 10
