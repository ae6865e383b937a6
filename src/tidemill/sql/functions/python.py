"""Arrow functions that run in Spark's Python tasks, where Spark has no function with PostgreSQL's result.

The owner of the Spark session calls `register` once; bound trees then call them by name. They add a Python
worker to the job, so use them only where Spark's own functions cannot do the work: parts of jsonb with their
original digits, the shortest text of a float. Spark evaluates them for every row, also in a branch of CASE
that is not taken: they must never raise. They cannot be used inside a lambda.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidemill.sql.functions import any_texts
from tidemill.sql.functions.rowwise import carrier_type, carriers, evaluate
from tidemill.types.json import canonical_json
from tidemill.types.model import FLOAT4, FLOAT8, INTERVAL, SqlType
from tidemill.types.wire.text import encode_text


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """`returns` is Spark's name of the result type."""

    name: str
    returns: str
    run: Callable[..., pa.Array]


def _float4_text(values: pa.Array) -> pa.Array:
    return encode_text(values, FLOAT4).cast(pa.string())


def _float8_text(values: pa.Array) -> pa.Array:
    return encode_text(values, FLOAT8).cast(pa.string())


def _interval_text(values: pa.Array) -> pa.Array:
    return encode_text(values, INTERVAL).cast(pa.string())


class _Number(str):
    """A number with its original digits, which json would convert to a float."""

    __slots__ = ()


_DECODER = json.JSONDecoder(parse_float=_Number, parse_int=_Number)


def _member(document: str | None, key: Any) -> Any:
    """The member `key` (a name, or an array index, from the end if negative); _MISSING if absent."""
    if document is None or key is None:
        return _MISSING
    value: Any = _DECODER.decode(document)
    if isinstance(key, str):
        return value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
    if not isinstance(value, list):
        # A scalar counts as an array of one.
        value = [] if isinstance(value, dict) else [value]
    return value[key] if -len(value) <= key < len(value) else _MISSING


_MISSING: Any = object()


def _print(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {_print(v)}" for k, v in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_print, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _element(document: str | None, key: Any) -> str | None:
    value = _member(document, key)
    return None if value is _MISSING else canonical_json(_print(value))


def _element_text(document: str | None, key: Any) -> str | None:
    value = _member(document, key)
    if value is _MISSING or value is None:
        return None
    if isinstance(value, str) and not isinstance(value, _Number):
        return value
    return canonical_json(_print(value))


def _by_row(function: Callable[[str | None, Any], str | None]) -> Callable[[pa.Array, pa.Array], pa.Array]:
    """Documents often repeat; equal pairs are computed once."""

    def run(documents: pa.Array, keys: pa.Array) -> pa.Array:
        known: dict[tuple[str | None, Any], str | None] = {}
        found: list[str | None] = []
        for pair in zip(documents.to_pylist(), keys.to_pylist(), strict=True):
            if pair not in known:
                known[pair] = function(*pair)
            found.append(known[pair])
        return pa.array(found, pa.string())

    return run


def _jsonb_get(documents: pa.Array, keys: pa.Array) -> pa.Array:
    return _by_row(_element)(documents, keys)


def _jsonb_get_text(documents: pa.Array, keys: pa.Array) -> pa.Array:
    return _by_row(_element_text)(documents, keys)


def _by_key(result: SqlType) -> Callable[..., pa.Array]:
    """All row functions (`rowwise`) with this result type."""

    def run(keys: pa.Array, *columns: pa.Array) -> pa.Array:
        return evaluate(result, keys, columns)

    return run


FUNCTIONS: Sequence[PythonFunction] = (
    PythonFunction("tm_float4_text", "string", _float4_text),
    PythonFunction("tm_float8_text", "string", _float8_text),
    PythonFunction("tm_interval_text", "string", _interval_text),
    PythonFunction("tm_jsonb_get", "string", _jsonb_get),
    PythonFunction("tm_jsonb_get_text", "string", _jsonb_get_text),
    PythonFunction("tm_text", "string", any_texts.text),
    PythonFunction("tm_texts", "array<string>", any_texts.texts),
    PythonFunction("tm_to_jsonb", "string", any_texts.to_jsonb),
    *(PythonFunction(name, carrier_type(t), _by_key(t)) for name, t in carriers().items()),
)


def register(session: Any) -> None:
    """Registers the functions in a Spark session. Names that start with tm_ are not in the allow-list:
    queries can call them only through the binder.
    """
    from pyspark.sql.functions import arrow_udf

    for function in FUNCTIONS:
        make: Any = arrow_udf
        session.udf.register(function.name, make(function.run, function.returns))
