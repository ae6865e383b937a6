"""The request of a subscription, and its SQL text for the first connection and after a reconnect.

Pure. A `SubscriptionRequest` is made once from the arguments of `subscribe` or `live_table`. The course
of the subscription gets the statement from it, with the time to continue from, if there is one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from tidemill.errors import InvalidValue

Envelope = Literal["diff", "upsert", "debezium"]
# A time: milliseconds since 1970 as the server counts them, or a datetime with a time zone.
Moment = int | datetime

_NAME = r'(?:[^\W\d][\w$]*|"(?:[^"]|"")+")'
_RELATION = re.compile(rf"\s*{_NAME}(?:\s*\.\s*{_NAME}){{0,2}}\s*")
# Matches a whole SUBSCRIBE statement, but not a relation or column with that name.
_STATEMENT = re.compile(r'subscribe(?:\s+["\w]|\s*\()', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Resume:
    """Everything up to and including `after` was received; only later changes are wanted."""

    after: int


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """`subscribe` explains the fields."""

    target: str
    envelope: Envelope = "diff"
    key: tuple[str, ...] = ()
    order_by: tuple[str, ...] = ()
    snapshot: bool = True
    as_of: str | None = None
    up_to: str | None = None

    def sql(self, resume: Resume | None = None) -> str:
        """The SUBSCRIBE, always with PROGRESS: without it the client cannot know when a time is complete."""
        snapshot = self.snapshot and resume is None
        parts = [f"SUBSCRIBE {self.target}", f"WITH (SNAPSHOT = {str(snapshot).lower()}, PROGRESS = true)"]
        as_of = self.as_of if resume is None else f"AS OF {resume.after}"
        parts += [clause for clause in (as_of, self.up_to) if clause is not None]
        if self.envelope != "diff":
            parts.append(f"ENVELOPE {self.envelope.upper()} (KEY ({', '.join(map(quoted, self.key))}))")
        elif self.order_by:
            parts.append(f"WITHIN TIMESTAMP ORDER BY {', '.join(self.order_by)}")
        return "\n".join(parts)

    def copy(self, resume: Resume | None, options: str) -> str:
        return f"COPY ({self.sql(resume)}\n) TO STDOUT WITH ({options})"


def request(
    query: str,
    *,
    key: Sequence[str] = (),
    envelope: Envelope | None = None,
    order_by: str | Sequence[str] = (),
    snapshot: bool = True,
    as_of: Moment | Literal["earliest"] | None = None,
    at_least: bool = False,
    up_to: Moment | Literal["latest"] | None = None,
) -> SubscriptionRequest:
    """Check and build a request before anything is sent. The server's message about contradictory options
    would be hard to understand."""
    if isinstance(key, str):
        raise InvalidValue(f'key must be a list of column names, not "{key}"', hint=f'Write key=["{key}"].')
    order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
    chosen: Envelope = envelope or ("upsert" if key and not order else "diff")
    if chosen not in ("diff", "upsert", "debezium"):
        raise InvalidValue(f'envelope must be "diff", "upsert" or "debezium", not "{chosen}"')
    if chosen != "diff" and not key:
        raise InvalidValue(f'envelope "{chosen}" needs a key', hint='Name its columns: key=["id"].')
    if chosen != "diff" and order:
        raise InvalidValue(f'envelope "{chosen}" has the order of its key', hint="Leave order_by out.")
    if at_least and (as_of is None or as_of == "earliest"):
        raise InvalidValue("at_least needs a time in as_of")
    return SubscriptionRequest(
        target(query),
        chosen,
        tuple(key),
        order,
        snapshot,
        _bound("AS OF AT LEAST" if at_least else "AS OF", as_of, "earliest"),
        _bound("UP TO", up_to, "latest"),
    )


def target(query: str) -> str:
    """The target of SUBSCRIBE: a relation's name unchanged, anything else as a query in parentheses. The line
    end before the closing parenthesis keeps a final comment from hiding it."""
    text = query.strip().rstrip(";").rstrip()
    if not text:
        raise InvalidValue("nothing to subscribe to: the query is empty")
    if _STATEMENT.match(text):
        raise InvalidValue(
            "subscribe() and live_table() take the query alone",
            hint="Leave SUBSCRIBE out; its options are arguments here.",
        )
    return text if _RELATION.fullmatch(text) else f"({text}\n)"


def relation_name(name: str) -> str:
    """A name as in SQL, with or without its schema; raises for anything else."""
    if not _RELATION.fullmatch(name):
        raise InvalidValue(f'"{name}" is no name', hint="Quote a name with other letters: '\"my name\"'.")
    return name.strip()


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _bound(words: str, at: Moment | str | None, named: str) -> str | None:
    if at is None:
        return None
    if isinstance(at, str):
        if at.lower() != named:
            raise InvalidValue(f'{words}: "{at}" is neither a time nor "{named}"')
        return f"{words} {named.upper()}"
    return f"{words} {milliseconds(at)}"


def milliseconds(at: Moment) -> int:
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise InvalidValue(f"{at} has no time zone", hint="Use datetime.now(UTC), or milliseconds.")
        return int(at.timestamp() * 1000)
    return int(at)
