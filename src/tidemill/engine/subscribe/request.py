"""A subscription request by fields, converted into the statement that SUBSCRIBE would be.

The statement is built as a tree, never as text, so that the client's query can only be a name or a query.
Called by the session for `api.Session.prepare_subscribe`. Pure.
"""

from __future__ import annotations

from typing import Literal

from sqlglot import exp

from tidemill.engine.api import ConsumeRequest, SubscribeRequest
from tidemill.errors import InvalidValue
from tidemill.sql import ast
from tidemill.sql.parse import ParsedStatement
from tidemill.sql.relation import parse_relation


def subscribe_statement(request: SubscribeRequest | ConsumeRequest) -> ParsedStatement:
    """The statement of the request. Raises if the request is invalid; positions are those in its query."""
    if isinstance(request, ConsumeRequest):
        name = parse_relation(request.name)
        if not isinstance(name, ast.Name):
            raise InvalidValue("a durable subscription is read by its name")
        at = None if request.position is None else ast.Expr(exp.Literal.number(request.position))
        return ParsedStatement(ast.ReadSubscription(name, at, request.share), request.name, 0)
    statement = ast.Subscribe(
        parse_relation(request.query),
        _output(request),
        request.snapshot,
        request.progress,
        _as_of(request.as_of),
        _up_to(request.up_to),
    )
    return ParsedStatement(statement, request.query, 0)


def _output(request: SubscribeRequest) -> ast.SubscribeOutput:
    keys = tuple(ast.Ident(key) for key in request.keys)
    match request.envelope:
        case "upsert" if keys:
            return ast.EnvelopeUpsert(keys)
        case "debezium" if keys:
            return ast.EnvelopeDebezium(keys)
        case None if not keys:
            return ast.SubscribePlain()
        case None:
            raise InvalidValue("a key was given without an envelope", hint="Give both or none.")
        case _:
            raise InvalidValue("an envelope needs a key", hint="Name the key's columns.")


def _as_of(time: str | None) -> ast.AsOf | Literal[ast.TimeBound.EARLIEST] | None:
    if time is None:
        return None
    if time.upper() == ast.TimeBound.EARLIEST.value:
        return ast.TimeBound.EARLIEST
    return ast.AsOf(_time(time))


def _up_to(time: str | None) -> ast.Expr | Literal[ast.TimeBound.LATEST] | None:
    if time is None:
        return None
    if time.upper() == ast.TimeBound.LATEST.value:
        return ast.TimeBound.LATEST
    return _time(time)


def _time(text: str) -> ast.Expr:
    """A text constant. Whatever it contains is cast to a time, never parsed as an expression."""
    return ast.Expr(exp.Literal.string(text))
