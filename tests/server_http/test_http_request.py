"""The body of a request: whatever comes, it is parsed or refused; what is parsed says what was sent."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.engine.api import Param
from tidemill.errors import TidemillError
from tidemill.server.http.request import BadRequest, Script, Single, parse_body

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)


@given(st.binary())
def test_any_bytes_are_parsed_or_refused(body: bytes) -> None:
    try:
        parse_body(body)
    except TidemillError:
        pass


@given(VALUES)
def test_any_json_is_parsed_or_refused(value: Any) -> None:
    for body in (value, {"query": value}, {"queries": value}, {"queries": [{"query": "a", "params": value}]}):
        try:
            parse_body(json.dumps(body).encode())
        except TidemillError:
            pass


@given(st.lists(SCALARS))
def test_parameters_say_what_was_sent(values: list[Any]) -> None:
    body = json.dumps({"queries": [{"query": "q", "params": values}]}).encode()
    try:
        (single,) = parse_body(body)
    except BadRequest:
        # Half of a surrogate pair is JSON and no text.
        assert any(isinstance(v, str) and any("\ud800" <= c <= "\udfff" for c in v) for v in values)
        return
    assert isinstance(single, Single)
    for value, param in zip(values, single.params, strict=True):
        if value is None:
            assert param == Param(None)
        elif isinstance(value, bool):
            assert param == Param(b"true" if value else b"false")
        elif isinstance(value, str):
            assert param == Param(value.encode())
        else:
            assert param.data is not None
            assert float(param.data) == float(value)


def test_a_script_is_taken_as_it_is() -> None:
    assert parse_body(b'{"query": "SELECT 1; -- x"}') == [Script("SELECT 1; -- x")]


def test_deep_parameters_are_refused_or_taken_but_never_crash() -> None:
    for depth in (10, 300, 600, 900, 1_000, 5_000, 100_000):
        body = b'{"queries": [{"query": "q", "params": [' + b"[" * depth + b"]" * depth + b"]}]}"
        try:
            parse_body(body)
        except BadRequest:
            continue


@pytest.mark.parametrize("number", ["1e400", "-0", "123456789012345678901234567890", "0.10"])
def test_numbers_stay_as_written(number: str) -> None:
    body = f'{{"queries": [{{"query": "q", "params": [{number}]}}]}}'.encode()
    (single,) = parse_body(body)
    assert isinstance(single, Single)
    assert single.params == (Param(number.encode()),)
