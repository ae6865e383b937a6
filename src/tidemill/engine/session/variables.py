"""Session variables and system parameters, for SET, SHOW, RESET and ALTER SYSTEM.

A variable has a name, a kind that checks and normalises values, a default, and flags: reported to the client
when it changes (pgwire ParameterStatus), read-only, or accepted only at its fixed value because Tidemill
supports no other (a different value would have no effect, silently). System parameters are the defaults of an
environment: they are stored in the catalog, and `mz_system` changes them.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.engine.session import unused_settings
from tidemill.engine.session.setting_checks import (
    SWITCH,
    CannotChange,
    boolean,
    datestyle,
    float_digits,
    isolation,
    nothing_else,
    one_of,
    only,
    printable,
    schemas,
    text,
    timezone,
    utf8,
)
from tidemill.engine.session.setting_numbers import (
    INT_MAX,
    KILOBYTES,
    MILLISECONDS,
    duration,
    duration_ms,
    integer,
    number,
)
from tidemill.errors import InvalidValue, LimitExceeded, TidemillError, UndefinedObject
from tidemill.sql.names import quote_ident

SERVER_VERSION = "16.4"  # the PostgreSQL release whose behaviour we follow; drivers switch features on it
SERVER_VERSION_NUM = "160004"
# version(): drivers look for PostgreSQL's number in it.
VERSION = f"PostgreSQL {SERVER_VERSION} (Tidemill {importlib.metadata.version('tidemill')})"
MAX_IDENTIFIER_LENGTH = 255


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable; `check` normalises a value or raises."""

    name: str
    default: str
    check: Callable[[str, str], str]
    description: str
    reported: bool = False
    read_only: bool = False

    @property
    def shown(self) -> str:
        """The name as PostgreSQL spells it."""
        return REPORTED_NAMES.get(self.name, self.name)

    def checked(self, value: str) -> str:
        """The value as SHOW prints it; raises if it is invalid."""
        return self.check(self.shown, value)


def _unused() -> Iterator[Variable]:
    said = "Accepted as PostgreSQL has it; nothing here depends on it."
    for name, default in unused_settings.BOOLEANS.items():
        yield Variable(name, default, boolean, said)
    for name, default in unused_settings.DURATIONS.items():
        yield Variable(name, default, duration, said)
    for name, (value, low, high) in unused_settings.INTEGERS.items():
        yield Variable(name, str(value), integer(low, high), said)
    for name, (default, high) in unused_settings.NUMBERS.items():
        yield Variable(name, default, number(0, high), said)
    for name, default in unused_settings.SIZES.items():
        yield Variable(name, default, integer(64, INT_MAX, KILOBYTES), said)
    for name, (default, *values) in unused_settings.CHOICES.items():
        yield Variable(name, default, one_of(values, SWITCH if "on" in values else None), said)
    for name, (default, known) in _only():
        yield Variable(name, default, known, "What there is; another value is refused.")


def _only() -> Iterator[tuple[str, tuple[str, Callable[[str, str], str]]]]:
    """Any other value would require behaviour that is not supported."""
    quotes = one_of(("safe_encoding", "on", "off"), SWITCH)
    yield "array_nulls", ("on", only("on", boolean))
    yield "backslash_quote", ("safe_encoding", only("safe_encoding", quotes))
    method = nothing_else("heap", 'Table access method "{}" does not exist.')
    yield "default_table_access_method", ("heap", method)
    yield "default_tablespace", ("", nothing_else("", 'Tablespace "{}" does not exist.'))
    yield "transaction_timeout", ("0", only("0", integer(0, INT_MAX, MILLISECONDS)))


