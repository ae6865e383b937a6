"""Files of every format against the contract of sources: lines, compressed lines, whole files, and tables."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sources.conformance import CHECKS, Subject
from tidemill.sources.definition import open_source

INCLUDE = [{"what": what, "as": f"its_{what}"} for what in ("key", "offset", "timestamp")]
COLUMNS = [["id", "bigint"], ["tags", "text list"], ["of", "record(x bigint, y text)"]]
REGEX = {"format": "regex", "pattern": '(?P<name>[a-z]+)": (?P<number>[0-9]+)'}
CSV = {"format": "csv", "columns": ["a", "b"], "delimiter": ",", "header": False}


def outputs(*forms: dict[str, Any], key: str | None = None) -> list[dict[str, Any]]:
    """One of each format; and of the first one the latest row of each key."""
    none, plain = {"kind": "none"}, list[dict[str, Any]]()
    for n, form in enumerate(forms):
        plain.append({"name": f"o{n}", "value": form, "include": INCLUDE[:n], "envelope": none})
    if key is not None:
        upsert = {"kind": "upsert", "key": [key]}
        plain.append({"name": "latest", "value": forms[0], "include": INCLUDE, "envelope": upsert})
    return plain


def lines(first: int, count: int) -> bytes:
    return b"".join(b'{"n": %d, "m": 2}%s' % (n, b"\r\n" if n % 3 else b"\n\n") for n in range(first, count))


def records(first: int, count: int) -> list[dict[str, Any]]:
    return [
        {"id": n, "tags": None if n % 5 == 0 else ["t", str(n)], "of": {"x": n, "y": None}}
        for n in range(first, first + count)
    ]


def parquet(first: int, count: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records(first, count)), out, row_group_size=20)
    return out.getvalue()


def avro(first: int, count: int) -> bytes:
    tags = ["null", {"type": "array", "items": "string"}]
    fields = [{"name": "x", "type": "long"}, {"name": "y", "type": ["null", "string"]}]
    of = {"type": "record", "name": "of", "fields": fields}
    parts = [{"name": "id", "type": "long"}, {"name": "tags", "type": tags}, {"name": "of", "type": of}]
    out = io.BytesIO()
    schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": parts})
    fastavro.writer(out, schema, records(first, count), "deflate", sync_interval=100)
    return out.getvalue()


def table(form: str) -> dict[str, Any]:
    return {"format": form, "columns": COLUMNS}


# By name: the outputs, how a file is written, the end of its name, and how its positions are.
Kind = tuple[list[dict[str, Any]], Callable[[int, int], bytes], str, dict[str, Any]]
KINDS: dict[str, Kind] = {
    "lines": (outputs(CSV, {"format": "json"}, REGEX, {"format": "text"}, key="a"), lines, "", {}),
    "compressed": (
        outputs(CSV, {"format": "text"}, key="a"),
        lambda first, count: gzip.compress(lines(first, count)),
        ".gz",
        {"whole": True, "sparse": True},
    ),
    "bytes": (outputs({"format": "bytes"}), lines, "", {"whole": True}),
    "parquet": (outputs(table("parquet"), key="id"), parquet, "", {"sparse": True}),
    "avro": (outputs(table("avro"), key="id"), avro, "", {"sparse": True}),
}


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    found: dict[str, Subject] = {}
    for name, (specs, write, end, more) in KINDS.items():
        root = tmp_path_factory.mktemp(name)
        (root / "in" / "sub").mkdir(parents=True)
        (root / "in" / f"1{end}").write_bytes(write(0, 30))
        (root / "in" / "sub" / f"2{end}").write_bytes(write(20, 90))
        for hidden in (".hidden", "_SUCCESS"):
            (root / "in" / hidden).write_text("no\n")
        for file in root.rglob("*"):
            os.utime(file, (1, 1))
        of = {"kind": "files", "path": "in", "matching": None, "compression": "auto", "outputs": specs}
        of |= {"started": 0, "tailed": name == "lines"}
        found[name] = Subject(name, lambda of=of, root=root: open_source(of, str(root)), (0, 1), **more)
    return found


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_files_conform(check: Callable[[Subject], None], name: str, subjects: dict[str, Subject]) -> None:
    check(subjects[name])
