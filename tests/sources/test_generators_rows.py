"""What users rely on in the generators' rows: pace, cardinality, keys, references, failures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import Internal
from tidemill.sources.contract import ReadLimits, SourcePiece, UpstreamError
from tidemill.sources.definition import open_source
from tidemill.sources.generators.auction import OUTPUTS
from tidemill.sources.generators.definition import normalise
from tidemill.sources.generators.load import MAX_BINDING_BYTES, EventPace
from tidemill.sources.generators.options import MAX_EVENTS
from tidemill.sources.offsets import Offsets

STARTED = 1_760_000_000_000


def tables(generator: str, lower: int, upper: int, **options: Any) -> dict[str, pa.Table]:
    """The rows of events, by output; options are named with underscores."""
    given = {name.replace("_", " "): value for name, value in options.items()}
    source = open_source(normalise(generator, given, STARTED))
    found: dict[str, list[pa.RecordBatch]] = {}
    for batch in source.reader().read(SourcePiece(None, lower, upper)):
        found.setdefault(source.outputs[batch.output].name, []).append(batch.rows)
    return {name: pa.Table.from_batches(batches) for name, batches in found.items()}


def ints(table: pa.Table, name: str) -> np.ndarray:
    column = table.column(name)
    return column.cast(pa.int64()).to_numpy()


@pytest.mark.parametrize(
    ("pace", "now", "due"),
    [
        (EventPace(1000, 1_000_000), 1000, 0),
        (EventPace(1000, 1_000_000), 1999, 0),
        (EventPace(1000, 1_000_000), 2000, 1),
        (EventPace(1000, 1_000_000), 4999, 3),
        (EventPace(1000, 1_000_000), 0, 0),
        (EventPace(1000, 1), 1001, 1000),
        (EventPace(1000, 1_500), 1002, 1),
        (EventPace(1000, 1_500), 1003, 2),
        (EventPace(1000, 1_000, batch=7), 1003, 21),
        (EventPace(1000, 1_000, batch=7, up_to=20), 1003, 20),
        (EventPace(1000, 1_000, at_once=5), 999, 0),
        (EventPace(1000, 1_000, at_once=5), 1000, 5),
        (EventPace(1000, 1_000, at_once=5), 1002, 7),
        (EventPace(1000, 1_000, at_once=5, up_to=3), 1002, 3),
        (EventPace(1000, 1_000, up_to=0), 9999, 0),
        (EventPace(0, 1, batch=10**8), 2**63 - 1, MAX_EVENTS),
    ],
)
def test_events_fall_due_by_the_clock(pace: EventPace, now: int, due: int) -> None:
    assert pace.due(now) == due


@given(
    st.builds(
        EventPace,
        st.integers(0, 10**13),
        st.integers(1, 10**9),
        batch=st.integers(1, 1000),
        at_once=st.integers(0, 1000),
        up_to=st.none() | st.integers(0, 10**6),
    ),
    st.lists(st.integers(0, 2**63 - 1), min_size=2),
)
def test_fewer_events_are_never_due_later(pace: EventPace, times: list[int]) -> None:
    dues = [pace.due(now) for now in sorted(times)]
    assert dues == sorted(dues) and dues[0] >= 0


def test_each_generator_has_its_pace() -> None:
    def due(generator: str, after: int, **options: Any) -> Offsets:
        given = {name.replace("_", " "): value for name, value in options.items()}
        return open_source(normalise(generator, given, STARTED)).frontier(STARTED + after)

    assert due("COUNTER", 2_500) == Offsets.at(2)
    assert due("COUNTER", 2_500, UP_TO=1) == Offsets.at(1)
    assert due("KEY VALUE", 2_500, KEYS=9, BATCH_SIZE=100) == Offsets.at(200)
    assert due("KEY VALUE", 2_500, KEYS=9, SNAPSHOT_ROUNDS=2) == Offsets.at(20)
    # Event 0, the fixed rows, at once; then ten a second.
    assert due("AUCTION", -1) == Offsets.at(0)
    assert due("AUCTION", 0) == Offsets.at(1)
    assert due("AUCTION", 2_500) == Offsets.at(26)


@pytest.mark.parametrize("cardinality", [1, 2, 1000, 65_536])
def test_a_bounded_counter_holds_the_latest_numbers(cardinality: int) -> None:
    rows = tables("COUNTER", 0, 70_000, MAX_CARDINALITY=cardinality)["counter"]
    counter, diff = ints(rows, "counter"), ints(rows, "mz_diff")
    copies = np.bincount(counter, weights=diff)
    assert np.flatnonzero(copies).tolist() == list(range(70_001 - cardinality, 70_001))
    assert set(copies.tolist()) == {0, 1}
    # Nothing is taken away before it was there, and there is never one too many.
    held = np.cumsum(diff)
    assert held.max() <= cardinality + 1 and held[-1] == cardinality


def test_a_counter_fails_where_it_was_told_to() -> None:
    def read(fail_at: int, lower: int, upper: int, transient: bool = False) -> list[int]:
        options = {"FAIL AT": fail_at, "FAIL TRANSIENT": transient}
        reader = open_source(normalise("COUNTER", options, STARTED)).reader()
        found: list[int] = []
        try:
            for batch in reader.read(SourcePiece(None, lower, upper)):
                found += batch.rows.column(0).to_pylist()
        except UpstreamError as error:
            assert error.transient is transient
            assert str(fail_at) in error.primary and error.sqlstate == "58000"
            return [*found, -1]
        return found

    assert read(5, 0, 5) == [1, 2, 3, 4, 5]
    assert read(5, 0, 6) == [1, 2, 3, 4, 5, -1]
    assert read(5, 5, 7, transient=True) == [-1]
    assert read(5, 6, 8) == [7, 8]
    assert len(read(70_000, 0, 80_000)) == 70_001
    assert read(0, 0, 1) == [-1]


def test_a_snapshot_goes_through_the_keys_in_order() -> None:
    rows = tables("KEY VALUE", 0, 5_000, KEYS=700, SNAPSHOT_ROUNDS=3)["key_value"]
    keys = ints(rows, "key")
    assert keys[:2100].tolist() == list(range(700)) * 3
    assert keys.min() >= 0 and keys.max() < 700
    assert keys[2100:2800].tolist() != list(range(700))
    # No two values alike: an update is always seen.
    assert len(set(rows.column("value").to_pylist())) == 5_000


def test_keys_are_spread_evenly() -> None:
    keys = ints(tables("KEY VALUE", 0, 100_000, KEYS=100)["key_value"], "key")
    counts = np.bincount(keys, minlength=100)
    # A thousand each; five standard deviations are some 160.
    assert counts.min() > 840 and counts.max() < 1160


def test_tombstones_are_as_many_as_asked_for() -> None:
    rows = tables("KEY VALUE", 0, 100_000, KEYS=100, SNAPSHOT_ROUNDS=10, TOMBSTONES="2.5%")["key_value"]
    deleted = rows.column("mz_tombstone").to_numpy()
    assert not deleted[:1000].any()
    assert 2_230 < deleted.sum() < 2_730
    empty = np.array([len(value) == 0 for value in rows.column("value").to_pylist()])
    assert (empty == deleted).all()
    assert ints(rows, "mz_offset").tolist() == list(range(100_000))


def test_seeds_differ() -> None:
    seen = {
        tables("KEY VALUE", 0, 50, KEYS=100, SEED=n)["key_value"].to_pylist().__repr__() for n in range(9)
    }
    assert len(seen) == 9


def test_auctions_and_bids_fit_together() -> None:
    found = tables("AUCTION", 0, 200_000)
    assert list(found) == [output.name for output in OUTPUTS]
    organizations, users, accounts, auctions, bids = found.values()
    for relation in found.values():
        assert ints(relation, "id").tolist() == list(range(1, relation.num_rows + 1))
    orgs = set(ints(organizations, "id").tolist())
    assert set(ints(users, "org_id").tolist()) == orgs == set(ints(accounts, "org_id").tolist())
    assert len(set(users.column("name").to_pylist())) == users.num_rows == 100
    people = set(ints(users, "id").tolist())
    assert set(ints(auctions, "seller").tolist()) == people == set(ints(bids, "buyer").tolist())
    assert (auctions.num_rows, bids.num_rows) == (20_000, 179_999)

    on = ints(bids, "auction_id") - 1
    # An auction that is there, opened before the bid and open still; by somebody else than the seller.
    opened = STARTED * 1000 + (10 * np.arange(20_000) + 1) * 100_000
    bid_time, end_time = ints(bids, "bid_time"), ints(auctions, "end_time")
    assert on.min() == 0 and on.max() < 20_000
    assert (opened[on] < bid_time).all() and (bid_time < end_time[on]).all()
    assert (ints(auctions, "seller")[on] != ints(bids, "buyer")).all()
    assert ((end_time - opened >= 20_000_000) & (end_time - opened < 30_000_000)).all()
    # Some nine bids each, and nearly every auction has one.
    assert np.count_nonzero(np.bincount(on, minlength=20_000)) > 19_900
    assert ints(bids, "amount").min() >= 10
    # The later bids on an auction are higher than the first, mostly.
    first = np.unique(on, return_index=True)[1]
    last = len(on) - 1 - np.unique(on[::-1], return_index=True)[1]
    amount = ints(bids, "amount")
    assert np.mean(amount[last] > amount[first]) > 0.9


def test_large_values_make_small_bindings() -> None:
    source = open_source(normalise("KEY VALUE", {"KEYS": 1, "VALUE SIZE": 2**20}, STARTED))
    cut = source.cut(Offsets.at(10), Offsets.at(10**6), ReadLimits())
    assert 0 < (cut[None] - 10) * 2**20 <= MAX_BINDING_BYTES
    counter = open_source(normalise("COUNTER", {}, STARTED))
    assert counter.cut(Offsets(), Offsets.at(10**7), ReadLimits()) == Offsets.at(ReadLimits().records)


def test_events_end_where_times_do() -> None:
    """An auction's end is a timestamp, whatever the clock says."""
    source = open_source(normalise("AUCTION", {}, STARTED))
    last = source.frontier(2**63 - 1)[None]
    rows = [b.rows for b in source.reader().read(SourcePiece(None, last - 20, last)) if b.output == 3]
    assert rows and all(end > 2**62 for batch in rows for end in ints(pa.table(batch), "end_time").tolist())


@pytest.mark.parametrize(
    "piece",
    [SourcePiece("p", 0, 1), SourcePiece(None, -1, 1), SourcePiece(None, 2, 1), SourcePiece(None, 0, 2**63)],
)
def test_a_piece_that_cannot_be_is_refused(piece: SourcePiece) -> None:
    for generator, options in (("COUNTER", {}), ("KEY VALUE", {"KEYS": 1}), ("AUCTION", {})):
        with pytest.raises(Internal):
            list(open_source(normalise(generator, options, STARTED)).reader().read(piece))
