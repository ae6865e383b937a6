"""The demo's proof catches what it must catch: each of its promises, broken on purpose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from demo_proof import CUT, Cut, Facts, Violation, cut_of, must_be_same, must_follow, must_hold
from tidemill.sources.contract import Piece
from tidemill.sources.generators.auction import AuctionReader


def house(events: int, time: int = 1000) -> Cut:
    """The auction house after so many events, counted from the generator's own rows."""
    reader = AuctionReader(0, 0, 50_000)
    rows: dict[int, list[dict[str, int]]] = {output: [] for output in range(5)}
    for batch in reader.read(Piece(None, 0, events)) if events else []:
        rows[batch.output] += batch.rows.to_pylist()
    names = ("organizations", "users", "accounts", "auctions", "bids")
    facts = {n: ids([r["id"] for r in rows[i]]) for i, n in enumerate(names)}
    amount = sum(row["amount"] for row in rows[4])
    facts["bids"] = facts["bids"]._replace(amount=amount)
    facts["lots"] = facts["auctions"]._replace(bids=len(rows[4]), amount=amount)
    facts["progress"] = Facts(1, events, events**2, 0, 0, 0)
    return Cut(time, {n: f for n, f in facts.items() if f.rows})


def ids(found: list[int]) -> Facts:
    return Facts(len(found), max(found, default=0), sum(i * i for i in found), 0, 0, 0)


@pytest.mark.parametrize("events", [0, 1, 2, 10, 11, 12, 100, 1234])
def test_the_generators_own_rows_hold(events: int) -> None:
    must_hold(house(events))


def broken(cut: Cut, name: str, **changed: int) -> Cut:
    return replace(cut, facts=cut.facts | {name: cut.of(name)._replace(**changed)})


def test_what_is_lost_doubled_or_torn_is_found() -> None:
    cut = house(100)
    bids = cut.of("bids")
    planted = [
        broken(cut, "bids", rows=bids.rows - 1),
        broken(cut, "bids", rows=bids.rows + 1),
        # One bid twice, and another not at all: the number and the last are as they should be.
        broken(cut, "bids", squares=bids.squares + 7**2 - 8**2),
        # A tick is visible in one table, and not yet in another.
        broken(cut, "auctions", rows=cut.of("auctions").rows - 1),
        broken(cut, "progress", last=101),
        broken(cut, "users", rows=0, last=0, squares=0),
        # A bid without an auction, or an auction without a seller, is not in the view.
        broken(cut, "lots", bids=bids.rows - 1),
        broken(cut, "lots", rows=cut.of("lots").rows - 1),
        broken(cut, "lots", amount=bids.amount + 1),
    ]
    must_hold(cut)
    for wrong in planted:
        with pytest.raises(Violation, match="at 1000"):
            must_hold(wrong)


def test_neither_time_nor_the_source_goes_back() -> None:
    before = house(100, time=1000)
    must_follow(before, house(100, time=1000))
    must_follow(before, house(101, time=1001))
    for after in (house(100, time=999), house(99, time=1001)):
        with pytest.raises(Violation, match="after a read at 1000 with 100 events"):
            must_follow(before, after)


def test_a_past_that_changed_is_found_and_named() -> None:
    then = house(100)
    must_be_same(then, house(100))
    with pytest.raises(Violation, match="the past changed: bids at 1000"):
        must_be_same(then, broken(then, "bids", checksum=1))
    with pytest.raises(Violation, match="the past changed: the time at 1000"):
        must_be_same(then, house(100, time=1001))


def test_an_answer_is_read() -> None:
    row = ["1000", "bids", "2", "2", "5", "3", "70", "11"]
    assert cut_of([row, ["1000", "progress", "1", "4", "16", "0", "0", "5"]]) == Cut(
        1000, {"bids": Facts(2, 2, 5, 3, 70, 11), "progress": Facts(1, 4, 16, 0, 0, 5)}
    )
    with pytest.raises(Violation, match="times"):
        cut_of([row, ["1001", *row[1:]]])
    assert CUT.count("UNION ALL") == 6
