"""The body of `POST /api/sql`: parses JSON into statements with parameters. Raises an error for an invalid
body."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from tidemill.engine.api import Param
from tidemill.errors import LimitExceeded, TidemillError
from tidemill.server.http.limits import MAX_QUERIES
from tidemill.server.limits import MAX_QUERY_BYTES


class BadRequest(TidemillError):
    """The body is invalid; answered with 400."""

    sqlstate = "08P01"


@dataclass(frozen=True, slots=True)
class Script:
    """`{"query": "..."}`: any number of statements, without parameters."""

    text: str


@dataclass(frozen=True, slots=True)
class Single:
    """One of `{"queries": [...]}`: one statement, with parameters in text form."""

    text: str
    params: tuple[Param, ...]


_SHAPE = 'Send {"query": "..."} or {"queries": [{"query": "...", "params": ["1", null]}]}.'


def parse_body(body: bytes) -> Sequence[Script | Single]:
    """Raises BadRequest; a query that is too long is its statement's error (54000)."""
    return queries_of(parse_object(body, _SHAPE))


def parse_object(body: bytes | str, hint: str) -> dict[str, Any]:
    """The JSON object of the body, with its numbers as they are written."""
    try:
        # Numbers keep their text: a parameter must not lose digits in a double.
        content = json.loads(
            body, parse_float=RawNumber, parse_int=RawNumber, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as e:
        raise BadRequest("the request's body is not JSON", detail=f"{e}.", hint=hint) from e
    if not isinstance(content, dict):
        raise BadRequest("the request's body is not a JSON object", hint=hint)
    return cast(dict[str, Any], content)


def queries_of(fields: dict[str, Any]) -> Sequence[Script | Single]:
    """The statements of such an object."""
    if set(fields) == {"query"}:
        return [Script(_query(fields["query"]))]
    if set(fields) != {"queries"}:
        raise BadRequest('the request must hold either "query" or "queries" and nothing else', hint=_SHAPE)
    queries = fields["queries"]
    if not isinstance(queries, list):
        raise BadRequest('"queries" is not an array', hint=_SHAPE)
    items = cast(list[Any], queries)
    if len(items) > MAX_QUERIES:
        raise LimitExceeded(f"more than {MAX_QUERIES} queries in one request")
    return [_single(item) for item in items]


class RawNumber(str):
    """A JSON number as text."""


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _query(value: object) -> str:
    if not isinstance(value, str) or isinstance(value, RawNumber):
        raise BadRequest('"query" is not a string', hint=_SHAPE)
    if len(value.encode("utf-8", "surrogatepass")) > MAX_QUERY_BYTES:
        raise LimitExceeded(f"the query is longer than {MAX_QUERY_BYTES} bytes")
    if "\0" in value or any("\ud800" <= c <= "\udfff" for c in value):
        raise BadRequest("the query holds a NUL or half of a surrogate pair")
    return value


def _single(item: object) -> Single:
    if not isinstance(item, dict) or not {"query"} <= set(cast(dict[str, Any], item)) <= {"query", "params"}:
        raise BadRequest('each of "queries" must be an object with "query" and perhaps "params"', hint=_SHAPE)
    fields = cast(dict[str, Any], item)
    params = fields.get("params", [])
    if not isinstance(params, list):
        raise BadRequest('"params" is not an array', hint=_SHAPE)
    return Single(_query(fields["query"]), tuple(_param(value) for value in cast(list[Any], params)))


def _param(value: object) -> Param:
    """The text form of a parameter: strings and numbers as written, booleans as in PostgreSQL, arrays and
    objects as JSON (for jsonb)."""
    if value is None:
        return Param(None)
    if isinstance(value, bool):
        return Param(b"true" if value else b"false")
    try:
        text = value if isinstance(value, str) else _json(value)
        return Param(text.encode("utf-8"))
    except RecursionError:
        raise BadRequest("a parameter is nested too deeply") from None
    except UnicodeEncodeError:
        raise BadRequest("a parameter holds half of a surrogate pair") from None


def _json(value: object) -> str:
    """Back to JSON text, numbers as they came."""
    if isinstance(value, RawNumber):
        return str(value)
    if isinstance(value, dict):
        items = cast(dict[str, Any], value).items()
        return "{" + ",".join(f"{json.dumps(k)}:{_json(v)}" for k, v in items) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_json(v) for v in cast(list[Any], value)) + "]"
    return json.dumps(value)
