"""What the demo asks of the auction house, and what must be true of every answer.

Used by `loops`; knows nothing of servers or screens. A `Cut` is what all five tables and the progress
relation hold at one time, `Lots` what the view over them shows. The rows of an event follow from its number
(docs/sql/create-source-load-generator.md), so the progress alone says how many auctions and bids there must
be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import polars as pl

SOURCE = "house"
TABLES = ("organizations", "users", "accounts", "auctions", "bids")
# An event every 50 ms: of ten, one opens an auction and nine are bids; an auction is open for 10 to 15 s.
TICK_INTERVAL = "50 ms"
ORGANIZATIONS, USERS = 10, 100

SCHEMA = f"""
CREATE SOURCE {SOURCE} FROM LOAD GENERATOR AUCTION (TICK INTERVAL '{TICK_INTERVAL}') FOR ALL TABLES;
CREATE VIEW lots AS
  SELECT a.id, a.item, u.name AS seller, a.end_time, count(b.id) AS bids, max(b.amount) AS highest,
    sum(b.amount) AS total
  FROM auctions AS a JOIN users AS u ON u.id = a.seller LEFT JOIN bids AS b ON b.auction_id = a.id
  GROUP BY a.id, a.item, u.name, a.end_time;
"""

# One row for each relation: how many rows, the highest id, the ids' squares, a sum, and a checksum over all
# rows. Of the progress relation: its offset as id.
CUT = f"""
SELECT mz_now() AS time, name, count(*) AS rows, max(id) AS last, sum(id * id) AS squares,
  sum(amount) AS amount, sum((id * 7919 + other * 104729 + amount) % 1000003) AS checksum
FROM (
  SELECT 'organizations' AS name, id, 0::bigint AS other, length(name)::bigint AS amount FROM organizations
  UNION ALL SELECT 'users', id, length(name), org_id FROM users
  UNION ALL SELECT 'accounts', id, org_id, balance FROM accounts
  UNION ALL SELECT 'auctions', id, length(item), seller FROM auctions
  UNION ALL SELECT 'bids', id, auction_id, amount FROM bids
  UNION ALL SELECT 'progress', "offset"::bigint, 0, 0 FROM {SOURCE}_progress
) AS everything
GROUP BY name"""

# The dearest auctions, first those that are open at a time (seconds since 1970); and in each row what all of
# the view comes to.
LOTS = """
SELECT mz_now() AS time, item, seller, bids, highest, end_time, id,
  count(*) OVER () AS all_lots, sum(bids) OVER () AS all_bids, sum(total) OVER () AS all_amount
