"""Text and binary output, and the refusal of bad input, are what a real PostgreSQL gives for the same
text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tidemill.errors import InvalidValue, TidemillError
from tidemill.types.parse_name import parse_type
from tidemill.types.wire import (
    InvalidField,
    decode_binary,
    decode_text,
    encode_binary,
    encode_text,
    oid,
    parse_literal,
    typlen,
    typmod,
)

# Where we differ on purpose.
DIFFERENT = {
    # Our numeric has 38 digits; PostgreSQL refuses this one with a text of its own.
    ("numeric", "1e200000"),
}


def corpus() -> dict[str, list[str]]:
    """The sections of postgres_inputs.txt: type name to texts."""
    sections: dict[str, list[str]] = {}
    texts: list[str] = []
    decoder = json.JSONDecoder()
    for line in (Path(__file__).parent / "postgres_inputs.txt").read_text("utf-8").splitlines():
        if line.startswith("["):
            texts = sections.setdefault(line[1:-1], [])
        elif not line.startswith("#"):
            rest = line.strip()
            while rest:
                text, end = decoder.raw_decode(rest)
                texts.append(text)
                rest = rest[end:].lstrip()
    return sections


CORPUS = corpus()


@dataclass(frozen=True)
class Result:
    text: bytes | None = None
    binary: bytes | None = None
    error: str | None = None
    sqlstate: str | None = None
    detail: str | None = None
    hint: str | None = None


def ask_postgres(connection: psycopg.Connection[Any], table: str, text: str) -> Result:
    """What PostgreSQL stores for the text in a column of the type, in both formats."""
    outputs: list[bytes | None] = []
    for wanted in (0, 1):
        query = f"INSERT INTO {table} VALUES ($1) RETURNING v".encode()
        answer = connection.pgconn.exec_params(query, [text.encode()], None, [0], wanted)
        if answer.status != psycopg.pq.ExecStatus.TUPLES_OK:
            fields = psycopg.pq.DiagnosticField

            def field(which: psycopg.pq.DiagnosticField, answer: Any = answer) -> str | None:
                raw = answer.error_field(which)
                return None if raw is None else raw.decode()

            return Result(
                error=field(fields.MESSAGE_PRIMARY),
                sqlstate=field(fields.SQLSTATE),
                detail=field(fields.MESSAGE_DETAIL),
                hint=field(fields.MESSAGE_HINT),
            )
        outputs.append(answer.get_value(0, 0))
    return Result(text=outputs[0], binary=outputs[1])


def ask_us(type_text: str, text: str) -> Result:
    t = parse_type(type_text)
    try:
        column = decode_text(pa.array([text.encode()], pa.binary()), t)
    except TidemillError as error:
        return Result(error=error.primary, sqlstate=error.sqlstate, detail=error.detail, hint=error.hint)
    binary = encode_binary(column, t)
    # Compared as bytes: NaN is not equal to itself in Arrow.
    assert encode_binary(decode_binary(binary, t), t).equals(binary)
    return Result(text=encode_text(column, t)[0].as_py(), binary=binary[0].as_py())


@pytest.mark.parametrize("type_text", list(CORPUS))
def test_same_as_postgres(postgres: psycopg.Connection[Any], type_text: str) -> None:
    table = "t_" + "".join(c if c.isalnum() else "_" for c in type_text)
    postgres.execute(f"CREATE TEMP TABLE {table} (v {type_text})".encode())
    wrong: list[str] = []
    for text in CORPUS[type_text]:
        if (type_text, text) in DIFFERENT:
            continue
        theirs, ours = ask_postgres(postgres, table, text), ask_us(type_text, text)
        if ours != theirs:
            wrong.append(f"{text!r}:\n    PostgreSQL {theirs}\n    ours       {ours}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("type_text", list(CORPUS))
def test_a_column_is_read_as_its_values_are(type_text: str) -> None:
    """Plain and odd spellings, nulls and a slice in one column: what the vectorised path takes and what it
    leaves."""
    t = parse_type(type_text)
    taken = [text for text in CORPUS[type_text] if ask_us(type_text, text).error is None]
    rows: list[bytes | None] = [b"skipped", None, *(text.encode() for text in taken), None]
    column = pa.array(rows, pa.binary()).slice(1)
    decoded = decode_text(column, t)
    expected = [None, *(ask_us(type_text, text).text for text in taken), None]
    assert encode_text(decoded, t).to_pylist() == expected
    binary = encode_binary(decoded, t)
    assert binary.to_pylist() == [None, *(ask_us(type_text, text).binary for text in taken), None]
    assert encode_text(decode_binary(binary.slice(1), t), t).to_pylist() == expected[1:]
    # And its first bad value is told with its row.
    bad = [text for text in CORPUS[type_text] if isinstance(_refusal(type_text, text), InvalidValue)]
    if bad and taken:
        with pytest.raises(InvalidField) as caught:
            decode_text(pa.array([None, taken[0], bad[0], taken[0]]), t)
        assert caught.value.row == 2
        assert caught.value.primary == ask_us(type_text, bad[0]).error


def _refusal(type_text: str, text: str) -> TidemillError | None:
    try:
        parse_literal(text, parse_type(type_text))
    except TidemillError as error:
        return error
    return None


RANDOM: dict[str, str] = {
    "boolean": "random() < 0.5",
    "smallint": "(random() * 65535 - 32768)::int2",
    "integer": "(random() * 4294967295 - 2147483648)::int4",
    "bigint": "((random() - 0.5) * 1.8e19)::int8",
    "real": "((random() - 0.5) * power(10, (random() * 40 - 20)::int))::float4",
    "double precision": "(random() - 0.5) * power(10, (random() * 60 - 30)::int)",
    "numeric": "trim_scale(round(((random() - 0.5) * power(10, (random() * 30 - 12)::int))::numeric, 18))",
    "numeric(12,4)": "((random() - 0.5) * 1e8)::numeric(12,4)",
    "date": "'2000-01-01'::date + ((random() - 0.4) * 4000000)::int",
    "time": "('00:00'::time + random() * '1 day'::interval)",
    "timestamp": "'2000-01-01'::timestamp + (random() - 0.3) * '5000 years'::interval",
    "timestamptz": "'2000-01-01'::timestamptz + round(random() * 1e9) * '1 second'::interval",
    "interval": "make_interval(0, ((random() - 0.5) * 50)::int, 0, ((random() - 0.5) * 50)::int)"
    " + (random() - 0.5) * '9 h'::interval",
    "uuid": "gen_random_uuid()",
    "bytea": "decode(md5(random()::text), 'hex')",
    "text": "md5(random()::text)",
    "text[]": "array[md5(random()::text), null, 'a b', (random() * 9)::int::text]",
    "integer[]": "array(select (random() * 100)::int from generate_series(1, (random() * 5)::int + 0 * g))",
    "numeric(8,2)[]": "array[(random() * 1000)::numeric(8,2), null]",
}


@pytest.mark.parametrize("type_text", list(RANDOM))
def test_random_values_of_postgres(postgres: psycopg.Connection[Any], type_text: str) -> None:
    """Both of PostgreSQL's formats of many values, each made into the other."""
    t = parse_type(type_text)
    postgres.execute("SELECT setseed(0.25)")
    name = "r_" + "".join(c if c.isalnum() else "_" for c in type_text)
    made = f"CREATE TEMP TABLE {name} AS SELECT g, {RANDOM[type_text]} AS v FROM generate_series(1, 300) g"
    postgres.execute(made.encode())
    columns: list[pa.Array] = []
    for wanted in (0, 1):
        answer = postgres.pgconn.exec_params(
            f"SELECT v FROM {name} ORDER BY g".encode(), [], None, None, wanted
        )
        columns.append(pa.array([answer.get_value(i, 0) for i in range(answer.ntuples)], pa.binary()))
        assert (answer.ftype(0), answer.fsize(0)) == (oid(t), typlen(t))
    text, binary = columns
    assert len(text) == 300
    assert encode_text(decode_binary(binary, t), t).to_pylist() == text.to_pylist()
    assert encode_binary(decode_text(text, t), t).to_pylist() == binary.to_pylist()


