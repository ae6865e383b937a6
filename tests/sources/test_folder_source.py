"""The files of a folder as rows: the contract, the formats, files that grow, and files that change."""

from __future__ import annotations

import gzip
import itertools
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.errors import InvalidValue
from tidemill.sources.contract import Forgotten, UpstreamError, UpstreamLost, UpstreamSource
from tidemill.sources.definition import open_source
from tidemill.sources.objects import lines as lines_module
from tidemill.sources.objects.lines import Broken, Lines, ranged
from tidemill.sources.objects.patterns import folder_of, is_shown, pattern
from tidemill.sources.offsets import Offsets

TEXT: dict[str, Any] = {"format": "text"}
JSON: dict[str, Any] = {"format": "json"}
CSV: dict[str, Any] = {"format": "csv", "columns": ["a", "b"], "delimiter": ",", "header": True}


def definition(form: dict[str, Any], **more: Any) -> dict[str, Any]:
    output = {"name": "in", "value": form, "include": more.pop("include", [])}
    output["envelope"] = more.pop("envelope", {"kind": "none"})
    whole = form["format"] == "bytes"
    found = {"kind": "files", "path": "in", "matching": None, "compression": "auto", "tailed": not whole}
    return {**found, "outputs": [output], "started": 0, **more}


def opened(root: Path, form: dict[str, Any], **more: Any) -> UpstreamSource:
    return open_source(definition(form, **more), str(root))


ALL = [{"what": "key", "as": None}, {"what": "offset", "as": None}, {"what": "timestamp", "as": "at"}]


def rows(source: UpstreamSource, lower: Offsets, upper: Offsets, ways: int = 1) -> list[tuple[Any, ...]]:
    """Values and the error, in order."""
    source.stamps(lower, upper)
    reader, pieces = source.plan(lower, upper, ways, frozenset({0}))
    found: list[tuple[Any, ...]] = []
    for piece in pieces:
        for batch in reader.read(piece):
            found += zip(*(column.to_pylist() for column in batch.rows.columns), strict=True)
    return found


