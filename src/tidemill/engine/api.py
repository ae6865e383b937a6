"""The face that a session shows to whoever speaks for a client (pgwire, HTTP, a test).

The server layer never sees shards, Spark or the catalog: it hands statements in and gets outcomes out.
Everything here is awaited on the event loop and never blocks it. Values cross this face as Arrow record
batches whose types are the storage forms of `types.arrow`; how they look on a wire is the server's affair.
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


@dataclass(slots=True)
class PreparedStatement:
    """A statement that was parsed and described. `columns` is None where it returns no rows. `verb` is for
    logs and metrics. `statement` is the engine's own; nobody else looks inside. `text` is the statement's
    SQL."""

    text: str
    verb: str
    param_types: tuple[SqlType, ...]
    columns: tuple[Column, ...] | None
    statement: object
    # True for BEGIN, COMMIT, ROLLBACK and DEALLOCATE-like statements that a failed transaction still accepts.
    allowed_when_failed: bool = False
    # What the client was last told of `columns`; None where it did not ask.
    described: tuple[Column, ...] | None = None


def same_result(one: Sequence[Column] | None, other: Sequence[Column] | None) -> bool:
    """Whether rows of the one can be read as rows of the other."""
    if one is other:
        return True
    if one is None or other is None or len(one) != len(other):
        return False
    return all(a.name == b.name and a.type == b.type for a, b in zip(one, other, strict=True))


@dataclass(frozen=True, slots=True)
class Bound:
    """The parameters of a statement as `Session.read_params` has read them; nobody else looks inside."""

    values: Sequence[object] = ()


@dataclass(slots=True)
class Complete:
    """Done, no rows: the command tag, e.g. `INSERT 0 3`."""

    tag: str


@dataclass(slots=True)
class EmptyQuery:
    """The statement was empty."""


@dataclass(slots=True)
class Rows:
    """Rows to come. The tag is `{tag} {count}` when `counted`, else `tag`. The reader must exhaust or
    `aclose()` the iterator: holds and jobs are released there. `shared`: other sessions may be given the very
    same batches, so that their encoding may be shared too. `endless`: they come for as long as somebody
    reads. `binary`: of a cursor that was declared so; a client that cannot say which form it wants gets this
    one. `take`: there where nobody has to wait for the rows; gives the next batch and None at the end, and
    spares a small answer the event loop's turns."""

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
    """COPY's options, defaults as PostgreSQL's for the format. `delimiter`, `null`, `quote`, `escape` are
    one string each."""

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
    """Takes the rows of COPY ... FROM STDIN; nothing is visible before `finish`."""

    async def write(self, batch: pa.RecordBatch) -> None: ...

    async def finish(self) -> str:
        """Returns the command tag, `COPY n`."""
        ...

    async def fail(self, reason: str) -> None:
        """The client gave up (CopyFail) or its data did not decode: forget what was written."""
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
    """Release what an iterator holds, if it holds anything."""
    close = getattr(batches, "aclose", None)
    if close is not None:
        await close()


class Session(Protocol):
    """One client's session. Calls come one at a time (except `cancel`, which may come at any moment)."""

    @property
    def transaction_status(self) -> str:
        """`I` idle, `T` in a transaction block, `E` in a failed one: pgwire's ReadyForQuery byte."""
        ...

    @property
    def parameters(self) -> Mapping[str, str]:
        """What to report at start (server_version, client_encoding, DateStyle, TimeZone, ...)."""
        ...

    def setting(self, name: str) -> str | None:
        """A variable, or a parameter of the system, as SHOW prints it; None if there is none of that
        name."""
        ...

    @property
    def statements(self) -> Statements:
        """What was prepared under a name, by PREPARE or by whoever speaks for the client."""
        ...

    async def parse(self, sql: str) -> list[PreparedStatement]:
        """Split a simple query into its statements. Describes nothing yet: `columns` may be None and
        `param_types` empty until `describe`. Raises a syntax error with a position in `sql` and then runs
        none of them."""
        ...

    async def prepare(self, sql: str, param_oids: Sequence[int]) -> PreparedStatement:
        """Parse and describe exactly one statement (42601 for more) with parameter types as far as the
        client gave them (0 = find out)."""
        ...

    async def prepare_subscribe(self, request: SubscribeRequest) -> PreparedStatement:
        """As `prepare`, of the SUBSCRIBE that the request describes. Executing it raises HistoryGone where
        AS OF lies before what is still known."""
        ...

    async def describe(self, prepared: PreparedStatement) -> None:
        """Before `columns` of a prepared statement are told: brings them up to date. Raises what is wrong
        with the statement now, and 0A000 where its result is not what it was when it was prepared."""
        ...

    async def bind(self, prepared: PreparedStatement) -> tuple[Column, ...] | None:
        """What the statement will return. As in PostgreSQL a query is analysed here, and raises as in
        `describe`; of EXECUTE and FETCH it is what is behind their name now, None if that is missing."""
        ...

    @property
    def portals(self) -> Portals:
        """The session's open portals and cursors. The end of the transaction closes them."""
        ...

    async def read_params(self, prepared: PreparedStatement, params: Sequence[Param]) -> Bound:
        """The parameters' values, in the time zone that is now. Raises what is wrong with one (22P02, 22021
        for a NUL byte)."""
        ...

    async def execute(
        self,
        prepared: PreparedStatement,
        params: Sequence[Param] | Bound = (),
        *,
        alone: bool = False,
        in_block: bool = False,
    ) -> Outcome:
        """Run it. In no transaction block an implicit transaction is opened, which `sync` ends. `alone`
        says that the implicit transaction will hold nothing else (a simple query of one statement; an
        Execute with a Sync behind it): the engine may then commit inside, and run the statement again on a
        conflict. `in_block` says that other statements of the
        client are part of the same implicit transaction: a simple query of several, an Execute that follows
        another. After an error the caller calls `fail` before anything else."""
        ...

    async def sync(self) -> None:
        """The end of a simple query or a Sync message: commits the implicit transaction. May raise (a
        commit can fail)."""
        ...

    async def fail(self) -> None:
        """A statement failed: rolls back the implicit transaction, or marks the transaction block as
        failed."""
        ...

    async def fetch(self, name: str, count: int | None) -> Rows:
        """Up to `count` rows (None: all) of a portal whose rows SQL fetches, a cursor of DECLARE among them.
        There are no more where fewer come."""
        ...

    def resume(self) -> None:
        """More rows of a portal of Bind will be read: cancel and time-out are of this Execute from now on."""
        ...

    def events(self, *, parameters: bool = True) -> list[Notice | ParameterStatus]:
        """Notices and, if they are wanted, parameter changes since the last call; may be polled while a
        statement runs. A parameter that has changed and changed back meanwhile is no news."""
        ...

    def on_event(self, wake: object) -> None:
        """`wake` (a no-argument callable, called on the event loop) is called when `events` has something
        new."""
        ...

    def cancel(self) -> None:
        """Cancel what runs now, if anything; it then raises QueryCanceled."""
        ...

    def on_terminate(self, end: object) -> None:
        """`end` (a callable of one error, called on the event loop) ends the connection as if the server went
        down: pg_terminate_backend."""
        ...

    async def close(self) -> None:
        """The client is gone: roll back, cancel, release everything. Idempotent."""
        ...


class Encryption(NamedTuple):
    """Of a connection, as pg_stat_ssl shows it; None where it is not known."""

    version: str | None = None
    cipher: str | None = None
    bits: int | None = None


@dataclass(frozen=True, slots=True)
class StartupOptions:
    """What a client asked for when it connected."""

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
