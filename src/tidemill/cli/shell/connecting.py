"""Connecting to a server from user input; asks for the password when one is needed."""

from __future__ import annotations

import getpass
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidemill.client.target import conninfo, failed
from tidemill.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server, a database and a user. `password` is kept for the next connection."""

    url: str = ""
    host: str | None = None
    port: str | None = None
    user: str | None = None
    dbname: str | None = None
    password: str | None = None

    def conninfo(self, application: str = "tidemill sql") -> str:
        given = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "dbname": self.dbname,
            "password": self.password,
            "client_encoding": "UTF8",
            "application_name": application,
        }
        return conninfo(self.url, given)

    def moved(self, words: list[str]) -> ServerAddress:
        """`\\c [database [user [host [port]]]]`, where - keeps the present value, or a URL or connection
        string."""
        if words and is_conninfo(words[0]):
            return ServerAddress(url=words[0])
        now = conninfo_to_dict(self.conninfo())
        names = ("dbname", "user", "host", "port")
        changed = {name: word for name, word in zip(names, words, strict=False) if word != "-"}
        # The password belongs to one user and server, and is not sent to another server.
        elsewhere = any(str(now.get(n) or "") != w for n, w in changed.items() if n != "dbname")
        base = conninfo_to_dict(self.url) if self.url else {}
        if elsewhere:
            base.pop("password", None)
            base.pop("hostaddr", None)
        url = make_conninfo("", **base)
        return replace(self, url=url, password=None if elsewhere else self.password, **changed)


def is_conninfo(text: str) -> bool:
    return "://" in text or "=" in text


def connected(
    place: ServerAddress,
    *,
    ask: bool = False,
    may_ask: bool = True,
    question: Callable[[str], str] | None = None,
) -> tuple[psycopg.Connection[Any], ServerAddress]:
    """Connect; return the connection, and the address with the password that was used. `ask` asks before the
    first attempt; `may_ask` allows asking if the server wants a password and none is known."""
    question = question or asked
    if ask:
        place = replace(place, password=question(_prompt(place)))
    while True:
        text = place.conninfo()
        try:
            return psycopg.connect(text, autocommit=True), place
        except psycopg.OperationalError as e:
            needed = e.pgconn is not None and bool(e.pgconn.needs_password)
            if not (may_ask and needed and place.password is None and sys.stdin.isatty()):
                raise failed(text, e) from None
        place = replace(place, password=question(_prompt(place)))


def asked(prompt: str) -> str:
    """Read a password from the terminal without echo. If echo cannot be turned off, nothing is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            return getpass.getpass(prompt)
        except (getpass.GetPassWarning, EOFError):
            raise InvalidValue(
                "there is no terminal to ask for a password on", hint="PGPASSWORD or ~/.pgpass can have it."
            ) from None


def _prompt(place: ServerAddress) -> str:
    user = conninfo_to_dict(place.conninfo()).get("user") or ""
    return f"Password for user {user}: " if user else "Password: "
