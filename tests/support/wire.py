"""Statements over libpq as they are: simple or extended protocol, text results, notices and errors by field.

For tests that must see what the server sends, without a driver's conversions in between.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from psycopg import pq
from psycopg.pq import abc

SECONDS = 300.0


@dataclass
class Failure:
    """An ErrorResponse."""

    sqlstate: str
    message: str
    detail: str | None
    hint: str | None
    position: str | None


@dataclass
class Answer:
    """What one statement returned. `names` is None where it returns no rows."""

    tag: str
    names: list[str] | None = None
    rows: list[list[str | None]] = field(default_factory=list)
    # Type oids of the columns, for right-aligning numbers as psql does.
    oids: list[int] = field(default_factory=list)


@dataclass
class Answers:
    """All that came back for one query: the statements' answers up to the first failure, and the notices."""

    answers: list[Answer]
    failure: Failure | None
    notices: list[str]


class Wire:
    """One connection."""

    def __init__(self, dsn: str) -> None:
        self._conn = pq.PGconn.connect(dsn.encode())
        if self._conn.status != pq.ConnStatus.OK:
            raise ConnectionError(self._conn.error_message.decode(errors="replace").strip())
        self._conn.nonblocking = 1
        self._notices: list[str] = []
        self._conn.notice_handler = self._notice

    def _notice(self, result: object) -> None:
        assert isinstance(result, pq.PGresult)
        severity = (result.error_field(pq.DiagnosticField.SEVERITY) or b"").decode()
        message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode()
        self._notices.append(f"{severity}: {message}")

    def run(self, sql: str, params: Sequence[str | None] | None = None, seconds: float = SECONDS) -> Answers:
        """Simple protocol, or extended where `params` is given. Raises on a lost connection and after
        `seconds`."""
        self._notices.clear()
        if params is None:
            self._conn.send_query(sql.encode())
        else:
            self._conn.send_query_params(sql.encode(), [None if p is None else p.encode() for p in params])
        deadline = time.monotonic() + seconds
        self._wait(deadline, flush=True)
        answers: list[Answer] = []
        failure: Failure | None = None
        while True:
            self._wait(deadline)
            result = self._conn.get_result()
            if result is None:
                return Answers(answers, failure, list(self._notices))
            if result.status == pq.ExecStatus.FATAL_ERROR:
                failure = _failure(result)
            elif result.status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT):
                raise AssertionError("COPY is not for text tests: use psycopg")
            else:
                answers.append(_answer(result))

    def close(self) -> None:
        self._conn.finish()

    def _wait(self, deadline: float, *, flush: bool = False) -> None:
        """Until the query is sent (`flush`) or a result can be taken without blocking."""
        while self._conn.flush() if flush else self._conn.is_busy():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError("the server did not answer in time")
            writable = [self._conn.socket] if flush else []
            select.select([self._conn.socket], writable, [], left)
            self._conn.consume_input()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _failure(result: abc.PGresult) -> Failure:
    def get(name: pq.DiagnosticField) -> str | None:
        return _text(result.error_field(name))

    field = pq.DiagnosticField
    message = get(field.MESSAGE_PRIMARY) or (result.error_message.decode(errors="replace").strip())
    return Failure(
        get(field.SQLSTATE) or "",
        message,
        get(field.MESSAGE_DETAIL),
        get(field.MESSAGE_HINT),
        get(field.STATEMENT_POSITION),
    )


def _answer(result: abc.PGresult) -> Answer:
    tag = (result.command_status or b"").decode()
    if result.status != pq.ExecStatus.TUPLES_OK:
        return Answer(tag)
    columns = range(result.nfields)
    return Answer(
        tag,
        [(result.fname(c) or b"").decode() for c in columns],
        [[_text(result.get_value(r, c)) for c in columns] for r in range(result.ntuples)],
        [result.ftype(c) for c in columns],
    )
