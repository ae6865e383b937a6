"""docs/formats.md is what the code does: types, errors, limits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tidemill.decode import json as json_format
from tidemill.decode.avro import schema as avro_schema
from tidemill.decode.avro.columns import columns_of
from tidemill.decode.avro.items import MAX_EMPTY_ITEMS
from tidemill.decode.avro.schema import parse_schema
from tidemill.decode.contract import MAX_MESSAGE_BYTES, MAX_SHOWN_BYTES
from tidemill.decode.debezium.logical_types import LOGICAL_TYPES, VARIABLE_DECIMAL
from tidemill.decode.protobuf import columns_of as protobuf_columns
from tidemill.decode.protobuf import compiled, find_message

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "formats.md").read_text()
CODE = "\n".join(p.read_text() for p in (ROOT / "src" / "tidemill" / "decode").rglob("*.py"))


def section(title: str) -> str:
    found = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def table(text: str, first: str) -> list[tuple[str, str]]:
    """The rows of the table whose first column is called so."""
    found = re.search(rf"^\| {re.escape(first)} \|.*?\n\| ---.*?\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    assert found is not None, first
    rows = [line.strip("|\n ").split(" | ", 1) for line in found[1].splitlines()]
    return [(row[0].strip(), row[1].strip() if len(row) > 1 else "") for row in rows]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def avro_type(schema: Any) -> str:
    (column,) = columns_of(parse_schema(json.dumps(schema)))
    return str(column.type)


def test_avro_types() -> None:
    for left, right in table(section("AVRO"), "Avro"):
        for name in quoted(left):
            if left.startswith("union"):
                continue
            schema = {"type": "fixed", "name": "F", "size": 3} if name == "fixed" else name
            assert avro_type(schema) == quoted(right)[0], name


def test_logical_types() -> None:
    told: set[str] = set()
    for left, right in table(section("AVRO"), "logical type"):
        if left.startswith("others"):
            continue
        for name in re.findall(r"`([\w-]+)`", left.split("(")[0]):
            told.add(name)
            more = {"logicalType": name, "precision": 9, "scale": 2}
            base = {
                "decimal": "bytes",
                "duration": "fixed",
                "date": "int",
                "time-millis": "int",
                "uuid": "string",
            }
            kind = base.get(name, "long")
            schema = {"type": kind, "name": "F", "size": 12, **more}
            assert avro_type(schema) == quoted(right)[0].replace("precision,scale", "9,2"), name
    assert told == {"decimal", "duration", *avro_schema._LOGICAL}  # pyright: ignore[reportPrivateUsage]


def test_debezium_types() -> None:
    bases = {name: logical.base for name, logical in LOGICAL_TYPES.items()}
    told: set[str] = set()
    for left, right in table(section("AVRO"), "`connect.name`"):
        if left.startswith("others"):
            continue
        for name in quoted(left):
            told.add(name)
            schema: Any = {"type": bases.get(name), "connect.name": name}
            if name == VARIABLE_DECIMAL:
                fields = [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]
                schema = {"type": "record", "name": "V", "connect.name": name, "fields": fields}
            assert avro_type(schema) == quoted(right)[0], name
    assert told == {VARIABLE_DECIMAL, *bases}


def test_protobuf_types() -> None:
    lines: list[str] = []
    expected: list[str] = []
    for left, right in table(section("PROTOBUF"), "Protobuf"):
        for name in quoted(left):
            if name in ("repeated", "map"):
                continue
            lines.append(f"{name} f{len(lines) + 1} = {len(lines) + 1};")
            expected.append("text" if name.endswith(".StringValue") else quoted(right)[0])
    imports = "".join(
        f'import "google/protobuf/{n}.proto";' for n in ("timestamp", "duration", "wrappers", "struct")
    )
    files = compiled(f'syntax = "proto3";{imports}message M {{ {" ".join(lines)} }}', {})
    found = [str(column.type) for column in protobuf_columns(find_message(files, "M"))]
    assert dict(zip(lines, found, strict=True)) == dict(zip(lines, expected, strict=True))


# What stands for something in the page's errors.
VARYING = re.compile(
    r"""\b[nm]\b|\.\.\.|0x\.\.|\(in field.*|"[^"]*"|'x'|\(p,s\)|\bf$|\b(?:0|5|200|1000)\b"""
    r"""|PROTOBUF|^\w+(?= out)"""
)
# Errors whose words come from elsewhere: PostgreSQL's texts in `types`, and Protobuf's parser.
ELSEWHERE = ("invalid input syntax", "unsupported Unicode", "Wire format was corrupt")


@pytest.mark.parametrize("title", ["TEXT, BYTES", "JSON", "CSV", "REGEX", "AVRO", "PROTOBUF"])
def test_every_error_told_is_one_of_the_code(title: str) -> None:
    """Each piece between what varies is in the code."""
    for left, _ in table(section(title), "error"):
        for error in quoted(left):
            words = re.sub(r"^\w+ deserialization error: ", "", error)
            if words.startswith(ELSEWHERE):
                continue
            for piece in VARYING.split(words):
                if len(piece.strip(' :,"')) > 3:
                    assert piece.strip(' :,"') in _plain_code(), error


def test_every_error_of_the_code_is_told() -> None:
    """By the longest piece of its text that does not vary; a schema's defaults are left out."""
    raised = re.findall(r"""Unreadable\(\s*f?(["'])(.*?)\1""", _plain_code())
    assert len(raised) > 25
    for _, text in raised:
        if "default" in text or text == "no text":
            continue
        piece = max(re.split(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", text), key=len).strip()
        assert piece in PAGE, text


def _plain_code() -> str:
    """The code's texts without what is put into them."""
    return re.sub(r'"\s*\n\s*f?"', "", CODE).replace("\\'", "'")


def test_numbers() -> None:
    assert f"nested more than {json_format.MAX_DEPTH} deep" in PAGE
    assert f"more than {MAX_EMPTY_ITEMS} items" in PAGE
    assert f"at most {MAX_SHOWN_BYTES} bytes" in PAGE
    assert f"more than {MAX_MESSAGE_BYTES >> 20} MB" in PAGE
    assert f"longer than {MAX_MESSAGE_BYTES}`" in PAGE
