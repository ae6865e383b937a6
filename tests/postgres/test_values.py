"""Values of a PostgreSQL source: texts to rows, and rows with values that have no form here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.sources.postgres.definition import ReplicatedColumn, ReplicatedTable, read_table
from tidemill.sources.postgres.values import SHOWN_CHARACTERS, batch_schema, decode_rows
from tidemill.types.parse_name import parse_type
from tidemill.types.wire import encode_text


def table_of(*types: str, nullable: bool = True) -> ReplicatedTable:
    columns = tuple(
        ReplicatedColumn(f"c{i}", parse_type(t), nullable, 0, -1, i + 1) for i, t in enumerate(types)
    )
    return ReplicatedTable("public.t", "public", "t", 1, columns)


def decoded(t: str, *texts: str | bytes | None) -> tuple[list[str | None], list[str | None]]:
    """What a column shows, and the errors of its rows."""
    rows = decode_rows(table_of(t), [pa.array([_bytes(x) for x in texts], pa.binary())])
    shown = encode_text(rows.column(0), parse_type(t)).to_pylist()
    errors: list[str | None] = [None] * len(texts)
    if "mz_error" in rows.schema.names:
        errors = rows.column("mz_error").to_pylist()
    return [None if x is None else x.decode() for x in shown], errors


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


# As PostgreSQL writes them under the settings of a session.
PLAIN = {
    "boolean": ["t", "f"],
    "smallint": ["-32768", "32767"],
    "integer": ["-2147483648", "0"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "real": ["1.5", "3.4028235e+38", "NaN", "Infinity", "-Infinity"],
    "double precision": ["0.1", "1e-300", "NaN", "Infinity", "-0"],
    "numeric": ["0", "-12345678901234567890.123456789012345678"],
    "numeric(38,0)": ["9" * 38],
    "text": ["", "a\nb\t", 'q"q', "\\N", "ü"],
    "character varying(3)": ["abc", "ü"],
    "character(3)": ["a  "],
    "bytea": ["\\x00ff", "\\x"],
    "date": ["2024-02-29", "infinity", "-infinity", "0044-03-15 BC"],
    "time without time zone": ["00:00:00", "24:00:00", "12:34:56.789"],
    "timestamp without time zone": ["2024-01-01 12:34:56.789", "infinity", "0044-03-15 00:00:00 BC"],
    "timestamp with time zone": ["2024-01-01 12:34:56.789+00", "-infinity"],
    "interval": ["1 year 2 mons 3 days 04:05:06.789", "-00:00:01", "00:00:00"],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"],
    "jsonb": ['{"a": [1, null, "x"]}', "null"],
    "oid": ["4294967295"],
    "integer[]": ["{}", "{1,NULL,3}"],
    "text[]": ['{"a,b","c\\"d",NULL,"NULL"}'],
}


@pytest.mark.parametrize("t", PLAIN)
def test_a_value_is_shown_as_the_upstream_shows_it(t: str) -> None:
    shown, errors = decoded(t, *PLAIN[t], None)
    assert shown == [*PLAIN[t], None] and errors == [None] * len(shown)


@pytest.mark.parametrize(
    ("t", "text", "why"),
    [
        ("numeric", "NaN", "not supported for type numeric"),
        ("numeric", "Infinity", "not supported for type numeric"),
        ("numeric", "1" * 21, "numeric field overflow"),
        ("numeric", "0.1234567890123456789", "more than 18 digits"),
        ("numeric[]", "{1,0.1234567890123456789}", "more than 18 digits"),
        ("integer[]", "{{1},{2}}", "several dimensions"),
        ("integer[]", "[0:1]={1,2}", "lower bound"),
        ("jsonb", '"\\u0000"', "Unicode escape"),
        ("text", b"\xff", "invalid byte sequence"),
    ],
)
def test_a_value_without_a_form_is_an_error_of_its_row(t: str, text: str, why: str) -> None:
    good = PLAIN[t][0] if t in PLAIN else "{}"
    shown, errors = decoded(t, good, text, good, None)
    assert shown == [good, None, good, None]
    assert errors[0] is None and errors[2] is None and errors[3] is None
    primary, detail = str(errors[1]).split("\n")
    assert primary == "a value of column public.t.c0 is not supported"
    assert why in detail and detail.endswith("TEXT COLUMNS (t.c0) keeps the column as text.")


def test_zeros_behind_the_digits_are_no_loss() -> None:
    shown, errors = decoded("numeric", "0.5000000000000000000000")
    assert (shown, errors) == (["0.5"], [None])


def test_a_null_in_a_column_that_was_not_null_is_an_error() -> None:
    table = table_of("integer", nullable=False)
    rows = decode_rows(table, [pa.array(["1", None])], np.array([1, -1]))
    assert rows.schema == batch_schema(table, errors=True)
    assert rows.column("mz_diff").to_pylist() == [1, -1]
    assert rows.column(0).to_pylist() == [1, None]
    assert str(rows.column("mz_error")[1]).startswith("null value in column public.t.c0\n")


def test_a_long_value_is_shown_by_its_beginning() -> None:
    _, errors = decoded("numeric", "9" * 5000)
    assert len(str(errors[0])) < SHOWN_CHARACTERS + 300


ODD = st.sampled_from(["1", "2.5", "NaN", "7" * 30, None])


@given(st.lists(st.tuples(ODD, st.sampled_from(["{1}", "{{1}}", None]))), st.integers(0, 100))
def test_an_error_depends_on_its_row_alone(rows: Sequence[tuple[str | None, str | None]], cut: int) -> None:
    """Cut anywhere, the rows are the same: what COPY gave as an error, a change of the stream takes away."""
    table = table_of("numeric", "integer[]")
    at = min(cut, len(rows))
    together = _rows(table, rows)
    assert together == [*_rows(table, rows[:at]), *_rows(table, rows[at:])]
    for row, (number, numbers) in zip(together, rows, strict=True):
        bad = number in ("NaN", "7" * 30) or numbers == "{{1}}"
        assert (row[2] is not None) == bad


def _rows(table: ReplicatedTable, rows: Sequence[tuple[str | None, str | None]]) -> list[tuple[object, ...]]:
    columns = [pa.array([row[i] for row in rows], pa.string()) for i in range(2)]
    batch = decode_rows(table, columns)
    errors = batch.column("mz_error").to_pylist() if "mz_error" in batch.schema.names else [None] * len(rows)
    return list(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), errors, strict=True))


def test_a_table_is_read_back_from_its_definition() -> None:
    table = table_of(*PLAIN)
    assert read_table(table.spec()) == table
