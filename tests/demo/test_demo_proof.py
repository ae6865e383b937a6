"""The demo's proof catches what it must catch: each of its promises, broken on purpose."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from tidemill.cli.demo.proof import (
    CUT,
    AuctionLot,
    Cut,
    DemoFacts,
    FollowedBids,
    Lots,
    Violation,
    cut_of,
    followed_of,
    lots_of,
    must_be_same,
    must_follow,
    must_hold,
    must_match,
)
from tidemill.sources.contract import SourcePiece
from tidemill.sources.generators.auction import AuctionReader


def house(events: int, time: int = 1000) -> tuple[Cut, Lots | None]:
    """The auction house after so many events, counted from the generator's own rows."""
    reader = AuctionReader(0, 0, 50_000)
    rows: dict[int, list[dict[str, int]]] = {output: [] for output in range(5)}
    for batch in reader.read(SourcePiece(None, 0, events)) if events else []:
        rows[batch.output] += batch.rows.to_pylist()
    names = ("organizations", "users", "accounts", "auctions", "bids")
    facts = {n: ids([r["id"] for r in rows[i]]) for i, n in enumerate(names)}
    amount = sum(row["amount"] for row in rows[4])
    facts["bids"] = facts["bids"]._replace(amount=amount)
    facts["progress"] = DemoFacts(1, events, events**2, 0, 0)
    view = Lots(time, (), len(rows[3]), len(rows[4]), amount) if rows[3] else None
    return Cut(time, {n: f for n, f in facts.items() if f.rows}), view


def ids(found: list[int]) -> DemoFacts:
    return DemoFacts(len(found), max(found, default=0), sum(i * i for i in found), 0, 0)


@pytest.mark.parametrize("events", [0, 1, 2, 10, 11, 12, 100, 1234])
def test_the_generators_own_rows_hold(events: int) -> None:
    must_hold(*house(events))


def broken(cut: Cut, name: str, **changed: int) -> Cut:
    return replace(cut, facts=cut.facts | {name: cut.of(name)._replace(**changed)})


def test_what_is_lost_doubled_or_torn_is_found() -> None:
    cut, lots = house(100)
    assert lots is not None
    bids = cut.of("bids")
    planted: list[tuple[Cut, Lots | None]] = [
        (broken(cut, "bids", rows=bids.rows - 1), lots),
        (broken(cut, "bids", rows=bids.rows + 1), lots),
        # One bid twice, and another not at all: the number and the last are as they should be.
        (broken(cut, "bids", squares=bids.squares + 7**2 - 8**2), lots),
        # A tick is visible in one table, and not yet in another.
        (broken(cut, "auctions", rows=cut.of("auctions").rows - 1), lots),
        (broken(cut, "progress", last=101), lots),
        (broken(cut, "users", rows=0, last=0, squares=0), lots),
        # A bid without an auction, or an auction without a seller, is not in the view.
        (cut, replace(lots, bids=bids.rows - 1)),
        (cut, replace(lots, rows=lots.rows - 1)),
        (cut, replace(lots, amount=bids.amount + 1)),
        (cut, None),
        # Two reads of one transaction at two times.
        (cut, replace(lots, time=999)),
    ]
    must_hold(cut, lots)
    for wrong in planted:
        with pytest.raises(Violation, match="at 1000"):
            must_hold(*wrong)


def test_neither_time_nor_the_source_goes_back() -> None:
    before, _ = house(100, time=1000)
    must_follow(before, house(100, time=1000)[0])
    must_follow(before, house(101, time=1001)[0])
    for after in (house(100, time=999), house(99, time=1001)):
        with pytest.raises(Violation, match="after a read at 1000 with 100 events"):
            must_follow(before, after[0])


def test_a_past_that_changed_is_found() -> None:
    cut, lots = house(100)
    assert lots is not None
    must_be_same(cut, house(100)[0])
    must_be_same(lots, house(100)[1])
    for then, again in (
        (cut, broken(cut, "bids", checksum=1)),
        (cut, house(100, time=1001)[0]),
        (lots, replace(lots, amount=1)),
        (lots, None),
    ):
        with pytest.raises(Violation, match="the past changed"):
            must_be_same(then, again)


def test_answers_are_read() -> None:
    row = ["1000", "bids", "2", "2", "5", "70", "11"]
    assert cut_of([row, ["1000", "progress", "1", "4", "16", "0", "5"]]) == Cut(
        1000, {"bids": DemoFacts(2, 2, 5, 70, 11), "progress": DemoFacts(1, 4, 16, 0, 5)}
    )
    with pytest.raises(Violation, match="times"):
        cut_of([row, ["1001", *row[1:]]])
    assert CUT.count("UNION ALL") == 5
    ends = "1970-01-01 00:00:07.5+00"
    assert lots_of([]) is None
    assert lots_of(
        [
            ["1000", "Vase", "Ada", "2", "50", ends, "1", "2", "2", "70"],
            ["1000", "Lamp", "Ivo", "0", None, ends, "2", "2", "2", "70"],
        ]
    ) == Lots(
        1000, (AuctionLot("Vase", "Ada", 2, 50, 7.5, 1), AuctionLot("Lamp", "Ivo", 0, None, 7.5, 2)), 2, 2, 70
    )


BIDS = [(1, 1, 50), (2, 1, 70), (3, 4, 20)]


def subscribed(*bids: tuple[int, int, int]) -> FollowedBids:
    schema = {"id": pl.Int64, "auction_id": pl.Int64, "amount": pl.Int32}
    return followed_of(pl.DataFrame(list(bids), schema, orient="row"), 1000)


def test_what_the_subscription_holds() -> None:
    held = subscribed(*BIDS)
    checks = sum((i * 7919 + auction * 104729 + amount) % 1000003 for i, auction, amount in BIDS)
    assert held.bids == DemoFacts(3, 3, 14, 140, checks)
    assert held.by_auction == {1: (2, 70), 4: (1, 20)}
    assert subscribed().bids == DemoFacts(0, 0, 0, 0, 0)
    lot = AuctionLot("Vase", "Ada", 1, 50, 7.5, 1)
    assert held.now(lot) == lot._replace(bids=2, highest=70)
    assert held.now(lot._replace(bids=3, highest=90)).bids == 3, "the view was read later"
    assert held.now(lot._replace(id=9)) == lot._replace(id=9)


def test_a_subscription_that_differs_is_found() -> None:
    held = subscribed(*BIDS)
    must_match(held, Cut(1000, {"bids": held.bids}))
    must_match(subscribed(), Cut(1000, {}))
    for wrong in (
        Cut(1001, {"bids": held.bids}),
        Cut(1000, {"bids": held.bids._replace(amount=1)}),
        Cut(1000, {"bids": subscribed(*BIDS[:2], (3, 4, 21)).bids}),
        Cut(1000, {}),
    ):
        with pytest.raises(Violation, match="at 1000 the subscription had"):
            must_match(held, wrong)
