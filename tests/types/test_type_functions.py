"""pg_type names PostgreSQL's functions: ADBC knows by them how values are sent."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tidemill.engine.relations.pg.types import io_names, io_oids, types

COLUMNS = "typinput", "typoutput", "typreceive", "typsend"


def test_the_functions_of_types_are_called_as_in_postgres(postgres: psycopg.Connection[Any]) -> None:
    asked = postgres.execute(f"SELECT typname, {', '.join(f'{c}::text' for c in COLUMNS)} FROM pg_type")
    theirs = {row[0]: row[1:] for row in asked.fetchall()}
    names = {0: "-", **io_names()}
    ours = {t.name: tuple(names[o] for o in io_oids(t)) for t in types().values()}
    assert len(ours.keys() & theirs.keys()) > 60
    for name in ours.keys() & theirs.keys():
        assert ours[name] == theirs[name], name


@pytest.mark.parametrize("binary", [False, True])
def test_a_regproc_is_a_name_in_text_and_an_oid_in_binary(
    postgres: psycopg.Connection[Any], binary: bool
) -> None:
    import pyarrow as pa

    from tidemill.types.arrow import arrow_type
    from tidemill.types.model import REGPROC
    from tidemill.types.wire import encode_binary, encode_text, oid

    postgres.execute("CREATE TEMP TABLE IF NOT EXISTS procs AS SELECT 'int8recv'::regproc AS p")
    with psycopg.RawCursor(postgres) as cursor:
        cursor.execute("SELECT p, p::oid::int8, NULL::regproc FROM procs", binary=binary)
        assert cursor.pgresult is not None
        value, number = (cursor.pgresult.get_value(0, i) for i in range(2))
        assert cursor.pgresult.ftype(0) == oid(REGPROC)
    assert value is not None and number is not None
    known = int.from_bytes(number, "big") if binary else int(number)
    column = pa.array([{"oid": known, "name": "int8recv"}, None], arrow_type(REGPROC))
    assert (encode_binary if binary else encode_text)(column, REGPROC).to_pylist() == [value, None]
