"""A folder of files as a source: the contract, both forms, and what is wrong with files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sources.conformance import CHECKS, Subject
from tidemill.cdcv2 import AvroCodec, JsonCodec, Progress, UpdateColumns
from tidemill.errors import TidemillError
from tidemill.sources.contract import (
    MAX_BATCH_ROWS,
    Forgotten,
    ReadLimits,
    SourceBatch,
    SourcePiece,
    Stated,
    UpstreamError,
    UpstreamSource,
)
from tidemill.sources.definition import open_source
from tidemill.sources.files import reader as reader_module
from tidemill.sources.files import source as source_module
from tidemill.sources.files.fingerprints import digest
from tidemill.sources.offsets import Offsets

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def updates(first: int, count: int, time: int = 7) -> UpdateColumns:
    ids = np.arange(first, first + count)
    names = pa.array([f"name {i}" * (i % 9) for i in ids.tolist()])
    return UpdateColumns.of(pa.record_batch([pa.array(ids), names], schema=SCHEMA), np.full(count, time))


def said(first: int, count: int) -> list[UpdateColumns | Progress]:
    return [updates(first, count), Progress([first], [first + count], [(first, count)])]


def write_json(path: Path, messages: list[UpdateColumns | Progress], per_message: int = 50) -> None:
    codec = JsonCodec(SCHEMA)
    lines: list[bytes] = []
    for message in messages:
        if isinstance(message, UpdateColumns):
            lines += codec.encode_updates(message, per_message)
        else:
            lines += [b"", codec.encode_progress(message)]
    path.write_bytes(b"\n".join(lines) + b"\n")


def write_avro(path: Path, messages: list[UpdateColumns | Progress], codec: str = "null") -> None:
    avro = AvroCodec(SCHEMA)
    schema = fastavro.parse_schema(json.loads(avro.avro_schema))
    records: list[Any] = []
    for message in messages:
        if isinstance(message, UpdateColumns):
            records.append(
                [{"data": {"id": d[0], "name": d[1]}, "time": t, "diff": n} for d, t, n in message.rows()]
            )
        else:
            counts = [{"time": t, "count": n} for t, n in message.counts]
            records.append({"lower": message.lower, "upper": message.upper, "counts": counts})
    with open(path, "wb") as out:
        fastavro.writer(out, schema, records, codec=codec, sync_interval=4000)


def definition(form: str) -> dict[str, Any]:
    value: dict[str, Any] = {"format": "json"}
    if form == "avro":
        schema = AvroCodec(SCHEMA).avro_schema
        value = {"format": "avro", "schema": schema, "framed": False, "registry": None}
    output = {"name": "in", "envelope": {"kind": "materialize"}, "value": value}
    return {"kind": "files", "path": "in", "output": output, "started": 0}


def opened(root: Path, form: str) -> UpstreamSource:
    return open_source(definition(form), str(root))


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    found: dict[str, Subject] = {}
    for form, write in (("json", write_json), ("avro", write_avro)):
        root = tmp_path_factory.mktemp(form)
        (root / "in" / "sub").mkdir(parents=True)
        for n in range(2):
            write(root / "in" / f"{n}.x", [m for k in range(4) for m in said(1000 * n + 100 * k, 40)])
        write(root / "in" / "sub" / "y", said(9000, 500))
        (root / "in" / ".hidden").write_text("no")
        (root / "in" / "_no").write_text("no")
        found[form] = Subject(form, lambda root=root, form=form: opened(root, form), (0, 1), remote=True)
    return found


@pytest.mark.parametrize("form", ["json", "avro"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_files_conform(check: Callable[[Subject], None], form: str, subjects: dict[str, Subject]) -> None:
    check(subjects[form])


def everything(source: UpstreamSource, pieces: list[SourcePiece]) -> tuple[int, list[Stated]]:
    """How many updates, and what else was said."""
    batches: Iterator[SourceBatch] = (b for piece in pieces for b in source.reader().read(piece))
    count, stated = 0, list[Stated]()
    for batch in batches:
        count += batch.rows.num_rows
        stated += batch.stated
    return count, stated


@pytest.mark.parametrize("form", ["json", "avro"])
def test_statements_are_there_however_a_file_is_cut(form: str, subjects: dict[str, Subject]) -> None:
    source = subjects[form].open()
    upper = source.frontier(0)
    wanted = everything(source, [SourcePiece(p, 0, n) for p, n in upper.items()])
    assert len(wanted[1]) == 9 and wanted[0] == 2 * 4 * 40 + 500

    @settings(max_examples=20)
    @given(st.integers(1, 60))
    def run(step: int) -> None:
        pieces = [SourcePiece(p, a, min(a + step, n)) for p, n in upper.items() for a in range(0, n, step)]
        assert everything(source, pieces) == wanted

    run()


def test_deflated_blocks_are_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_avro(tmp_path / "in" / "a", [m for k in range(20) for m in said(k, 5)], "deflate")
    source = opened(tmp_path, "avro")
    count, stated = everything(source, [SourcePiece(p, 0, n) for p, n in source.frontier(0).items()])
    assert count == 100 and len(stated) == 20


def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    write_avro(folder / "cut", said(1, 50))
    data = (folder / "cut").read_bytes()
    (folder / "cut").write_bytes(data[:-20])
    (folder / "no").write_bytes(b"no Avro at all")
    (folder / "packed").write_bytes(data.replace(b"\x14avro.codec\x08null", b"\x14avro.codec\x08zstd"))
    source = opened(tmp_path, "avro")
    count, stated = everything(source, [SourcePiece(p, 0, n) for p, n in sorted(source.frontier(0).items())])  # pyright: ignore
    assert count == 0
    texts = [s.said for s in stated]
    assert texts[0] == f"Decode error: the file ends within a block\nIn file cut, byte {stated[0].offset}."
    assert str(texts[1]).startswith("Decode error: this is no Avro file: it does not begin as")
    assert str(texts[1]).endswith("\nIn file no, byte 0.")
    assert "compressed by zstd, which is not supported" in str(texts[2])
    lines = (b"[1]", b'{"lower":[0]}', b"{nonsense", b'[{"data":{"a":1},"time":5,"diff":1}]')
    (folder / "cut").write_bytes(b"\n".join(lines))
    for name in ("no", "packed"):
        (folder / name).unlink()
    source = opened(tmp_path, "json")
    count, stated = everything(source, [SourcePiece("cut", 0, 1)])
    assert count == 1 and [s.offset for s in stated] == [0, 4, 18]
    assert all("not a CDCv2 message in JSON" in str(s.said) for s in stated)


def test_batches_are_of_bounded_size(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_avro(tmp_path / "in" / "a", [updates(0, MAX_BATCH_ROWS + 10)])
    source = opened(tmp_path, "avro")
    (piece,) = (SourcePiece(p, 0, n) for p, n in source.frontier(0).items())
    batches = list(source.reader().read(piece))
    assert [b.rows.num_rows for b in batches] == [MAX_BATCH_ROWS, 10]
    assert [b.records for b in batches] == [piece.records, 0]


def test_a_folder_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    assert opened(tmp_path, "json").frontier(0) == Offsets()


def test_files_must_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a"
    write_json(path, said(1, 100))
    source = opened(tmp_path, "json")
    (piece,) = (SourcePiece(p, 0, n) for p, n in source.frontier(0).items())
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UpstreamError, match='file "a" has changed since it was read'):
        source.frontier(0)
    with pytest.raises(Forgotten, match='file "a" is not what it was'):
        list(source.reader().read(piece))
    path.unlink()
    with pytest.raises(UpstreamError, match="changed"):
        source.frontier(0)
    with pytest.raises(Forgotten, match="not what it was"):
        list(source.reader().read(piece))


def committed(source: UpstreamSource, lower: Offsets, upper: Offsets) -> dict[str, str]:
    """The marks of a range that was read."""
    marks = source.mark(lower, upper)
    source.confirm(marks)
    return dict(marks)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("how", ["in place", "renamed", "times kept"])
def test_a_file_that_is_overwritten_by_as_many_bytes_is_noticed(
    how: str, restarted: bool, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a"
    write_json(path, said(1, 5000))
    source = opened(tmp_path, "json")
    upper = source.frontier(0)
    # In two bindings.
    half = source.cut(Offsets(), upper, ReadLimits(100))
    marks = committed(source, Offsets(), half) | committed(source, half, upper)
    if restarted:
        source = opened(tmp_path, "json")
        source.recall(upper, marks)
    assert source.frontier(0) == upper
    before, stat = path.read_bytes(), path.stat()
    at = len(before) * 3 // 4
    after = before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :]

    def write(data: bytes) -> None:
        if how == "renamed":
            (tmp_path / "in" / ".new").write_bytes(data)
            (tmp_path / "in" / ".new").rename(path)
        else:
            path.write_bytes(data)
        if how == "times kept":
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    write(after)
    for _ in range(2):
        with pytest.raises(UpstreamError, match='file "a" has changed since it was read') as caught:
            source.frontier(0)
        assert caught.value.detail == f"It has {len(before)} bytes as before, but not the same ones."
    # As it was it is taken again; so is one that was only touched or copied.
    write(before)
    assert source.frontier(0) == upper
    path.touch()
    assert source.frontier(0) == upper
    again = opened(tmp_path, "json")
    again.recall(upper, marks)
    assert again.frontier(0) == upper


def test_a_file_that_is_gone_is_told_the_same_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_json(tmp_path / "in" / "a", said(1, 100))
    source = opened(tmp_path, "json")
    upper = source.frontier(0)
    marks = committed(source, Offsets(), upper)
    again = opened(tmp_path, "json")
    again.recall(upper, marks)
    for other in (None, b"another one"):
        (tmp_path / "in" / "a").unlink()
        if other is not None:
            (tmp_path / "in" / "a").write_bytes(other)
        told: list[str] = []
        for one in (source, again):
            with pytest.raises(UpstreamError) as caught:
                one.frontier(0)
            told.append(str(caught.value))
        assert told[0] == told[1] and 'file "a" has changed since it was read' in told[0]
        (tmp_path / "in" / "a").touch()
    # Without marks (nothing of it was read to its end) as much as is known.
    bare = opened(tmp_path, "json")
    bare.recall(upper, {})
    with pytest.raises(
        UpstreamError, match=f"has changed since it was read\\nDETAIL: It had {upper['a']} kilobytes"
    ):
        bare.frontier(0)


def test_a_file_that_is_written_to_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a"
    write_json(path, said(1, 100))
    source = opened(tmp_path, "json")
    upper = source.frontier(0)
    marks = source.mark(Offsets(), upper)
    path.write_bytes(path.read_bytes().replace(b"name", b"NAME"))
    with pytest.raises(UpstreamError, match="It was written to while it was read"):
        source.confirm(marks)
    # Nothing of it was taken in, so the new one is as good.
    assert source.frontier(0) == upper
    source.confirm(source.mark(Offsets(), upper))
    path.unlink()
    with pytest.raises(UpstreamError, match="has changed since it was read"):
        source.mark(Offsets(), upper)


def test_files_that_were_touched_are_looked_into_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for n in range(10):
        (tmp_path / "in" / str(n)).write_bytes(b"\n" * 1024)
    source = opened(tmp_path, "json")
    upper = source.frontier(0)
    committed(source, Offsets(), upper)
    looked: list[Path] = []
    monkeypatch.setattr(source_module, "BINDING_KIB", 4)
    monkeypatch.setattr(source_module, "digest", lambda path, a, b: looked.append(path) or digest(path, a, b))
    for n in range(10):
        (tmp_path / "in" / str(n)).touch()
    counts: list[int] = []
    for _ in range(4):
        source.frontier(0)
        counts.append(len(looked))
    assert counts == [4, 8, 10, 10]


def test_what_is_not_there_yet_is_told(tmp_path: Path) -> None:
    source = opened(tmp_path, "json")
    source.frontier(0)
    assert source.waits == 'folder "in" is not there yet'
    (tmp_path / "in").mkdir()
    source.frontier(0)
    assert source.waits == 'folder "in" has no files yet'
    write_json(tmp_path / "in" / "a", said(1, 1))
    source.frontier(0)
    assert source.waits is None
    (tmp_path / "file").write_text("")
    other = open_source(definition("json") | {"path": "file"}, str(tmp_path))
    with pytest.raises(UpstreamError, match="cannot be read") as caught:
        other.frontier(0)
    assert caught.value.detail == "Not a directory."


def test_paths_lead_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "root" / "in").symlink_to(tmp_path / "other")
    with pytest.raises(UpstreamError, match="not below the folder files_root"):
        opened(tmp_path / "root", "json")
    with pytest.raises(UpstreamError, match="no folder is configured"):
        open_source(definition("json"), "")
    (tmp_path / "root" / "in").unlink()
    (tmp_path / "root" / "in").mkdir()
    (tmp_path / "other" / "secret").write_text("{}")
    (tmp_path / "root" / "in" / "link").symlink_to(tmp_path / "other" / "secret")
    assert opened(tmp_path / "root", "json").frontier(0) == Offsets()


def test_a_binding_covers_no_more_than_it_may(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(b"\n" * 10 * 1024)
    source = opened(tmp_path, "json")
    assert source.cut(Offsets(), source.frontier(0), ReadLimits(3)) == Offsets({"a": 3})


def test_long_lines_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemill.sources.files import form

    monkeypatch.setattr(form, "MAX_MESSAGE_BYTES", 2000)
    monkeypatch.setattr(reader_module, "BATCH_BYTES", 10)
    (tmp_path / "in").mkdir()
    lines = (b'[{"data":1,"time":5,"diff":1}]', b"x" * 5000, b'[{"data":2,"time":5,"diff":1}]')
    (tmp_path / "in" / "a").write_bytes(b"\n".join(lines))
    source = opened(tmp_path, "json")
    count, stated = everything(source, [SourcePiece("a", 0, 1), SourcePiece("a", 1, 5)])
    assert count == 2 and "a line of more than 2000 bytes" in str(stated[0].said)


def test_a_definition_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TidemillError, match="definition cannot be read"):
        open_source({"kind": "files", "path": "x"}, str(tmp_path))