_SESSION = [
    Variable(
        "subscribe_key_violation",
        "blank",
        one_of(("blank", "underscore")),
        "Whether mz_state of SUBSCRIBE says `key violation` or `key_violation`.",
    ),
    Variable("application_name", "", printable, "What the client calls itself.", reported=True),
    Variable("bytea_output", "hex", only("hex", one_of(("escape", "hex"))), "How bytea is shown."),
    Variable("client_encoding", "UTF8", utf8, "The client's encoding.", reported=True),
    Variable(
        "client_min_messages",
        "notice",
        one_of(
            ("debug5", "debug4", "debug3", "debug2", "debug1", "log", "notice", "warning", "error"),
            {"debug": "debug2", "info": "info"},
        ),
        "Least severity of the messages that are sent.",
    ),
    Variable("cluster", "default", text, "Accepted for compatibility; there is one cluster."),
    Variable("database", "materialize", text, "The current database."),
    Variable(
        "datestyle",
        "ISO, MDY",
        datestyle,
        "How dates are shown.",
        reported=True,
    ),
    Variable(
        "default_transaction_isolation",
        "strict serializable",
        isolation,
        "Isolation of new transactions.",
    ),
    Variable(
        "default_transaction_read_only",
        "off",
        boolean,
        "Whether new transactions refuse writes.",
        reported=True,
    ),
    Variable("extra_float_digits", "1", float_digits, "Positive; floats are always shown shortest-exact."),
    Variable(
        "idle_in_transaction_session_timeout",
        "0",
        duration,
        "Ends a session that idles in a transaction.",
    ),
    Variable("idle_session_timeout", "0", duration, "Ends a session that idles."),
    Variable("in_hot_standby", "off", text, "Always off.", reported=True, read_only=True),
    Variable("integer_datetimes", "on", text, "Always on.", reported=True, read_only=True),
    Variable(
        "intervalstyle",
        "postgres",
        only("postgres", one_of(("postgres", "postgres_verbose", "sql_standard", "iso_8601"))),
        "How intervals are shown.",
        reported=True,
    ),
    Variable("is_superuser", "off", text, "Whether the role is a superuser.", reported=True, read_only=True),
    Variable("max_identifier_length", str(MAX_IDENTIFIER_LENGTH), text, "In bytes.", read_only=True),
    Variable(
        "password_encryption",
        "scram-sha-256",
        only("scram-sha-256", one_of(("md5", "scram-sha-256"))),
        "What is kept of a password.",
    ),
    Variable("role", "none", text, "Who the session acts as, if it is not who logged in."),
    Variable(
        "search_path",
        "public",
        schemas,
        "Schemas in which unqualified names are looked up.",
        reported=True,
    ),
    Variable("server_encoding", "UTF8", text, "Always UTF8.", reported=True, read_only=True),
    Variable(
        "server_version",
        SERVER_VERSION,
        text,
        "PostgreSQL's version that we follow.",
        reported=True,
        read_only=True,
    ),
    Variable("server_version_num", SERVER_VERSION_NUM, text, "The same as a number.", read_only=True),
    Variable("max_index_keys", "32", text, "Columns of a key, as drivers ask for it.", read_only=True),
    Variable(
        "session_authorization",
        "materialize",
        text,
        "The session's role.",
        reported=True,
        read_only=True,
    ),
    Variable("standard_conforming_strings", "on", only("on", boolean), "Always on.", reported=True),
    Variable("statement_timeout", "0", duration, "Ends a statement that takes longer; 0 is never."),
    Variable("timezone", "UTC", timezone, "Time zone in which timestamptz is shown.", reported=True),
    Variable(
        "transaction_isolation",
        "strict serializable",
        isolation,
        "Isolation of this session's transactions.",
    ),
    Variable("transaction_read_only", "off", boolean, "Whether this transaction refuses writes."),
    *_unused(),
]

# Without ALTER SYSTEM SET, the value of the server's option `--retain-history`.
RETAIN_PARAMETER = "default_retain_history"

