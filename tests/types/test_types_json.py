"""jsonb: one text for one value, which is the text that PostgreSQL shows (test_types_postgres compares
it)."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import TidemillError
from tidemill.types.json import canonical_json, canonical_json_array, canonical_number

# JSON's own texts: any character but lone surrogates; the zero character is refused by itself below.
_texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=10,
)


def _exact(text: str) -> Any:
    """The value with its numbers as exact decimals and its objects without order."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


@given(_values, st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_spelling_does_not_matter(value: Any, random: Any) -> None:
    def shuffled(v: Any) -> Any:
        if isinstance(v, dict):
            keys = list(v)
            random.shuffle(keys)
            return {k: shuffled(v[k]) for k in keys}
        return [shuffled(x) for x in v] if isinstance(v, list) else v

    plain = canonical_json(json.dumps(value))
    assert canonical_json(json.dumps(shuffled(value), ensure_ascii=False, indent=2)) == plain
    assert canonical_json(plain) == plain
    assert _exact(plain) == _exact(json.dumps(value))


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
@settings(max_examples=150, deadline=None)
def test_numbers_keep_their_value_and_have_one_spelling(spelling: str) -> None:
    canonical = canonical_number(spelling)
    assert Decimal(canonical) == Decimal(spelling)
    assert canonical_number(canonical) == canonical
    assert (
        canonical_number(spelling.replace("E", "e") + ("" if "e" in spelling.lower() else "e0")) == canonical
    )
    assert canonical_json(f"[{spelling}]") == f"[{canonical}]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.0", "1"),
        ("-0.0", "0"),
        ("100e-2", "1"),
        ("1e401", "1e+401"),
        ("1e399", "1" + "0" * 399),
        ("123456789012345678901234567890.10", "123456789012345678901234567890.1"),
        ("9" * 5000, "9" * 5000),
        ('{"aa":1,"b":2,"a":3,"é":4}', '{"a": 3, "b": 2, "aa": 1, "é": 4}'),
        ('{"a":1,"a":{"b":[]}}', '{"a": {"b": []}}'),
        ('"\\u00e9\\/\\b\\u001f"', '"é/\\b\\u001f"'),
        ("[0.1, 1e-7, 1e16, 5e-324]", f"[0.1, 0.0000001, 10000000000000000, 0.{'0' * 323}5]"),
    ],
)
def test_canonical(text: str, expected: str) -> None:
    assert canonical_json(text) == expected


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        ('"\\u0000"', "22P05"),
        ('{"\\u0000": 1}', "22P05"),
        ('"\\ud800"', "22P02"),
        ("NaN", "22P02"),
        ("[Infinity]", "22P02"),
        ("1e200000", "22003"),
        ("[" * 100_000, "54001"),
        ("'a'", "22P02"),
        ("", "22P02"),
        ("\ufeff1", "22P02"),
    ],
)
def test_refused(text: str, sqlstate: str) -> None:
    with pytest.raises(TidemillError) as caught:
        canonical_json(text)
    assert caught.value.sqlstate == sqlstate


def test_columns() -> None:
    canonical = pa.array(["1", None, "[1, 2]"])
    assert canonical_json_array(canonical) is canonical
    assert canonical_json_array(pa.array(["1.0", None, "[1,2]"])).to_pylist() == ["1", None, "[1, 2]"]
