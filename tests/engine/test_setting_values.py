"""What each setting takes, beside PostgreSQL: values, and the words, hints and details of errors.

Every setting that both have is given the same values, good and bad ones of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql

from support.embedded import postgres_server
from tidemill.engine.session.setting_checks import CannotChange
from tidemill.engine.session.variables import SESSION_VARIABLES
from tidemill.errors import TidemillError

VALUES = (
    *(
        "nonsense",
        "",
        "default",
        "local",
        "on",
        "off",
        "ON",
        "tr",
        "o",
        "of",
        " on ",
        "1",
        "0",
        "-1",
        "1.5",
        ".5",
    ),
    *("010", "0x10", "0x", "1e3", "1e400", "inf", "nan", "-99999999999", "99999999999", "1e20"),
    *("1s", "1.5h", "1 MB", "10x", "100000d", "1.0001MB", "70 kB", "1us", "1500us", "90min", "1 B", "a,,b"),
    *("iso", "iso, ymd", "hex", "escape", "md5", "latin1", "utf-8", "debug", "info", "INFO", "sql_standard"),
    *("é", "a\tb\x7fc", "日本 \\x41"),
    *("serializable", "Read Committed", "local", "heap", "document", "replica", "partition", "auto"),
)
# Not in PostgreSQL, or not given to its SET; roles are another matter.
NOT_COMPARED = {"cluster", "database", "role", "session_authorization", "subscribe_key_violation"}
# Zones are kept by a name that there is, and offsets that have none are refused; levels of isolation are our
# own. What errors say of other values is the same.
OWN_VALUES = {"timezone", "transaction_isolation", "default_transaction_isolation"}


class _Postgres:
    """A session of a PostgreSQL."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._session: psycopg.Connection[Any] | None = None

    def asked(self, name: str, value: str) -> str | tuple[str | None, ...]:
        """What SHOW shows after SET; or state, words, detail and hint of the error. Asked again when a
        timeout of some milliseconds, which was just set, ends the query or the session."""
        while True:
            session = self._session
            if session is None or session.closed:
                session = self._session = psycopg.connect(self._uri, autocommit=True)
            found = _asked(session, name, value)
            if not session.closed and not (isinstance(found, tuple) and found[0] == "57014"):
                return found

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


@pytest.fixture(scope="module")
def postgres() -> Iterator[_Postgres]:
    with postgres_server() as uri, closing(_Postgres(uri)) as found:
        yield found


@pytest.mark.parametrize("name", sorted(set(SESSION_VARIABLES) - NOT_COMPARED))
def test_a_setting_takes_what_it_takes_in_postgresql(name: str, postgres: _Postgres) -> None:
    variable = SESSION_VARIABLES[name]
    for value in VALUES:
        theirs = postgres.asked(name, value)
        ours = _ours(name, value)
        if isinstance(ours, CannotChange):
            # What is refused would be taken there: but for what nobody can change.
            assert isinstance(theirs, str) or variable.read_only, (value, theirs)
        elif variable.read_only:
            assert isinstance(theirs, tuple) and theirs[0] == "55P02", value
        elif name in OWN_VALUES and isinstance(theirs, str):
            continue
        else:
            assert ours == theirs, value


def _asked(postgres: psycopg.Connection[Any], name: str, value: str) -> str | tuple[str | None, ...]:
    try:
        with postgres.transaction(force_rollback=True):
            if name == "search_path":  # SET takes names, one by one
                postgres.execute("SELECT set_config(%s, %s, false)", [name, value])
            else:
                postgres.execute(sql.SQL("SET {} = {}").format(sql.Identifier(name), value))
            row = postgres.execute(sql.SQL("SHOW {}").format(sql.Identifier(name))).fetchone()
            assert row is not None
            return row[0]
    except psycopg.Error as e:
        d = e.diag
        return d.sqlstate, d.message_primary, d.message_detail, d.message_hint


def _ours(name: str, value: str) -> str | tuple[str | None, ...] | CannotChange:
    try:
        return SESSION_VARIABLES[name].checked(value)
    except CannotChange as e:
        return e
    except TidemillError as e:
        hint = e.hint
        if name in OWN_VALUES and hint is not None:
            hint = hint.replace("strict serializable, ", "")
        return e.sqlstate, e.primary, e.detail, hint
