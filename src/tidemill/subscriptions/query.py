"""The query of a durable subscription, bound again from the catalog.

It is evaluated in a session without a user: what a reader is sent must not depend on who reads. It reads with
the privileges of the subscription's owner, as they are now.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidemill.catalog.items import Subscription
from tidemill.catalog.privileges import Privileges
from tidemill.catalog.state import CatalogState
from tidemill.errors import Internal
from tidemill.inputs.names import CatalogResolver
from tidemill.sql import ast
from tidemill.sql.bind import BoundQuery, SessionInfo, bind_query
from tidemill.sql.parse import parse
from tidemill.subscribe.spec import OutputShape, Spec
from tidemill.subscriptions.positions import Position
from tidemill.types.hash import fold, hash_column
from tidemill.types.model import Column

# Times of day are in UTC; user, database and settings do not exist.
SUBSCRIPTION_SESSION = SessionInfo()


def bind_subscription(
    catalog: CatalogState, item: Subscription, privileges: Privileges | None = None
) -> BoundQuery:
    """Its query with the columns that it had when it was created. Reads are checked against `privileges`."""
    (parsed,) = parse(item.sql)
    query = parsed.statement
    if not isinstance(query, ast.Query):
        raise Internal(f'the text of subscription "{item.name}" is no query')
    names = CatalogResolver(catalog, SUBSCRIPTION_SESSION.database, (), item.references, privileges)
    bound = bind_query(query.tree, names, session=SUBSCRIPTION_SESSION)
    columns = tuple(Column(c.name, c.type, c.nullable) for c in item.desc.columns)
    return replace(bound, columns=columns)


def subscription_spec(item: Subscription) -> Spec:
    """The form of its rows; the row with `mz_progressed` says that a time is complete."""
    names = list(item.desc.names)
    keys = tuple(names.index(key) for key in item.keys)
    return Spec(item.desc.columns, OutputShape(item.output), keys, progress=True)


@dataclass(frozen=True, slots=True)
class Place:
    """One of the shares of a subscription, which has a position and a reader of its own."""

    item: Subscription
    share: int = 1

    @property
    def key(self) -> str:
        """Of its position."""
        return self.item.id if self.item.shares == 1 else f"{self.item.id}/{self.share}"

    def __str__(self) -> str:
        named = f'subscription "{self.item.name}"'
        return named if self.item.shares == 1 else f"share {self.share} of {named}"

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Of a batch of the subscription those that belong to the share, and progress."""
        if self.item.shares == 1 or not batch.num_rows:
            return batch
        spec = subscription_spec(self.item)
        # After the time, progress, and the diff or state; an envelope begins with its key.
        order = spec.keys or range(len(spec.columns))
        names = [spec.columns[i].name for i in order]
        columns = [batch.column(3 + names.index(name)) for name in self.item.share_key]
        mine = fold([hash_column(c) for c in columns]) % np.uint64(self.item.shares) == self.share - 1
        progressed = batch.column(1).to_numpy(zero_copy_only=False)
        return batch.filter(pa.array(mine | progressed))


def places(item: Subscription) -> list[Place]:
    return [Place(item, n) for n in range(1, item.shares + 1)]


def initial_position(item: Subscription) -> Position:
    """Before anything is acknowledged."""
    return Position(item.created, True) if item.snapshot else Position(item.created + 1)