_SYSTEM = [
    Variable(
        "max_result_size",
        str(1 << 30),
        integer(1 << 10, 1 << 40),
        "Bytes that one SELECT may return (not COPY).",
    ),
    Variable(
        "max_transaction_size",
        str(1 << 30),
        integer(1 << 10, 1 << 40),
        "Bytes of rows that one transaction may hold before it commits.",
    ),
    Variable(
        "max_subscribe_buffer_size",
        str(64 << 20),
        integer(0, 1 << 40),
        "Bytes of changes that may wait for one SUBSCRIBE whose client reads slowly.",
    ),
    Variable("max_connections", "5000", integer(1, 100_000), "Sessions at one time."),
    Variable(
        RETAIN_PARAMETER,
        "1h",
        duration,
        "How far back AS OF reaches unless the relation says otherwise.",
    ),
    Variable(
        "enable_within_timestamp_order_by_in_subscribe",
        "on",
        boolean,
        "Whether SUBSCRIBE takes WITHIN TIMESTAMP ORDER BY.",
    ),
    Variable(
        "enable_envelope_upsert_in_subscribe",
        "on",
        boolean,
        "Whether SUBSCRIBE takes ENVELOPE UPSERT.",
    ),
    Variable(
        "enable_envelope_debezium_in_subscribe",
        "on",
        boolean,
        "Whether SUBSCRIBE takes ENVELOPE DEBEZIUM.",
    ),
    Variable(
        "enable_upsert_order_by",
        "on",
        boolean,
        "Whether new sources may have ENVELOPE UPSERT (ORDER BY ...).",
    ),
]

# SET and SHOW have special syntax for these.
ALIASES = {
    "time zone": "timezone",
    "transaction isolation level": "transaction_isolation",
    "schema": "search_path",
}

# The variables whose value is a list.
_LISTS = frozenset({"datestyle", "search_path"})

SESSION_VARIABLES: Mapping[str, Variable] = {v.name: v for v in _SESSION}
_DEFAULTS = {v.name: v.default for v in _SESSION}
SYSTEM_PARAMETERS: Mapping[str, Variable] = {v.name: v for v in _SYSTEM}
# As clients spell them in ParameterStatus.
REPORTED_NAMES = {"datestyle": "DateStyle", "intervalstyle": "IntervalStyle", "timezone": "TimeZone"}


# Custom variables, as in PostgreSQL: my_app.user_id.
MAX_OWN = 1_000
_OWN_NAME = re.compile(r"[^\W\d][\w$]*(?:\.[^\W\d][\w$]*)+")


class VariableRow(NamedTuple):
    """A variable of a session: its value, its built-in default (`boot`), and its RESET value."""

    name: str
    setting: str
    boot: str
    reset: str
    description: str
    read_only: bool


def unknown_parameter(name: str) -> UndefinedObject:
    return UndefinedObject(
        f'unrecognized configuration parameter "{name}"', hint="SHOW ALL lists the parameters."
    )


