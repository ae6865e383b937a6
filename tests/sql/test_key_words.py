"""Every key word of PostgreSQL in every place of a name: it is one here where it is one there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from support.embedded import postgres_server
from tidemill.errors import TidemillError
from tidemill.sql.names import AS_LABEL, NOT_A_FUNCTION, RESERVED, RESERVED_FUNCTION_OR_TYPE, words
from tidemill.sql.parse import parse

COLUMNS = [
    "SELECT {w} FROM t",
    "SELECT a, {w}, c FROM t",
    "SELECT {w} + 1 FROM t",
    "SELECT CASE WHEN {w} THEN {w} ELSE {w} END FROM t",
    "SELECT t.{w}, s.t.{w} FROM s.t",
    "SELECT * FROM t WHERE {w} = 1 AND b IN ({w}, 2)",
    "SELECT * FROM t WHERE {w} BETWEEN {w} AND {w} ORDER BY {w} DESC",
    "SELECT count(*) FROM t GROUP BY a, {w} HAVING {w} > 1",
    "SELECT sum({w}) OVER (PARTITION BY {w} ORDER BY {w} ROWS 1 PRECEDING) FROM t",
    "SELECT sum(a) OVER {w} FROM t WINDOW {w} AS (ORDER BY a)",
    "CREATE TABLE t (a int, {w} text)",
    "INSERT INTO t (a, {w}) VALUES (1, 2)",
    "INSERT INTO t ({w}) SELECT 1",
    "UPDATE t SET a = 1, {w} = {w}",
    "DELETE FROM t WHERE a AND {w}",
]
RELATIONS = [
    "SELECT {w}.* FROM {w}",
    "SELECT * FROM {w}, t",
    "SELECT * FROM t JOIN {w} ON true",
    "SELECT * FROM s.{w}",
    "SELECT * FROM {w}.t",
    "TABLE {w}",
    "CREATE TABLE {w} (a int)",
    "CREATE VIEW {w} AS SELECT 1",
    "INSERT INTO {w} VALUES (1)",
    "DROP TABLE s.{w}",
]
ALIASES = [
    "SELECT 1 AS {w}",
    "SELECT 1 {w}",
    "SELECT a {w}, b FROM t",
    "SELECT t.a {w} FROM t",
    "SELECT * FROM t {w}",
    "SELECT * FROM t AS {w}",
    "SELECT * FROM t {w} WHERE {w}.a = 1",
    "SELECT * FROM (SELECT 1) AS {w} ({w})",
    "WITH {w} AS (SELECT 1) SELECT * FROM {w}",
    "WITH x ({w}) AS (SELECT 1) SELECT {w} FROM x",
]
# Where we differ, and why.
KNOWN = {
    "default": "its grammar is known, and refused",
    "into": "SELECT INTO is told from an error of syntax",
    "system_user": "not supported",
    **dict.fromkeys(["check", "foreign"], "of a table's constraints that are not supported"),
    **dict.fromkeys(
        words(
            """
            current_catalog current_date current_role current_schema current_time current_timestamp
            current_user localtime localtimestamp session_user user
            """
        ),
        "in FROM, values of the session are not supported",
    ),
}
# The SQLSTATE of a statement that went well, whose effects are undone.
_WELL = "ZZ000"


@pytest.fixture(scope="module")
def postgres() -> Iterator[psycopg.Connection[Any]]:
    with postgres_server() as uri, psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(
            f"""CREATE FUNCTION state(statement text) RETURNS text LANGUAGE plpgsql AS $$
            BEGIN
                EXECUTE statement;
                RAISE EXCEPTION 'well' USING ERRCODE = '{_WELL}';
            EXCEPTION WHEN OTHERS THEN
                RETURN SQLSTATE;
            END $$""".encode()
        )
        yield connection


def reads(sql: str) -> bool:
    try:
        parse(sql)
    except TidemillError as error:
        return error.sqlstate != "42601"
    return True


def test_categories_are_those_of_postgresql(postgres: psycopg.Connection[Any]) -> None:
    found = postgres.execute("SELECT word, catcode::text, barelabel FROM pg_get_keywords()").fetchall()
    by_code = {code: {w for w, c, _ in found if c == code} for code in "RTC"}
    assert by_code == {"R": RESERVED, "T": RESERVED_FUNCTION_OR_TYPE, "C": NOT_A_FUNCTION}
    assert {w for w, _, bare in found if not bare} == AS_LABEL


def test_key_words_are_names_where_they_are_there(postgres: psycopg.Connection[Any]) -> None:
    all_words = [w for (w,) in postgres.execute("SELECT word FROM pg_get_keywords() ORDER BY 1")]
    assert len(all_words) > 450
    asked = [(w, t.format(w=w)) for t in (*COLUMNS, *RELATIONS, *ALIASES) for w in all_words]
    texts = [text for _, text in asked]
    states = [s for (s,) in postgres.execute("SELECT state(q) FROM unnest(%s::text[]) q", (texts,))]
    differ = {
        text: word
        for (word, text), state in zip(asked, states, strict=True)
        if reads(text) != (state != "42601")
    }
    assert {text for text, word in differ.items() if word not in KNOWN} == set()
    assert set(KNOWN) <= set(differ.values()), "no longer different"