@pytest.mark.parametrize("type_text", [t for t in CORPUS if t not in ("name",)])
def test_clients_are_told_what_postgres_tells(postgres: psycopg.Connection[Any], type_text: str) -> None:
    """OID, length and modifier of a result column."""
    t = parse_type(type_text)
    answer = postgres.pgconn.exec_(f"SELECT NULL::{type_text}".encode())
    assert (answer.ftype(0), answer.fsize(0), answer.fmod(0)) == (oid(t), typlen(t), typmod(t))


def test_timestamptz_at_other_clocks(postgres: psycopg.Connection[Any]) -> None:
    instants = [
        "2020-01-01 00:00:00+00",
        "2020-07-01 12:30:00+00",
        "1900-01-01 00:00:00+00",
        "0044-03-15 12:00:00+00 BC",
    ]
    local = ["2020-03-08 02:30:00", "2020-11-01 01:30:00", "2021-06-01 00:00:00", "2020-03-29 02:30:00"]
    t = parse_type("timestamptz")
    for zone in ("America/New_York", "Asia/Kolkata", "Europe/Berlin"):
        postgres.execute(f"SET TimeZone = '{zone}'".encode())
        try:
            rows = [
                postgres.execute("SELECT %s::timestamptz::text", (text,)).fetchone()
                for text in instants + local
            ]
        finally:
            postgres.execute("SET TimeZone = 'UTC'")
        expected = [row[0] for row in rows if row is not None]
        ours = encode_text(decode_text(pa.array(instants + local), t, timezone=zone), t, timezone=zone)
        assert [text.decode() for text in ours.to_pylist()] == expected
