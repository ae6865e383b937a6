"""The names of a SUBSCRIBE's output clause, and what is said of those that are wrong."""

from __future__ import annotations

import pytest

from tidemill.errors import TidemillError
from tidemill.sql import ast
from tidemill.sql.parse import parse
from tidemill.subscribe.resolve import spec_for
from tidemill.subscribe.spec import OutputShape, SortItem, Spec
from tidemill.types import model
from tidemill.types.model import Column

COLUMNS = (
    Column("a", model.INT4),
    Column("b", model.TEXT),
    Column("B", model.INT4),
    Column("j", model.JSONB),
    Column("twice", model.INT4),
    Column("twice", model.INT4),
    Column("up", model.INT4),
)


def resolved(clause: str, *, relation: str | None = "t") -> Spec:
    statement = parse(f"subscribe t {clause}")[0].statement
    assert isinstance(statement, ast.Subscribe)
    return spec_for(COLUMNS, statement.output, relation=relation)


def test_plain() -> None:
    assert resolved("") == Spec(COLUMNS)


def test_progress_and_spelling_are_kept() -> None:
    spec = spec_for(COLUMNS, ast.EnvelopeUpsert((ast.Ident("a"),)), progress=True, underscore=True)
    assert spec == Spec(COLUMNS, OutputShape.UPSERT, (0,), progress=True, underscore=True)


@pytest.mark.parametrize(
    ("clause", "keys"),
    [("(key (a))", (0,)), ('(key ("B", b, a))', (2, 1, 0)), ("(key (j))", (3,)), ("(key (UP))", (6,))],
)
def test_keys(clause: str, keys: tuple[int, ...]) -> None:
    assert resolved(f"envelope upsert {clause}") == Spec(COLUMNS, OutputShape.UPSERT, keys)
    assert resolved(f"envelope debezium {clause}") == Spec(COLUMNS, OutputShape.DEBEZIUM, keys)


@pytest.mark.parametrize(
    ("items", "order"),
    [
        ("a", [SortItem(0)]),
        ("A desc", [SortItem(0, True, True)]),
        ("a desc nulls last, b nulls first", [SortItem(0, True, False), SortItem(1, False, True)]),
        ("mz_diff", [SortItem(None)]),
        ("1, 2, 3 desc", [SortItem(None), SortItem(0), SortItem(1, True, True)]),
        ("(a), ((1))", [SortItem(0), SortItem(None)]),
        ('t.a, t."B"', [SortItem(0), SortItem(2)]),
        ("a, a desc", [SortItem(0), SortItem(0, True, True)]),
        ("up", [SortItem(6)]),
        ("6, 7", [SortItem(4), SortItem(5)]),
    ],
)
def test_order(items: str, order: list[SortItem]) -> None:
    clause = f"within timestamp order by {items}"
    assert resolved(clause) == Spec(COLUMNS, OutputShape.WITHIN_TIMESTAMP, order=tuple(order))


ALL = 'The columns are "a", "b", "B", "j", "twice", "up".'
WITH_DIFF = ALL.replace('"a"', '"mz_diff", "a"')
NOT_A_COLUMN = (
    "invalid ORDER BY in SUBSCRIBE WITHIN TIMESTAMP ORDER BY",
    "42P10",
    "All order bys must be output columns.",
)


