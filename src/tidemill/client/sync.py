"""The blocking client: calls, iterators, threads.

`connect` returns a `Client`. Each subscription and live table has its own connection and reconnects
automatically. Calls that wait end at once when another thread calls `close()`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

import psycopg

from tidemill.client import statements
from tidemill.client.assemble import MAX_BYTES
from tidemill.client.consume import Consuming
from tidemill.client.course import Course
from tidemill.client.driver import Driver, Notices
from tidemill.client.errors import Closed
from tidemill.client.frames import Changes, Frame
from tidemill.client.link import Link, Waits
from tidemill.client.live_table import LiveTable
from tidemill.client.request import Envelope, Moment, request
from tidemill.client.retry import Retry
from tidemill.client.subscription import Consumer, Following, Subscription
from tidemill.client.target import conninfo

T = TypeVar("T")
F = TypeVar("F", bound=Following)
Params = Sequence[Any] | dict[str, Any] | None


def connect(
    url: str = "",
    *,
    retry: Retry | None = None,
    on_notice: Notices | None = None,
    **parameters: object,
) -> Client:
    """Connect a client; raises ConnectionFailed if no server answers. `url` is a URL or connection string as
    in PostgreSQL. `parameters` (host, port, user, dbname, password, sslmode ...) override it; PG* variables
    and then localhost:6875 are the defaults. `retry` is the policy for reconnecting subscriptions.
    `on_notice` receives the texts of the server's notices, on the thread that waits for them."""
    client = Client(conninfo(url, parameters), retry or Retry(), on_notice)
    try:
        client.execute("")
    except BaseException:
        client.close()
        raise
    return client


class Client:
    """A client for any number of threads. Statements run one after another on one connection."""

    def __init__(self, target: str, retry: Retry, on_notice: Notices | None) -> None:
        self._target = target
        self._retry = retry
        self._on_notice = on_notice
        self._driver = Driver(target, on_notice)
        # Held while a statement runs.
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._connection: psycopg.Connection[Any] | None = None
        # The objects that close() ends; locked, because another thread may subscribe at the same time.
        self._followings: weakref.WeakSet[Following] = weakref.WeakSet()
        self._members = threading.Lock()

    def query(self, sql: str, params: Params = None) -> Frame:
        """Return the rows of one statement, all in memory. `params` replace %s or %(name)s."""
        return self._run(statements.query, sql, params)

    def execute(self, sql: str, params: Params = None) -> str:
        """Run statements; return the tag of the last, such as `INSERT 0 3`. For transactions over several
        calls use psycopg."""
        return self._run(statements.execute, sql, params)

    def subscribe(
        self,
        query: str,
        *,
        key: Sequence[str] = (),
        envelope: Envelope | None = None,
        order_by: str | Sequence[str] = (),
        snapshot: bool = True,
        as_of: Moment | Literal["earliest"] | None = None,
        at_least: bool = False,
        up_to: Moment | Literal["latest"] | None = None,
        progress: bool = False,
        params: Params = None,
        retry: Retry | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> Subscription:
        """Return an iterator over the changes of a relation or query: one `Batch` for each time with changes.
        docs/client.md explains all options."""
        wanted = request(
            self._composed(query, params),
            key=key,
            envelope=envelope,
            order_by=order_by,
            snapshot=snapshot,
            as_of=as_of,
            at_least=at_least,
            up_to=up_to,
        )
        course = Course(wanted, retry or self._retry, max_bytes=max_bytes)
        return self._joined(Subscription(self._new_driver(), course, progress=progress))

    def consume(
        self,
        name: str,
        *,
        position: int | None = None,
        share: int | None = None,
        progress: bool = False,
        retry: Retry | None = None,
    ) -> Consumer:
        """Read a durable subscription: an iterator over complete times, with `acknowledge()`. `position` is
        the one that the application has stored with its effects; without it, reading begins at the
        acknowledged position. docs/client.md explains both."""
        course = Consuming(name, position, retry or self._retry, share=share)
        return self._joined(Consumer(self._new_driver(), course, progress=progress, execute=self.execute))

    def live_table(
        self,
        query: str,
        *,
        key: Sequence[str] = (),
        on_snapshot: Callable[[LiveTable], object] | None = None,
        on_update: Callable[[LiveTable, Changes], object] | None = None,
        params: Params = None,
        retry: Retry | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> LiveTable:
        """Return a relation or query in memory that follows all changes. docs/client.md explains
        all options."""
        wanted = request(self._composed(query, params), key=key, envelope="diff")
        course = Course(wanted, retry or self._retry, renew=True, max_bytes=max_bytes)
        return self._joined(LiveTable(self._new_driver(), course, key, on_snapshot, on_update))

    def close(self) -> None:
        """Close the client and its subscriptions, from any thread."""
        self._driver.close()
        with self._members:
            followings = list(self._followings)
        for following in followings:
            following.close()
        with self._lock:
            self._drop()
            self._driver.release()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _new_driver(self) -> Driver:
        if self._driver.closed:
            raise Closed("the client is closed")
        return Driver(self._target, self._on_notice)

    def _joined(self, made: F) -> F:
        with self._members:
            self._followings.add(made)
        if self._driver.closed:  # closed meanwhile
            made.close()
        return made

    def _composed(self, sql: str, params: Params) -> str:
        """The statement with its parameters inserted as literals."""
        if params is None:
            return sql
        with self._lock:
            self._linked()
            assert self._connection is not None
            return psycopg.ClientCursor(self._connection).mogrify(sql.encode(), params)

    def _run(self, work: Callable[[Link, str], Waits[T]], sql: str, params: Params) -> T:
        text = self._composed(sql, params)
        with self._lock:
            link = self._linked()
            try:
                return self._driver.run(work(link, text))
            finally:
                # Interrupted by close() or Ctrl-C: the connection cannot run the next statement.
                if link.busy or not link.alive:
                    self._drop()

    def _linked(self) -> Link:
        if self._link is None or not self._link.alive:
            self._drop()
            self._connection = self._driver.dial()
            self._link = Link(self._connection)
        return self._link

    def _drop(self) -> None:
        link, self._link, self._connection = self._link, None, None
        if link is not None:
            link.close()