FROM lots
ORDER BY end_time > to_timestamp({seconds}) DESC, highest DESC NULLS LAST, id
LIMIT {limit}"""

# What the demo subscribes to.
FOLLOWED = "bids"

STATUS = f"""
SELECT s.status, s.error, x.offset_known, x.offset_committed
FROM mz_internal.mz_source_statuses AS s JOIN mz_internal.mz_source_statistics AS x ON x.id = s.id
WHERE s.name = '{SOURCE}'"""


class Violation(Exception):
    """Something was seen that must never be."""


class DemoFacts(NamedTuple):
    """One relation at one time; what the numbers are, `CUT` says."""

    rows: int
    last: int
    squares: int
    amount: int
    checksum: int


NOTHING = DemoFacts(0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Cut:
    """All relations at one time, by their names. One without rows is not there."""

    time: int
    facts: dict[str, DemoFacts]

    @property
    def events(self) -> int:
        """How many events the source includes, as its progress relation says."""
        return self.of("progress").last

    def of(self, name: str) -> DemoFacts:
        return self.facts.get(name, NOTHING)


class AuctionLot(NamedTuple):
    """One auction; `ends` in seconds since 1970."""

    item: str
    seller: str
    bids: int
    highest: int | None
    ends: float
    id: int


@dataclass(frozen=True)
class Lots:
    """The view at one time: its first rows, and how many auctions, bids and how much money it has in all."""

    time: int
    shown: tuple[AuctionLot, ...]
    rows: int
    bids: int
    amount: int


def cut_of(rows: Sequence[Sequence[Any]]) -> Cut:
    """The answer to `CUT`."""
    facts = {str(name): DemoFacts(*(int(value or 0) for value in values)) for _, name, *values in rows}
    return Cut(_time(rows), facts)


def lots_of(rows: Sequence[Sequence[Any]]) -> Lots | None:
    """The result of `LOTS`; None if there is no auction yet."""
    if not rows:
        return None
    shown: list[AuctionLot] = []
    for _, item, seller, bids, highest, ends, lot, *_ in rows:
        until = datetime.fromisoformat(str(ends)).timestamp()
        shown.append(
            AuctionLot(str(item), str(seller), int(bids or 0), _maybe(highest), until, int(lot or 0))
        )
    return Lots(_time(rows), tuple(shown), *(int(value or 0) for value in rows[0][7:]))


@dataclass(frozen=True)
class FollowedBids:
    """The bids as the subscription holds them at a time; and of each auction how many and the highest."""

    time: int
    bids: DemoFacts
    by_auction: dict[int, tuple[int, int]]

    def now(self, lot: AuctionLot) -> AuctionLot:
        """A lot as of this time: the view was read a little earlier, and bids only become more."""
        bids, highest = self.by_auction.get(lot.id, (0, None))
        return lot if bids <= lot.bids else lot._replace(bids=bids, highest=highest)


def followed_of(rows: pl.DataFrame, time: int) -> FollowedBids:
    """From the rows of a live table over `FOLLOWED`."""
    ids, auctions, amounts = (rows[name].cast(pl.Int64).to_numpy() for name in ("id", "auction_id", "amount"))
    # The same formula as in `CUT`.
    checks = (ids * 7919 + auctions * 104729 + amounts) % 1000003
    sums = (int(column.sum()) for column in (ids * ids, amounts, checks))
    facts = DemoFacts(len(rows), int(ids.max(initial=0)), *sums)
    groups = rows.group_by("auction_id").agg(pl.len(), pl.col("amount").max())
    return FollowedBids(time, facts, {lot: (bids, highest) for lot, bids, highest in groups.iter_rows()})


def _time(rows: Sequence[Sequence[Any]]) -> int:
    times = {row[0] for row in rows}
    if len(times) != 1:
        raise Violation(f"one query gave the times {sorted(map(str, times))}")
    return int(times.pop() or 0)


def _maybe(value: Any) -> int | None:
    return None if value is None else int(value)


def must_hold(cut: Cut, lots: Lots | None) -> None:
    """Raises Violation unless the five tables, the view and the progress belong to one another."""
    events = cut.events
    auctions = (events + 8) // 10  # events 1, 11, 21, ...
    expected = {
        "organizations": ORGANIZATIONS if events else 0,
        "users": USERS if events else 0,
        "accounts": ORGANIZATIONS if events else 0,
        "auctions": auctions,
        "bids": max(0, events - 1 - auctions),
    }
    for name, rows in expected.items():
        facts = cut.of(name)
        # Ids go from 1 without a gap, each once: nothing else has this number, end and sum of squares.
        if facts[:3] != (rows, rows, rows * (rows + 1) * (2 * rows + 1) // 6):
            raise Violation(
                f"at {cut.time} {events} events are included, so {name} must have the ids 1 to {rows}, "
                f"each once; but there are {facts.rows} rows up to id {facts.last}"
            )
    seen = (cut.time, 0, 0, 0) if lots is None else (lots.time, lots.rows, lots.bids, lots.amount)
    # The view counts the bids that have an auction, whose seller is a user, at the same time.
    bids = cut.of("bids")
    if seen != (cut.time, auctions, bids.rows, bids.amount):
        raise Violation(
            f"at {cut.time} there are {auctions} auctions with {bids.rows} bids over {bids.amount}, "
            f"but the view at {seen[0]} has {seen[1]} with {seen[2]} over {seen[3]}"
        )


def must_follow(before: Cut, after: Cut) -> None:
    """Raises Violation if time, or what is included, went back from one read to the next."""
    if after.time < before.time or after.events < before.events:
        raise Violation(
            f"after a read at {before.time} with {before.events} events came one "
            f"at {after.time} with {after.events}"
        )


def must_be_same(then: Cut | Lots | None, again: Cut | Lots | None) -> None:
    """Raises Violation unless a past time reads as before."""
    if then != again:
        raise Violation(f"the past changed: it was {then}, and is {again}")


def must_match(followed: FollowedBids, cut: Cut) -> None:
    """Raises Violation unless what the subscription held at a time is what SELECT says of that time."""
    if (followed.time, followed.bids) != (cut.time, cut.of("bids")):
        raise Violation(
            f"at {followed.time} the subscription had {followed.bids} of bids, "
            f"but SELECT at {cut.time} has {cut.of('bids')}"
        )