@pytest.mark.parametrize(
    ("clause", "text", "state", "hint", "at"),
    [
        ("envelope upsert (key (x))", 'column "x" does not exist', "42703", ALL, "x)"),
        ("envelope debezium (key (a, X))", 'column "x" does not exist', "42703", ALL, "X)"),
        ("envelope upsert (key (mz_diff))", 'column "mz_diff" does not exist', "42703", ALL, "mz_"),
        (
            "envelope upsert (key (twise))",
            'column "twise" does not exist',
            "42703",
            'Perhaps you meant to reference the column "twice".',
            "twise",
        ),
        (
            "within timestamp order by t.mz_dif",
            "column t.mz_dif does not exist",
            "42703",
            ALL,
            "t.mz",
        ),
        (
            "within timestamp order by mz_dif",
            'column "mz_dif" does not exist',
            "42703",
            'Perhaps you meant to reference the column "mz_diff".',
            "mz_dif",
        ),
        (
            "envelope upsert (key (a, b, a))",
            'column "a" appears more than once in SUBSCRIBE ENVELOPE KEY clause',
            "42701",
            None,
            "a))",
        ),
        ("envelope upsert (key (twice))", 'column reference "twice" is ambiguous', "42702", None, "twice"),
        ("within timestamp order by a, x", 'column "x" does not exist', "42703", WITH_DIFF, "x"),
        (
            "within timestamp order by mz_timestamp",
            'column "mz_timestamp" does not exist',
            "42703",
            WITH_DIFF,
            "mz_",
        ),
        ("within timestamp order by t.x", "column t.x does not exist", "42703", ALL, "t.x"),
        ("within timestamp order by t.mz_diff", "column t.mz_diff does not exist", "42703", ALL, "t.mz"),
        ("within timestamp order by u.a", 'missing FROM-clause entry for table "u"', "42P01", None, "u.a"),
        ("within timestamp order by s.t.a", 'missing FROM-clause entry for table "t"', "42P01", None, "s.t"),
        ("within timestamp order by twice", 'ORDER BY "twice" is ambiguous', "42702", None, "twice"),
        ("within timestamp order by a, 0", "ORDER BY position 0 is not in select list", "42P10", None, "0"),
        ("within timestamp order by 9", "ORDER BY position 9 is not in select list", "42P10", None, "9"),
        ("within timestamp order by j", "ORDER BY of type jsonb is not supported", "0A000", None, None),
        ("within timestamp order by a + 1", *NOT_A_COLUMN, "a +"),
        ("within timestamp order by b, -a", *NOT_A_COLUMN, "-a"),
        ("within timestamp order by 'a'", *NOT_A_COLUMN, "'a'"),
        ("within timestamp order by 1.5", *NOT_A_COLUMN, "1.5"),
        ("within timestamp order by null", *NOT_A_COLUMN, "null"),
        ("within timestamp order by lower(b)", *NOT_A_COLUMN, "lower"),
        ("within timestamp order by a is null", *NOT_A_COLUMN, "a is"),
        ("within timestamp order by (a, b)", *NOT_A_COLUMN, "(a"),
        ("within timestamp order by $1", *NOT_A_COLUMN, "$1"),
        ("within timestamp order by (select a from t)", *NOT_A_COLUMN, "(select"),
    ],
)
def test_refused(clause: str, text: str, state: str, hint: str | None, at: str | None) -> None:
    with pytest.raises(TidemillError) as caught:
        resolved(clause)
    error = caught.value
    assert (error.primary, error.sqlstate, error.hint) == (text, state, hint)
    if at is not None:
        assert error.position is not None
        assert f"subscribe t {clause}"[error.position - 1 :].startswith(at)


def test_of_many_columns_some_are_named() -> None:
    many = [Column(f"c{n}", model.INT4) for n in range(100)]
    with pytest.raises(TidemillError) as caught:
        spec_for(many, ast.EnvelopeUpsert((ast.Ident("x"),)))
    hint = caught.value.hint or ""
    assert hint.startswith('The columns are "c0", "c1",') and hint.endswith('"c19" and 80 more.')


def test_a_number_without_end_is_no_place() -> None:
    with pytest.raises(TidemillError) as caught:
        resolved(f"within timestamp order by {'9' * 6000}")
    assert caught.value.sqlstate == "42P10"


def test_a_query_has_no_name() -> None:
    with pytest.raises(TidemillError) as caught:
        resolved("within timestamp order by t.a", relation=None)
    assert caught.value.sqlstate == "42P01"


def test_a_column_called_mz_diff_is_ambiguous() -> None:
    columns = (Column("mz_diff", model.INT4),)
    statement = parse("subscribe t within timestamp order by mz_diff")[0].statement
    assert isinstance(statement, ast.Subscribe)
    with pytest.raises(TidemillError) as caught:
        spec_for(columns, statement.output)
    assert caught.value.sqlstate == "42702"
    key = spec_for(columns, ast.EnvelopeUpsert((ast.Ident("mz_diff"),)))
    assert [c.name for c in key.output_columns] == ["mz_timestamp", "mz_state", "mz_diff"]
