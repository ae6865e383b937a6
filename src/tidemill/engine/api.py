"""The interface between the engine and its callers: pgwire, HTTP, tests.

The server layer never sees shards, Spark or the catalog. It passes statements and receives outcomes. All
methods run on the event loop and never block it. Values are Arrow record batches in the storage forms of
`types.arrow`; the server layer formats them for the wire.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import pyarrow as pa

from tidemill.engine.session.portals import BoundPortal as BoundPortal
from tidemill.engine.session.portals import Portals
from tidemill.engine.session.portals import cannot_run as cannot_run
from tidemill.engine.session.prepared_statements import Statements
from tidemill.errors import Notice
from tidemill.persist.snapshot import InvalidAsOf
from tidemill.types.model import Column, SqlType

# What a read at a time raises whose history is forgotten.
HistoryGone = InvalidAsOf


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter as the client sent it: its bytes (None = NULL) and its format, 0 text or 1 binary."""

    data: bytes | None
    format: int = 0


@dataclass(frozen=True, slots=True)
class ParameterStatus:
    """A session parameter that clients follow has changed (pgwire message S)."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """A SUBSCRIBE by its parts. `query` is a relation's name or a query and cannot be anything else; times
    are milliseconds or timestamps as text, or `earliest` and `latest`; `keys` belong to an `envelope`."""

    query: str
    keys: tuple[str, ...] = ()
    envelope: Literal["upsert", "debezium"] | None = None
    snapshot: bool = True
    progress: bool = False
    as_of: str | None = None
    up_to: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """A durable subscription by its name, to be read without end, from the acknowledged position or a later
    one. Its rows begin with progress, and are those of SUBSCRIBE with PROGRESS."""

    name: str
    position: int | None = None
    share: int | None = None


@dataclass(slots=True)
class PreparedStatement:
    """A parsed and described statement. `columns` is None if it returns no rows. `verb` is for logs and
    metrics. `statement` is private to the engine. `text` is the SQL of the statement."""

    text: str
    verb: str
    param_types: tuple[SqlType, ...]
    columns: tuple[Column, ...] | None
    statement: object
    # True for BEGIN, COMMIT, ROLLBACK and DEALLOCATE-like statements that a failed transaction still accepts.
    allowed_when_failed: bool = False
    # The last description of `columns` that the client received; None if it did not request one.
    described: tuple[Column, ...] | None = None


def same_result(one: Sequence[Column] | None, other: Sequence[Column] | None) -> bool:
    """Whether both have the same column names and types, so that a client can read rows of both alike."""
    if one is other:
        return True
    if one is None or other is None or len(one) != len(other):
        return False
    return all(a.name == b.name and a.type == b.type for a, b in zip(one, other, strict=True))


@dataclass(frozen=True, slots=True)
class Bound:
    """The parameters of a statement, as returned by `Session.read_params`. Private to the engine."""

    values: Sequence[object] = ()


NO_PARAMS = Bound()


@dataclass(slots=True)
class Complete:
    """The statement is complete and returns no rows. Holds the command tag, e.g. `INSERT 0 3`."""

    tag: str


@dataclass(slots=True)
class EmptyQuery:
    """The statement was empty."""


@dataclass(slots=True)
class Rows:
    """A stream of rows. The tag is `{tag} {count}` if `counted`, else `tag`. The reader must exhaust or
    `aclose()` the iterator, which releases holds and jobs. `shared`: other sessions may receive the same
    batches, so the server may share their encoding. `endless`: the stream has no end. `binary`: the rows
    of a binary cursor; a client that cannot choose a format gets this one. `take`: present if the rows are
    in memory; returns the next batch, or None at the end, and saves a small result the turns of the event
    loop."""

    columns: tuple[Column, ...]
    batches: AsyncIterator[pa.RecordBatch]
    tag: str = "SELECT"
    counted: bool = True
    shared: bool = False
    endless: bool = False
    binary: bool = False
    take: Callable[[], pa.RecordBatch | None] | None = None


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """The options of COPY, with PostgreSQL's defaults for the format. `delimiter`, `null`, `quote` and
    `escape` are one string each."""

    format: str = "text"  # text | csv | binary
    delimiter: str = "\t"
    null: str = "\\N"
    header: bool = False
    quote: str = '"'
    escape: str = '"'
    force_quote: tuple[str, ...] = ()  # column names; ("*",) means all
    force_not_null: tuple[str, ...] = ()
    force_null: tuple[str, ...] = ()
    # The header line must name the columns; what stands for a column's default in place of a value; how the
    # text is encoded, by Python's name.
    header_match: bool = False
    default: str | None = None
    encoding: str = "utf-8"


@dataclass(slots=True)
class CopyOut:
    """COPY ... TO STDOUT: the server formats the batches. Tag `COPY {count}`. `shared` as in `Rows`."""

    columns: tuple[Column, ...]
    batches: AsyncIterator[pa.RecordBatch]
    options: CopyOptions
    shared: bool = False


class CopySink(Protocol):
    """Receives the rows of COPY ... FROM STDIN. No row is visible before `finish`."""

    async def write(self, batch: pa.RecordBatch) -> None: ...

    async def finish(self) -> str:
        """Returns the command tag, `COPY n`."""
        ...

    async def fail(self, reason: str) -> None:
        """Discards what was written: the client sent CopyFail, or its data did not decode."""
        ...


@dataclass(slots=True)
class CopyIn:
    """COPY t (columns) FROM STDIN: the server decodes the client's bytes into batches of `columns`."""

    columns: tuple[Column, ...]
    options: CopyOptions
    sink: CopySink
    # The table's name, for the errors that say where in the data they are.
    relation: str = ""
    # What each column's default is now; None for a column that has none. Given where `options.default` is.
    defaults: tuple[pa.Scalar | None, ...] = ()