def everything(source: UpstreamSource) -> list[tuple[Any, ...]]:
    return rows(source, Offsets(), source.frontier(0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


# -- lines


@settings(max_examples=200)
@given(
    st.binary(max_size=60).map(lambda b: b.translate(bytes(b"ab\n\r\n"[n % 5] for n in range(256)))),
    st.data(),
)
def test_every_line_is_in_one_range(data: bytes, draw: st.DataObject) -> None:
    """However the bytes are cut into ranges, and those into chunks."""
    wanted: list[tuple[int, bytes]] = []
    at = 0
    for line in data.splitlines(keepends=False) if b"\r" not in data else _lines(data):
        wanted.append((at, line.removesuffix(b"\r")))
        at = data.find(b"\n", at) + 1
    chunk = draw.draw(st.integers(1, 9))

    def stream(lower: int, upper: int) -> Iterator[bytes]:
        for begin in range(lower, upper, chunk):
            yield data[begin : min(upper, begin + chunk)]

    edges = sorted({0, len(data), *draw.draw(st.lists(st.integers(0, len(data)), max_size=4))})
    found: list[tuple[int, bytes]] = []
    for lower, upper in itertools.pairwise(edges):
        for lines in ranged(stream, lower, upper, len(data)):
            assert isinstance(lines, Lines)
            found += zip(lines.offsets.tolist(), lines.values.to_pylist(), strict=True)
    assert found == wanted


def _lines(data: bytes) -> list[bytes]:
    parts = data.split(b"\n")
    return parts[:-1] if not parts[-1] else parts


def test_a_line_that_is_too_long_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_MESSAGE_BYTES", 10)
    data = b"a\n" + b"x" * 50 + b"\nb\n"

    def stream(lower: int, upper: int) -> Iterator[bytes]:
        return (data[n : min(upper, n + 4)] for n in range(lower, upper, 4))

    for edges in ([0, len(data)], [0, 7, 30, len(data)]):
        found: list[Any] = []
        for lower, upper in itertools.pairwise(edges):
            for part in ranged(stream, lower, upper, len(data)):
                found += [part.offset] if isinstance(part, Broken) else part.values.to_pylist()
        assert found == [b"a", 2, b"b"]


# -- formats


def test_text_has_a_row_per_line_and_its_metadata(folder: Path, tmp_path: Path) -> None:
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\nthree\n")
    os.utime(folder / "a.txt", (1_700_000_000, 1_700_000_000))
    found = everything(opened(tmp_path, TEXT, include=ALL))
    assert [row[:3] for row in found] == [("one", "a.txt", 0), ("", "a.txt", 8), ("three", "a.txt", 9)]
    assert str(found[0][3]) == "2023-11-14 22:13:20"


def test_csv_has_a_header_in_each_file(folder: Path, tmp_path: Path) -> None:
    (folder / "1").write_text('a,b\n1,"x, y"\n2\n3,4,5\n')
    (folder / "2").write_text("b,a\n3,z\n")
    found = everything(opened(tmp_path, CSV))
    assert [row[:2] for row in found if row[0] == "1"] == [("1", "x, y")]
    short, long, header = sorted(str(row[2]) for row in found if row[2:] and row[2])
    assert short.startswith("Decode error: csv deserialization error") and short.endswith(
        'File "1", byte 13.'
    )
    assert "csv deserialization error" in long and long.endswith('File "1", byte 15.')
    assert "the header is b,a; expected are the columns a, b" in header and header.endswith(
        'File "2", byte 0.'
    )


def test_bytes_are_a_row_per_file(folder: Path, tmp_path: Path) -> None:
    (folder / "x.bin").write_bytes(b"\0\n\1")
    (folder / "y.bin.gz").write_bytes(gzip.compress(b"packed"))
    source = opened(tmp_path, {"format": "bytes"})
    assert source.frontier(0) == Offsets()  # someone may be writing
    for name in ("x.bin", "y.bin.gz"):
        os.utime(folder / name, (1, 1))
    assert sorted(everything(opened(tmp_path, {"format": "bytes"}))) == [(b"\0\n\1",), (b"packed",)]


@pytest.mark.parametrize(("end", "codec"), [(".gz", "gzip"), (".zst", "zstd")])
def test_compressed_lines_are_read_by_name_or_option(
    folder: Path, tmp_path: Path, end: str, codec: str
) -> None:
    data = b"".join(b"line %d\n" % n for n in range(200_000))
    packed = pa.Codec(codec).compress(data[:1_000_000], asbytes=True)
    packed += pa.Codec(codec).compress(data[1_000_000:], asbytes=True)
    for name in (f"a{end}", "b"):
        (folder / name).write_bytes(packed)
        os.utime(folder / name, (1, 1))
    wanted = [(f"line {n}",) for n in range(200_000)]
    assert everything(opened(tmp_path, TEXT, matching="*" + end)) == wanted
    assert everything(opened(tmp_path, TEXT, matching="b", compression=codec, tailed=False)) == wanted
    source = opened(tmp_path, TEXT, matching="*" + end)
    upper = source.frontier(0)
    assert (
        source.cut(Offsets(), upper, definitely(10)) == upper and len(source.split(Offsets(), upper, 9)) == 1
    )


def definitely(records: int) -> Any:
    from tidemill.sources.contract import ReadLimits

    return ReadLimits(records)


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_compressed_file_that_breaks_off_is_an_error_row(folder: Path, tmp_path: Path, codec: str) -> None:
    rng = np.random.default_rng(1)
    data = b"".join(b"%d\n" % n for n in rng.integers(0, 1 << 60, 500_000).tolist())
    packed = pa.Codec(codec).compress(data, asbytes=True)
    (folder / "a").write_bytes(packed[: len(packed) // 2])
    os.utime(folder / "a", (1, 1))
    found = everything(opened(tmp_path, TEXT, compression=codec, tailed=False))
    lines = data.decode().split("\n")
    good = [row[0] for row in found if len(row) == 1 or row[1] is None]
    assert good == lines[: len(good)]
    if codec == "gzip":
        there = zlib.decompressobj(31).decompress(packed[: len(packed) // 2])
        assert len(good) == there.count(b"\n") and f"byte {len(there)}." in str(found[-1][1])
    (error,) = [row[1] for row in found if len(row) > 1 and row[1] is not None]
    assert f"its {codec} stream breaks off" in error and 'File "a", byte' in error


# -- files that grow


def test_a_growing_file_is_tailed_by_complete_lines(folder: Path, tmp_path: Path) -> None:
    path = folder / "log"
    path.write_bytes(b"one\ntw")
    source = opened(tmp_path, TEXT)
    first = source.frontier(0)
    assert (
        first == Offsets({"log": 4}) and source.waits == 'the last 2 bytes of file "log" have no line end yet'
    )
    assert rows(source, Offsets(), first) == [("one",)]
    assert source.frontier(0) == first
    with open(path, "ab") as file:
        file.write(b"o\nthree\nfo")
    second = source.frontier(0)
    assert rows(source, first, second, 3) == [("two",), ("three",)]
    source.confirm(source.mark(first, second))
    # A later process knows the stamps only.
    later = opened(tmp_path, TEXT)
    later.recall(second, {"log": source.stamps(first, second)["log"]})
    with open(path, "ab") as file:
        file.write(b"ur\n")
    third = later.frontier(0)
    assert rows(later, second, third) == [("four",)] and later.waits is None


def test_new_files_and_folders_are_found(folder: Path, tmp_path: Path) -> None:
    source = opened(tmp_path, TEXT, matching="**/*.txt")
    assert source.frontier(0) == Offsets() and source.waits == 'folder "in" has no files yet'
    (folder / "a.txt").write_text("1\n")
    (folder / "a.csv").write_text("no\n")
    assert source.frontier(0) == Offsets({"a.txt": 2})
    (folder / "x" / "y").mkdir(parents=True)
    (folder / "x" / "y" / "b.txt").write_text("2\n")
    assert source.frontier(0) == Offsets({"a.txt": 2, "x/y/b.txt": 2})
    # What was not read yet may go; what was read leaves its rows.
    rows(source, Offsets(), Offsets({"a.txt": 2}))
    (folder / "a.txt").unlink()
    (folder / "x" / "y" / "b.txt").unlink()
    assert source.frontier(0) == Offsets({"a.txt": 2})


# -- files that change


@pytest.mark.parametrize("again", [False, True], ids=["same process", "later process"])
@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"on", "It had at least 8 bytes; now it has 2 bytes."),
        (b"ONE\ntwo\n", "Its first 8 bytes are others than those that were read."),
        (b"two\none\nand more\n", "Its first 8 bytes are others than those that were read."),
    ],
)
def test_a_file_that_is_another_is_an_error(
    folder: Path, tmp_path: Path, data: bytes, said: str, again: bool
) -> None:
    path = folder / "a"
    path.write_bytes(b"one\ntwo\n")
    (folder / "b").write_bytes(b"b\n")
    source = opened(tmp_path, TEXT)
    upper = source.frontier(0)
    stamps = source.stamps(Offsets(), upper)
    if again:
        source = opened(tmp_path, TEXT)
        source.recall(upper, {str(key): text for key, text in stamps.items()})
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(UpstreamLost, match='file "a" has changed since it was read') as caught:
            source.frontier(0)
        assert caught.value.detail == said and caught.value.hint
    with pytest.raises(UpstreamError):
        source.confirm(source.mark(Offsets(), upper))
    # Put back, it goes on.
    path.write_bytes(b"one\ntwo\nthree\n")
    assert source.frontier(0) == Offsets({"a": 14, "b": 2})


def test_a_file_that_is_gone_before_it_was_read_is_an_error(folder: Path, tmp_path: Path) -> None:
    (folder / "a").write_bytes(b"one\n")
    source = opened(tmp_path, TEXT)
    upper = source.frontier(0)
    source.stamps(Offsets(), upper)
    reader, (piece,) = source.plan(Offsets(), upper, 1, frozenset({0}))
    (folder / "a").unlink()
    with pytest.raises(Forgotten, match="is not what it was when it was bound"):
        list(reader.read(piece))


# -- patterns


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("*.csv", ["a.csv", ".csv"], ["x/a.csv", "a.csv.gz"]),
        ("**/*.csv", ["a.csv", "x/a.csv", "x/y/a.csv"], ["a.tsv"]),
        ("logs/**", ["logs/a", "logs/x/y"], ["log/a"]),
        ("a?[0-9][!x].{json,txt}", ["ab1y.json", "ab1y.txt"], ["ab1x.json", "a/1y.json", "abcy.txt"]),
        (r"a\*", ["a*"], ["ab"]),
        ("a.b", ["a.b"], ["axb"]),
    ],
)
def test_patterns(glob: str, yes: list[str], no: list[str]) -> None:
    found = pattern(glob)
    assert [n for n in yes + no if found.fullmatch(n)] == yes


@pytest.mark.parametrize("glob", ["", "[a", "{a", "x" * 2000, "[z-a]"])
def test_what_is_no_pattern_is_refused(glob: str) -> None:
    with pytest.raises(InvalidValue, match="is no pattern"):
        pattern(glob)


def test_where_a_pattern_looks() -> None:
    assert [folder_of(g) for g in ("a/b/*.csv", "*.csv", "a/b", "a{b,c}/d")] == ["a/b/", "", "a/", ""]
    assert [is_shown(k) for k in ("a/b", "a/_b", ".a/b", "a/")] == [True, False, False, False]