class Variables:
    """One session's variables. `SET LOCAL` values last until the transaction ends; a rolled back
    transaction also takes back its plain SETs, as in PostgreSQL."""

    def __init__(
        self, initial: Mapping[str, str], computed: Mapping[str, Callable[[], str]] | None = None
    ) -> None:
        # Variables whose value follows from others.
        self._computed = dict(computed or {})
        # The client's start-up settings: RESET restores them.
        self._asked = dict(initial)
        # The values set since. (With thousands of sessions, most are empty: each must be small.)
        self._values: dict[str, str] = {}
        self._local: dict[str, str] = {}
        self._own: dict[str, Variable] = {}
        # The values at the start of the transaction, for a rollback. The same object while nothing was set:
        # `_values` is never modified, only replaced.
        self._saved: dict[str, str] | None = None
        # Incremented whenever a value may have changed: earlier plans are made again.
        self.generation = 0

    def find(self, name: str) -> Variable:
        key = ALIASES.get(name.lower(), name.lower())
        variable = SESSION_VARIABLES.get(key) or self._own.get(key)
        if variable is None:
            raise unknown_parameter(name)
        return variable

    def _make(self, name: str) -> None:
        """A custom variable, which exists once it was set: its name has a dot in it."""
        key = name.lower()
        if "." not in key or key in self._own:
            return
        if _OWN_NAME.fullmatch(key) is None:
            raise TidemillError(
                f'invalid configuration parameter name "{name}"',
                detail="Custom parameter names must be two or more simple identifiers separated by dots.",
                sqlstate="42602",
            )
        if len(self._own) >= MAX_OWN:
            raise LimitExceeded(f"too many variables of one's own (limit {MAX_OWN})")
        self._own[key] = Variable(key, "", text, "")

    def start_own(self, name: str, value: str) -> None:
        """A custom variable that the client set when it connected."""
        self._make(name)
        self._asked[name.lower()] = value

    def get(self, name: str) -> str:
        if (compute := self._computed.get(name)) is not None:
            return compute()
        # Read several times for each statement: no calls here.
        found = self._local.get(name)
        if found is None:
            found = self._values.get(name)
            if found is None:
                found = self._asked.get(name)
                if found is None:
                    found = _DEFAULTS.get(name)
        return self.find(name).default if found is None else found

    def _reset_value(self, name: str) -> str:
        found = self._asked.get(name)
        return self.find(name).default if found is None else found

    def set(self, name: str, value: str, *, local: bool = False) -> Variable:
        self._make(name)
        variable = self.find(name)
        if variable.read_only:
            raise CannotChange(f'parameter "{variable.shown}" cannot be changed')
        checked = variable.checked(value)
        self.generation += 1
        if local:
            self._local[variable.name] = checked
        else:
            self._local.pop(variable.name, None)
            self._values = {**self._values, variable.name: checked}
        return variable

    def reset(self, name: str, *, local: bool = False) -> Variable:
        variable = self.find(name)
        if variable.read_only:
            raise CannotChange(f'parameter "{variable.shown}" cannot be changed')
        self.generation += 1
        if local:
            self._local[variable.name] = self._reset_value(variable.name)
        else:
            self._local.pop(variable.name, None)
            self._values = {name: value for name, value in self._values.items() if name != variable.name}
        return variable

    def reset_all(self, *, role: bool = False) -> None:
        """RESET ALL leaves the role as it is, DISCARD ALL does not (`role`)."""
        self.generation += 1
        kept = None if role else self._values.get("role")
        self._local.clear()
        self._values = {} if kept is None else {"role": kept}

    def begin(self) -> None:
        self._saved = self._values

    def end(self, *, committed: bool) -> None:
        if not committed:
            self.take_back()
        elif self._local:
            self._forget_local()
        self._saved = None

    def take_back(self) -> None:
        """Reverts the settings of the transaction."""
        if self._saved is not None and self._saved != self._values:
            self._values = self._saved
            self.generation += 1
        self._forget_local()

    def _forget_local(self) -> None:
        if self._local:
            self._local.clear()
            self.generation += 1

    def snapshot(self) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """All values as they are, for a savepoint."""
        return dict(self._values), dict(self._local)

    def restore(self, saved: tuple[Mapping[str, str], Mapping[str, str]]) -> None:
        if saved != (self._values, self._local):
            self._values, self._local = dict(saved[0]), dict(saved[1])
            self.generation += 1

    def all(self) -> Iterator[tuple[Variable, str]]:
        for variable in _SESSION:
            yield variable, self.get(variable.name)

    def rows(self) -> Iterator[VariableRow]:
        """For pg_settings."""
        for v, value in self.all():
            reset = value if v.name in self._computed else self._reset_value(v.name)
            yield VariableRow(v.shown, value, v.default, reset, v.description, v.read_only)

    def reported(self) -> dict[str, str]:
        return {v.shown: self.get(v.name) for v in _SESSION if v.reported}

    def milliseconds(self, name: str) -> int:
        value = self.get(name)
        return 0 if value == "0" else duration_ms(name, value)

    def flag(self, name: str) -> bool:
        return self.get(name) == "on"

    def search_path(self) -> list[str]:
        """The schemas of `search_path`, folded and unquoted; `$user` is the session's role."""
        role = self.get("role")
        user = self.get("session_authorization") if role == "none" else role
        return [user if name == "$user" else name for name in parse_search_path(self.get("search_path"))]


def setting_text(name: str, values: Sequence[str]) -> str:
    """The value of SET, as the variable stores it: schemas are names, one by one."""
    known = ALIASES.get(name.lower(), name.lower())
    if len(values) > 1 and known not in _LISTS:
        raise InvalidValue(f"SET {known} takes only one argument", sqlstate="22023")
    return ", ".join(map(quote_ident, values) if known == "search_path" else values)


def parse_search_path(text: str) -> list[str]:
    names: list[str] = []
    for item in re.findall(r'\s*"(?:[^"]|"")*"\s*|[^,]+', text):
        item = item.strip()
        if item.startswith('"') and item.endswith('"') and len(item) >= 2:
            names.append(item[1:-1].replace('""', '"'))
        elif item:
            names.append(item.lower())
    return names