Outcome = Complete | EmptyQuery | Rows | CopyOut | CopyIn


async def close_batches(batches: AsyncIterator[pa.RecordBatch]) -> None:
    """Releases the resources of an iterator, if it has any."""
    close = getattr(batches, "aclose", None)
    if close is not None:
        await close()


class Session(Protocol):
    """The session of one client. Calls are sequential, except `cancel`, which is allowed at any time."""

    @property
    def transaction_status(self) -> str:
        """The status byte of ReadyForQuery: `I` idle, `T` in a transaction block, `E` in a failed one."""
        ...

    @property
    def parameters(self) -> Mapping[str, str]:
        """The parameters to report at startup (server_version, client_encoding, DateStyle, TimeZone, ...)."""
        ...

    def setting(self, name: str) -> str | None:
        """The value of a variable or a system parameter, as SHOW prints it. None if the name is unknown."""
        ...

    @property
    def statements(self) -> Statements:
        """The named prepared statements, from PREPARE or from the protocol."""
        ...

    async def parse(self, sql: str) -> list[PreparedStatement]:
        """Splits a simple query into its statements. Does not describe them: `columns` may be None and
        `param_types` empty until `describe`. On a syntax error, raises with a position in `sql`; no
        statement runs."""
        ...

    async def prepare(self, sql: str, param_oids: Sequence[int]) -> PreparedStatement:
        """Parses and describes exactly one statement (42601 for more). `0` stands for a parameter type that
        the client did not specify."""
        ...

    async def prepare_subscribe(self, request: SubscribeRequest | ConsumeRequest) -> PreparedStatement:
        """As `prepare`, for what the request describes. Executing it raises HistoryGone if AS
        OF is before since."""
        ...

    async def describe(self, prepared: PreparedStatement) -> None:
        """Updates `columns` of a prepared statement before the server reports them. Raises if the statement
        is no longer valid, and 0A000 if its result type has changed since it was prepared."""
        ...

    async def bind(self, prepared: PreparedStatement) -> tuple[Column, ...] | None:
        """Returns the columns of the result. As in PostgreSQL, a query is analysed here and raises as in
        `describe`. For EXECUTE and FETCH, uses the current statement or cursor of that name; None if it
        does not exist."""
        ...

    @property
    def portals(self) -> Portals:
        """The open portals and cursors of the session. The end of the transaction closes them."""
        ...

    async def read_params(self, prepared: PreparedStatement, params: Sequence[Param]) -> Bound:
        """Decodes the values of the parameters, in the current time zone. Raises if one is invalid (22P02,
        22021 for a NUL byte)."""
        ...

    async def execute(
        self,
        prepared: PreparedStatement,
        params: Sequence[Param] | Bound = (),
        *,
        alone: bool = False,
        in_block: bool = False,
    ) -> Outcome:
        """Runs a statement. Outside a transaction block, opens an implicit transaction, which `sync` ends.
        `alone`: the implicit transaction contains no other statement (a simple query of one statement; an
        Execute followed by a Sync). The engine may then commit inside, and run the statement again on a
        conflict. `in_block`: other statements of the client belong to the same implicit transaction (a
        simple query of several statements; an Execute after another). After an error the caller calls
        `fail` before anything else."""
        ...

    async def sync(self) -> None:
        """Ends a simple query or handles a Sync message: commits the implicit transaction. Raises if the
        commit fails."""
        ...

    async def fail(self) -> None:
        """Handles a failed statement: rolls back the implicit transaction, or marks the transaction block as
        failed."""
        ...

    async def fetch(self, name: str, count: int | None) -> Rows:
        """Up to `count` rows (None: all) of a portal that is fetched from SQL, including cursors of DECLARE.
        Fewer rows than `count` mean that the portal is exhausted."""
        ...

    def resume(self) -> None:
        """Continues to read a portal of Bind: cancel and time-out now apply to this Execute."""
        ...

    def events(self, *, parameters: bool = True) -> list[Notice | ParameterStatus]:
        """Notices since the last call and, if requested, parameter changes. May be polled while a statement
        runs. A parameter that has changed back meanwhile is not reported."""
        ...

    def on_event(self, wake: object) -> None:
        """Registers `wake` (a callable without arguments). It is called on the event loop when `events` has
        new entries."""
        ...

    def cancel(self) -> None:
        """Cancels the running statement, if any. The statement raises QueryCanceled."""
        ...

    def on_terminate(self, end: object) -> None:
        """Registers `end` (a callable with one error, called on the event loop), which ends the connection as
        a server shutdown does. Used by pg_terminate_backend."""
        ...

    async def close(self) -> None:
        """Closes the session after the client has disconnected: rolls back, cancels, releases all resources.
        Idempotent."""
        ...


class Encryption(NamedTuple):
    """The encryption of a connection, as in pg_stat_ssl. None if unknown."""

    version: str | None = None
    cipher: str | None = None
    bits: int | None = None


@dataclass(frozen=True, slots=True)
class StartupOptions:
    """The options that the client sent when it connected."""

    user: str = "materialize"
    database: str = "materialize"
    application_name: str = ""
    # Where the client is, for the audit log and mz_sessions.
    client_address: str = ""
    # None: the connection is plain.
    encryption: Encryption | None = None
    # False: it lives for one request, and its login is no event of the audit log.
    lasting: bool = True
    settings: Mapping[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """The running system as the server layer sees it."""

    def open_session(self, options: StartupOptions, *, process_id: int) -> Session:
        """Raises when the role or database does not exist (28000, 3D000)."""
        ...

    @property
    def ready(self) -> bool:
        """True once Spark is warm (`/readyz`)."""
        ...
