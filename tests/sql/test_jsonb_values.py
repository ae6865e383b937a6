"""What jsonb's functions do to documents, without Spark; the corpus has their answers beside PostgreSQL's."""

from __future__ import annotations

import pytest

from tidemill.errors import TidemillError
from tidemill.sql.functions import jsonb_values as values

# As PostgreSQL orders them; an empty array at the top comes before all.
IN_ORDER = [
    *("[]", "null", '""', '"Z"', '"a"', '"ab"', '"b"'),
    *("-1e10", "-10", "-9.5", "-9", "-0.5", "0", "0.001", "0.01", "9", "10", "999.9", "1e3"),
    *("12345678901234567890", "false", "true", '["x"]', "[1]", "[2]", "[0, 0]"),
    *("{}", '{"a": 1}', '{"a": 2}', '{"aa": 1}', '{"b": 1}', '{"a": 1, "b": 1}'),
]


def test_sort_keys_have_the_order_of_jsonb() -> None:
    keys = [values.sort_key(values.parse(document)) for document in IN_ORDER]
    for at in range(len(keys) - 1):
        assert keys[at] < keys[at + 1], f"{IN_ORDER[at]} < {IN_ORDER[at + 1]}"


@pytest.mark.parametrize(
    ("document", "path", "found"),
    [
        ('{"a": [1, 2]}', ["a", "1"], "2"),
        ('{"a": [1, 2]}', ["a", " -1"], "2"),
        ('{"a": [1, 2]}', ["a", "1 "], None),
        ('{"a": [1, 2]}', ["a", "1_0"], None),
        ('{"a": [1, 2]}', ["a", None], None),
        ('{"a": [1, 2]}', ["a", "99999999999999999999"], None),
        ("5", ["0"], None),
        ("5", [], "5"),
    ],
)
def test_paths(document: str, path: list[str | None], found: str | None) -> None:
    value = values.at_path(values.parse(document), path)
    assert (None if value is values.MISSING else values.written(value)) == found


@pytest.mark.parametrize(
    ("a", "b", "answer"),
    [
        ('{"a": 1}', '{"a": 1.0}', False),  # numbers come canonical from storage
        ('[1, "1"]', '["1"]', True),
        ('["1"]', "[1]", False),
        ("[[1]]", "1", False),
        ('["a"]', '"a"', True),
        ('"a"', '["a"]', False),
        ("[true]", "[1]", False),
        ("[null]", "[null]", True),
    ],
)
def test_contains(a: str, b: str, answer: bool) -> None:
    assert values.contains(values.parse(a), values.parse(b)) is answer


def test_a_change_leaves_the_document_as_it_was() -> None:
    before = values.parse('{"a": [1, {"b": 2}], "c": null}')
    values.set_path(before, ["a", "1", "b"], values.parse("3"), create=True)
    values.delete_path(before, ["a", "0"])
    values.strip_nulls(before)
    assert values.written(before) == '{"a": [1, {"b": 2}], "c": null}'


def test_nesting_beyond_the_stack_is_an_error() -> None:
    with pytest.raises(TidemillError) as raised:
        values.parse("[" * 200_000 + "]" * 200_000)
    assert raised.value.sqlstate == "54001"
