"""The errors of Tidemill, in PostgreSQL's form.

Every deliberate error that leaves a layer is a `TidemillError`. It has a primary text (one line, lower case,
no full stop), an optional detail (what was found), an optional hint (what to do), an SQLSTATE, and a position
in the statement if one is known. `transient` means that the same call may succeed later. Errors of writes
also say whether the write may have happened (`persist.outcome`). Any other exception that escapes is a bug
and is reported as XX000.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    """The object of an error by name, for programs that do not parse its text: PostgreSQL's fields s, t, c, d
    and n. Set only for errors for which PostgreSQL sets it."""

    schema: str | None = None
    table: str | None = None
    column: str | None = None
    data_type: str | None = None
    constraint: str | None = None


class TidemillError(Exception):
    """The base of all deliberate errors. Subclasses set `sqlstate` (and `transient`) for all their
    instances."""

    sqlstate: str = "XX000"
    transient: bool = False
    # PostgreSQL's field R, for errors that drivers recognize by it.
    routine: str | None = None

    def __init__(
        self,
        primary: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        sqlstate: str | None = None,
        position: int | None = None,
        context: str | None = None,
        about: About | None = None,
    ) -> None:
        super().__init__(primary)
        self.primary = primary
        self.detail = detail
        self.hint = hint
        if sqlstate is not None:
            self.sqlstate = sqlstate
        # 1-based character offset into the statement's text, as in field P of PostgreSQL's ErrorResponse.
        self.position = position
        # The place, if it is not in the statement's text: the line of a COPY's data. PostgreSQL's field W.
        self.context = context
        self.about = about

    def __str__(self) -> str:
        lines = [self.primary]
        if self.detail:
            lines.append(f"DETAIL: {self.detail}")
        if self.hint:
            lines.append(f"HINT: {self.hint}")
        if self.context:
            lines.append(f"CONTEXT: {self.context}")
        return "\n".join(lines)


class ResultChanged(TidemillError):
    """A prepared statement would return columns other than those described to its client. asyncpg, pgjdbc and
    Rails prepare it again when they see the routine."""

    sqlstate = "0A000"
    routine = "RevalidateCachedQuery"

    def __init__(self) -> None:
        super().__init__("cached plan must not change result type")


class SyntaxError_(TidemillError):
    """The statement does not match the grammar."""

    sqlstate = "42601"


class UndefinedObject(TidemillError):
    """A name that does not resolve. Callers pass the precise SQLSTATE (42P01 table, 42703 column, 42883
    function, 3F000 schema, 42704 other)."""

    sqlstate = "42704"


class DuplicateObject(TidemillError):
    """A name that already exists (42P07 relation, 42701 column, 42P06 schema, 42P04 database)."""

    sqlstate = "42710"


class WrongObjectType(TidemillError):
    sqlstate = "42809"


class DependentObjects(TidemillError):
    sqlstate = "2BP01"


class DatatypeMismatch(TidemillError):
    sqlstate = "42804"


class Unsupported(TidemillError):
    """Valid PostgreSQL that Tidemill does not support. The text names the feature, the hint an
    alternative."""

    sqlstate = "0A000"


class InvalidValue(TidemillError):
    """Text or bytes that are not a valid value of the type (22P02), out of range (22003), too long (22001),
    or a bad date (22007/22008)."""

    sqlstate = "22P02"


class NotNullViolation(TidemillError):
    sqlstate = "23502"


class LimitExceeded(TidemillError):
    """A limit was exceeded. The primary text names the limit and its value (54000 program limit, 53000
    resources)."""

    sqlstate = "54000"


class InvalidTransactionState(TidemillError):
    sqlstate = "25000"


class SerializationFailure(TidemillError):
    """Data that the transaction read has changed before its commit; run it again."""

    sqlstate = "40001"
    transient = True


class QueryCanceled(TidemillError):
    sqlstate = "57014"


class Unavailable(TidemillError):
    """A required part is not available at present (still starting, disk full, store unreachable)."""

    sqlstate = "57P03"
    transient = True


class DataCorrupted(TidemillError):
    """The log or a part of a shard is missing, truncated, or different from what the log says."""

    sqlstate = "XX001"


class Internal(TidemillError):
    """A violated invariant. Always raised, also in production."""

    sqlstate = "XX000"


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to the client that is not an error. `severity` is NOTICE, WARNING, INFO, LOG or DEBUG."""

    text: str
    severity: str = "NOTICE"
    sqlstate: str = ""  # PostgreSQL's default: 01000 for a warning, otherwise 00000
    detail: str | None = None
    hint: str | None = None

    def __post_init__(self) -> None:
        if not self.sqlstate:
            object.__setattr__(self, "sqlstate", "01000" if self.severity == "WARNING" else "00000")
