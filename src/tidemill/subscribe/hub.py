"""The tails of a server, by what they follow, and the callbacks for advanced or dropped collections.

`tail` is called on the event loop. `moved` and `dropped` are called from any thread, by code that commits or
changes the catalog.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Executor
from dataclasses import dataclass

from tidemill.errors import TidemillError
from tidemill.subscribe.follower import Follower
from tidemill.subscribe.tail import Tail


@dataclass(frozen=True, slots=True)
class FollowedKey:
    """What a tail follows: equal keys share one. It is woken when one of the `shards` advances, and ends when
    one of the `items` of the catalog is dropped."""

    key: Hashable
    shards: frozenset[str]
    items: frozenset[str]


class Hub:
    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        # Guards both maps.
        self._lock = threading.Lock()
        self._tails: dict[FollowedKey, Tail] = {}
        self._by_shard: dict[str, set[Tail]] = {}

    def tail(self, followed: FollowedKey, open_: Callable[[], Follower]) -> Tail:
        """The tail of the key; `open_` makes its follower if it does not exist yet."""
        with self._lock:
            tail = self._tails.get(followed)
            if tail is None:
                tail = Tail(open_, self._pool, lambda gone: self._drop(followed, gone))
                self._tails[followed] = tail
                for shard in followed.shards:
                    self._by_shard.setdefault(shard, set()).add(tail)
            return tail

    def _drop(self, followed: FollowedKey, tail: Tail) -> None:
        with self._lock:
            if self._tails.get(followed) is tail:
                del self._tails[followed]
            for shard in followed.shards:
                others = self._by_shard.get(shard, set())
                others.discard(tail)
                if not others:
                    self._by_shard.pop(shard, None)

    def moved(self, shards: Collection[str]) -> None:
        """The shards have new updates, or time has gone on for them."""
        with self._lock:
            tails = {tail for shard in shards for tail in self._by_shard.get(shard, ())}
        for tail in tails:
            tail.wake()

    def dropped(self, items: Collection[str], error: Callable[[str], TidemillError]) -> None:
        """Items of the catalog are gone; `error` says so of one of them."""
        with self._lock:
            tails = [(tail, followed.items.intersection(items)) for followed, tail in self._tails.items()]
        for tail, gone in tails:
            if gone:
                tail.fail_soon(error(min(gone)))

    def __len__(self) -> int:
        with self._lock:
            return len(self._tails)
