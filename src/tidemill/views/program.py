"""What keeps a view up to date needs of the engine: its query, and the collections that the query reads.

Everything here blocks, and is called by one thread at a time for each view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa

from tidemill.catalog.items import ItemId
from tidemill.persist.part import Part
from tidemill.persist.shard import Shard
from tidemill.subscribe.follower import Follower


class Input(Protocol):
    """A collection that the query reads."""

    @property
    def shard(self) -> Shard:
        """Raises Unavailable while it is not open."""
        ...

    def complete(self) -> int:
        """The collection is complete before it, and all of that is in its log; 0 while it cannot be read."""
        ...


class Program(Protocol):
    """A view's query. Its rows have the columns of the view under their physical names, and `mz_diff`."""

    @property
    def inputs(self) -> Sequence[Input]: ...

    @property
    def views(self) -> Sequence[ItemId]:
        """The materialized views among the inputs."""
        ...

    @property
    def ready(self) -> bool:
        """Whether queries can be run now: Spark may still be starting."""
        ...

    def now(self) -> int:
        """A query without inputs is complete before it."""
        ...

    def answer(self, at: int) -> pa.Table:
        """The rows at a time at which all inputs are complete, each once. Raises what is wrong with the
        data there, as an error of SQL (`careful.is_of_data`)."""
        ...

    def first(self, at: int, shard: Shard, job: str) -> pa.Table | Sequence[Part]:
        """The rows at a time as `answer` gives them; or, where they may be more than the server should hold
        and following does not need them, as parts of the view's shard with that time, written under `job` and
        named by nobody yet."""
        ...

    def follow(self, from_: int, before: Callable[[], pa.Table]) -> Follower:
        """The changes at and after `from_`; `before` gives the answer at `from_ - 1`, for queries that need
        it. Raises InvalidAsOf where the inputs have forgotten theirs."""
        ...
