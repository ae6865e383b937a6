"""AUCTION generator: an auction house, in five consistent relations.

Event 0 creates the organizations, the users and the accounts, which do not change. After that, every tenth
event opens an auction, and the nine in between are bids on one of the latest auctions. Each row derives
arithmetically from the number of its event. The auction of a bid was opened by an earlier event, is still
open at the time of the bid, and is not the bidder's own. Bids on an auction tend to rise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.sources.contract import OutputDefinition, SourceBatch, SourcePiece
from tidemill.sources.generators.auction_words import ITEMS, ORGANIZATIONS, USERS
from tidemill.sources.generators.draws import below, draws, stream
from tidemill.sources.generators.load import EventPace, GeneratorKind, GeneratorSource, batch_schema, windows
from tidemill.sources.generators.options import SEED, UP_TO, envelope, tick_interval
from tidemill.types.model import INT4, INT8, TEXT, TIMESTAMPTZ, Column, RelationDesc, SqlType

# Events from one auction to the next: one that opens it, and bids.
CYCLE = 10
# Bids go to one of so many latest auctions.
OPEN_AUCTIONS = 20
# How many intervals an auction lasts: at least until the last event that can bid on it, at most half as long
# again.
SHORTEST = CYCLE * OPEN_AUCTIONS
LONGEST = SHORTEST + SHORTEST // 2

_ORGANIZATIONS, _USERS, _ACCOUNTS, _AUCTIONS, _BIDS = range(5)
# The streams that are drawn from: by the number of the auction, of the bid's event, of the account.
_SELLER, _ITEM, _PRICE, _LASTS, _CHOICE, _BUYER, _RAISE, _BALANCE = range(1, 9)

# About what the text of an item and four numbers take.
_EVENT_BYTES = 48
_MAX_MICROS = 2**63 - 1


def _output(name: str, /, **columns: SqlType) -> OutputDefinition:
    return OutputDefinition(
        name, RelationDesc(tuple(Column(n, t, nullable=False) for n, t in columns.items()))
    )


OUTPUTS = (
    _output("organizations", id=INT8, name=TEXT),
    _output("users", id=INT8, org_id=INT8, name=TEXT),
    _output("accounts", id=INT8, org_id=INT8, balance=INT8),
    _output("auctions", id=INT8, seller=INT8, item=TEXT, end_time=TIMESTAMPTZ),
    _output("bids", id=INT8, buyer=INT8, auction_id=INT8, amount=INT4, bid_time=TIMESTAMPTZ),
)
_SCHEMAS = [batch_schema(output) for output in OUTPUTS]
_ITEMS = pa.array(ITEMS, pa.string())


@dataclass(frozen=True, slots=True)
class AuctionReader:
    """`origin` is the time of event 0 and `interval` that from one event to the next, in microseconds."""

    seed: int
    origin: int
    interval: int

    def read(self, piece: SourcePiece) -> Iterator[SourceBatch]:
        for first, end in windows(piece):
            if first == 0:
                yield from self._fixed()
            # Auctions and bids are numbered separately, from 0; these functions count those below an event.
            opened, opens = _auctions_before(first), _auctions_before(end)
            made, makes = _bids_before(first), _bids_before(end)
            if opened < opens:
                yield _batch(_AUCTIONS, self._auctions(np.arange(opened, opens, dtype=np.uint64)))
            if made < makes:
                yield _batch(_BIDS, self._bids(np.arange(made, makes, dtype=np.uint64)))

    def _fixed(self) -> Iterator[SourceBatch]:
        """The rows of event 0: one record, whichever relations its rows go to."""
        organizations = np.arange(len(ORGANIZATIONS), dtype=np.uint64)
        ids = _int8(organizations + np.uint64(1))
        yield _batch(_ORGANIZATIONS, [ids, pa.array(ORGANIZATIONS, pa.string())], records=1)
        users = np.arange(len(USERS), dtype=np.uint64)
        user_ids = _int8(users + np.uint64(1))
        user_orgs = _int8(below(users, len(ORGANIZATIONS)) + np.uint64(1))
        yield _batch(_USERS, [user_ids, user_orgs, pa.array(USERS, pa.string())], records=0)
        # Each organization has one account.
        balances = self._below(_BALANCE, organizations, 100_000)
        yield _batch(_ACCOUNTS, [ids, ids, _int8(balances)], records=0)

    def _auctions(self, numbers: np.ndarray) -> list[pa.Array]:
        lasts = self._below(_LASTS, numbers, LONGEST - SHORTEST) + np.uint64(SHORTEST)
        items = pa.array(self._below(_ITEM, numbers, len(ITEMS)).view(np.int64))
        return [
            _int8(numbers + np.uint64(1)),
            _int8(self._seller(numbers) + np.uint64(1)),
            _ITEMS.take(items),
            self._time(_opening(numbers) + lasts),
        ]

    def _bids(self, numbers: np.ndarray) -> list[pa.Array]:
        """Bid b is in the cycle b // 9, after the auction of that cycle."""
        cycle = numbers // np.uint64(CYCLE - 1)
        events = numbers + cycle + np.uint64(2)
        # In the beginning there are fewer auctions than may be open.
        among = np.minimum(cycle + np.uint64(1), np.uint64(OPEN_AUCTIONS))
        auctions = cycle - draws(stream(self.seed, _CHOICE), events) % among
        # Any user except the seller: the number of positions after the seller.
        behind = self._below(_BUYER, events, len(USERS) - 1) + np.uint64(1)
        buyers = below(self._seller(auctions) + behind, len(USERS))
        price = self._below(_PRICE, auctions, 990) + np.uint64(10)
        percent = np.uint64(100) + (events - _opening(auctions)) + self._below(_RAISE, events, 20)
        return [
            _int8(numbers + np.uint64(1)),
            _int8(buyers + np.uint64(1)),
            _int8(auctions + np.uint64(1)),
            pa.array((price * percent // np.uint64(100)).astype(np.int32)),
            self._time(events),
        ]

    def _seller(self, auctions: np.ndarray) -> np.ndarray:
        return self._below(_SELLER, auctions, len(USERS))

    def _below(self, quantity: int, numbers: np.ndarray, bound: int) -> np.ndarray:
        return below(draws(stream(self.seed, quantity), numbers), bound)

    def _time(self, events: np.ndarray) -> pa.Array:
        """When events fall due."""
        micros = events.view(np.int64) * np.int64(self.interval) + np.int64(self.origin)
        return pa.array(micros.view("datetime64[us]"), pa.timestamp("us", "UTC"))


def _auctions_before(event: int) -> int:
    """How many of the events below this one open an auction: 1, 11, 21, ..."""
    return max(0, (event + CYCLE - 2) // CYCLE)


def _bids_before(event: int) -> int:
    return max(0, event - 1 - _auctions_before(event))


def _opening(auctions: np.ndarray) -> np.ndarray:
    """The events that open these auctions."""
    return auctions * np.uint64(CYCLE) + np.uint64(1)


def _int8(values: np.ndarray) -> pa.Array:
    return pa.array(values.view(np.int64))


def _batch(output: int, columns: list[pa.Array], records: int | None = None) -> SourceBatch:
    rows = pa.RecordBatch.from_arrays(columns, schema=_SCHEMAS[output])
    return SourceBatch(output, rows, rows.num_rows if records is None else records, rows.nbytes)


def _open(values: Mapping[str, Any]) -> GeneratorSource:
    started: int = values["started"]
    interval: int = values["tick_interval"]
    # The last auction ends within what a timestamp can hold.
    most = max(0, (_MAX_MICROS - started * 1000) // interval - LONGEST)
    up_to: int | None = values.get("up_to")
    pace = EventPace(started, interval, at_once=1, up_to=most if up_to is None else min(up_to, most))
    return GeneratorSource(
        pace, OUTPUTS, AuctionReader(values["seed"], started * 1000, interval), _EVENT_BYTES
    )


AUCTION = GeneratorKind("AUCTION", (tick_interval(100_000), UP_TO, SEED, envelope("NONE")), _open)
