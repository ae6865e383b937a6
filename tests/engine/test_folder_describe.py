"""CREATE SOURCE ... FROM FILES with rows, worked out without a server."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka_context import World

from tidemill.engine.ddl.upstreams import Described, describe
from tidemill.errors import TidemillError
from tidemill.sources.definition import open_source
from tidemill.sql import ast
from tidemill.sql.parse import parse
from tidemill.sql.render import to_sql


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes(b'\xef\xbb\xbfid,"the, name"\r\n1,x\r\n')
    return tmp_path


def described(root: Path, rest: str, path: str = "in") -> Described:
    (parsed,) = parse(f"CREATE SOURCE s FROM FILES '{path}' {rest}")
    assert isinstance(parsed.statement, ast.CreateSource)
    # What SHOW CREATE SOURCE shows is the same statement.
    (again,) = parse(to_sql(parsed.statement))
    assert isinstance(again.statement, ast.CreateSource)
    assert to_sql(again.statement) == to_sql(parsed.statement)
    return describe(parsed.statement, replace(World().context(), files_root=str(root)))


def columns(found: Described) -> list[str]:
    assert found.own is not None
    return [f"{c.name} {c.type}{'' if c.nullable else ' not null'}" for c in found.own.desc.columns]


def test_the_columns_are_those_of_the_format_and_of_include(root: Path) -> None:
    found = described(root, "FORMAT CSV WITH HEADER INCLUDE KEY, OFFSET AS at, TIMESTAMP")
    more = ["key text not null", "at uint8 not null", "last_modified timestamp without time zone not null"]
    assert columns(found) == ["id text", "the, name text", *more]
    assert columns(described(root, "FORMAT TEXT")) == ["text text"]
    assert columns(described(root, "FORMAT JSON")) == ["data jsonb"]
    assert columns(described(root, "FORMAT CSV WITH 2 COLUMNS DELIMITED BY ';'"))[1] == "column2 text"
    assert (found.type, found.envelope, found.gauge.progress_desc.names) == (
        "files",
        "none",
        ["key", "byte_offset"],
    )


def test_the_definition_opens_the_source(root: Path) -> None:
    said = "MATCHING '*.csv' COMPRESSION none FORMAT CSV WITH HEADER (a, b) ENVELOPE UPSERT (KEY (a))"
    found = described(root, said)
    source = open_source(json.loads(json.dumps(found.definition)), str(root))
    assert source.outputs == found.outputs and found.envelope == "upsert"
    assert source.outputs[0].key == ("a", "mz_key")


def test_a_source_without_format_has_tables(root: Path) -> None:
    found = described(root, "")
    assert found.outputs == () and found.definition["outputs"] == []
    assert open_source(found.definition, str(root)).outputs == ()


@pytest.mark.parametrize(
    ("rest", "sqlstate", "primary"),
    [
        ("COMPRESSION lzma FORMAT TEXT", "22023", "COMPRESSION cannot be LZMA"),
        ("MATCHING '[a' FORMAT TEXT", "22023", "MATCHING '[a' is no pattern"),
        ("KEY FORMAT TEXT VALUE FORMAT TEXT", "0A000", "KEY FORMAT is not possible for objects"),
        ("FORMAT TEXT INCLUDE HEADERS", "0A000", "INCLUDE HEADERS is not possible for objects"),
        ("FORMAT TEXT INCLUDE KEY AS text", "42701", 'column "text" specified more than once'),
        ("FORMAT TEXT ENVELOPE UPSERT", "42601", "ENVELOPE UPSERT of objects needs KEY, and nothing else"),
        ("FORMAT TEXT ENVELOPE UPSERT (KEY (a))", "42703", 'column "a" of KEY does not exist'),
        (
            "FORMAT TEXT ENVELOPE DEBEZIUM UPSERT",
            "0A000",
            "ENVELOPE DEBEZIUM UPSERT is not possible for objects",
        ),
        ("FORMAT TEXT ON ERROR DEAD LETTER", "0A000", "ON ERROR DEAD LETTER is not possible for objects"),
        ("FORMAT JSON MATCHING 'x'", "42601", None),
        ("MATCHING 'no*' FORMAT CSV WITH HEADER", "42704", "there is no object to take the names"),
        (
            "MATCHING '*' FORMAT JSON ENVELOPE MATERIALIZE",
            "0A000",
            "MATCHING and COMPRESSION are not possible",
        ),
    ],
)
def test_what_is_wrong_is_refused(root: Path, rest: str, sqlstate: str, primary: Any) -> None:
    with pytest.raises(TidemillError) as caught:
        described(root, rest)
    assert caught.value.sqlstate == sqlstate and caught.value.position
    assert primary is None or caught.value.primary.startswith(primary)


def test_a_header_that_names_nothing_is_refused(root: Path) -> None:
    (root / "in" / "a.csv").write_text("a,,b\n")
    with pytest.raises(TidemillError, match=r'"a\.csv" does not begin with the names of columns'):
        described(root, "FORMAT CSV WITH HEADER")
