"""COPY's formats: against PostgreSQL's rules written down one by one, against a slow reader, and cut
anywhere."""

from __future__ import annotations

import csv
import io
import itertools
import struct
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.engine.api import CopyOptions
from tidemill.errors import TidemillError
from tidemill.server import limits
from tidemill.server.copy import copy_decoder, copy_encoder
from tidemill.types import model
from tidemill.types.model import Column

TEXT = CopyOptions()
CSV = CopyOptions(format="csv", delimiter=",", null="")
BINARY = CopyOptions(format="binary")
ALL = [
    TEXT,
    replace(TEXT, delimiter="|", null="", header=True),
    CSV,
    replace(CSV, delimiter=";", null="NULL", quote="'", escape="'", header=True),
    replace(CSV, escape="\\"),
    BINARY,
]
AB = (Column("a", model.INT4), Column("b", model.TEXT))

Rows = list[tuple[object, ...]]


def batch(columns: tuple[Column, ...], rows: Rows) -> pa.RecordBatch:
    types = {model.INT4: pa.int32(), model.TEXT: pa.string(), model.BOOL: pa.bool_()}
    arrays = [pa.array([r[i] for r in rows], types[c.type]) for i, c in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, names=[c.name for c in columns])


def encode(columns: tuple[Column, ...], rows: Rows, options: CopyOptions) -> bytes:
    encoder = copy_encoder(columns, options)
    middle: list[bytes] = encoder.encode(batch(columns, rows)).to_pylist() if rows else []
    return b"".join([*encoder.start(), *middle, *encoder.end()])


def decode(
    columns: tuple[Column, ...], data: bytes, options: CopyOptions, cuts: list[int] | None = None
) -> Rows:
    decoder = copy_decoder(columns, options, relation="t")
    edges = [0, *sorted(c for c in cuts or [] if c < len(data)), len(data)]
    batches = [b for x, y in itertools.pairwise(edges) for b in decoder.feed(data[x:y])]
    batches += decoder.finish()
    for b in batches:
        assert b.schema.names == [c.name for c in columns]
    return [tuple(row.values()) for b in batches for row in b.to_pylist()]


# Characters that mean something in one of the formats, more often than not.
NASTY = st.text(
    st.one_of(
        st.sampled_from("\\\t\n\r\"',;|N.xn08 é"), st.characters(codec="utf-8", exclude_characters="\0")
    ),
    max_size=8,
)
ROWS = st.lists(
    st.tuples(st.none() | st.integers(-(2**31), 2**31 - 1), st.none() | NASTY, st.none() | st.booleans()),
    max_size=8,
)
ABC = (*AB, Column("c d", model.BOOL))


@pytest.mark.parametrize("options", ALL, ids=lambda o: f"{o.format}{o.delimiter!r}{o.escape}")
@settings(deadline=None)
@given(rows=ROWS, cuts=st.lists(st.integers(0, 200), max_size=6))
def test_what_goes_out_comes_back(options: CopyOptions, rows: Rows, cuts: list[int]) -> None:
    if options.format == "text" and options.null == "":
        # In text format an empty null string and an empty text are the same, in PostgreSQL too.
        rows = [(a, None if b == "" else b, c) for a, b, c in rows]
    assert decode(ABC, encode(ABC, rows, options), options, cuts) == rows


@settings(deadline=None)
@given(rows=st.lists(st.tuples(NASTY, NASTY), min_size=1))
def test_csv_agrees_with_another_reader(rows: Rows) -> None:
    columns = (Column("a", model.TEXT), Column("b", model.TEXT))
    data = encode(columns, rows, replace(CSV, force_quote=("*",)))
    assert [tuple(r) for r in csv.reader(io.StringIO(data.decode(), newline=""), strict=True)] == rows
    written = io.StringIO()
    csv.writer(written, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
    assert decode(columns, written.getvalue().encode(), CSV) == rows


# -- the text format


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"1\tx\n2\t\\N\n", [(1, "x"), (2, None)]),
        (b"1\tno end", [(1, "no end")]),
        (b"", []),
        (b"1\t\n", [(1, "")]),
        (b"1\ta\\tb\\nc\\\\d\\re\\bf\\fg\\v\n", [(1, "a\tb\nc\\d\re\bf\fg\v")]),
        (b"1\t\\101\\x41\\x4g\\7\\q\\x\n", [(1, "AA\x04g\x07qx")]),
        (b"1\t\\1011\\x411\n", [(1, "A1A1")]),
        (b"1\tback\\\nslash newline\n", [(1, "back\nslash newline")]),
        (b"1\ttab\\\tescaped\n", [(1, "tab\tescaped")]),
        (b"1\t\\\\N\n2\tN\n3\t\\N \n", [(1, "\\N"), (2, "N"), (3, "N ")]),
        (b"1\tx\n\\.\n2\tignored\n", [(1, "x")]),
        (b"\\.\n", []),
        (b"1\tx\r\n2\t\\N\r\n", [(1, "x"), (2, None)]),
        (b"1\tx\r\n\\.\r\nignored", [(1, "x")]),
        (b"1\tx\r2\ty\r", [(1, "x"), (2, "y")]),
        (b"1\tlone\\", [(1, "lone")]),
        (b"1\t\\303\\251\n", [(1, "é")]),
    ],
)
def test_text_format_in(data: bytes, rows: Rows) -> None:
    assert decode(AB, data, TEXT) == rows
    for cut in range(len(data)):
        assert decode(AB, data, TEXT, [cut]) == rows


def test_text_format_out() -> None:
    rows: Rows = [(1, "a\tb\nc\\d\re\bf\fg\vé"), (None, "\\N"), (3, "")]
    assert encode(AB, rows, TEXT) == b"1\ta\\tb\\nc\\\\d\\re\\bf\\fg\\v\xc3\xa9\n\\N\t\\\\N\n3\t\n"
    options = replace(TEXT, delimiter="|", null="null", header=True)
    assert encode(AB, [(None, "a|b\t")], options) == b"a|b\nnull|a\\|b\\t\n"


# -- csv


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"1,x\n2,\n", [(1, "x"), (2, None)]),
        (b'1,""\n', [(1, "")]),
        (b'1,"a,b"\n', [(1, "a,b")]),
        (b'1,"a""b"\n', [(1, 'a"b')]),
        (b'1,""""\n', [(1, '"')]),
        (b'1,""""""\n', [(1, '""')]),
        (b'1,"a\nb"\n2,"c\r\nd"\n', [(1, "a\nb"), (2, "c\r\nd")]),
        (b'1,ab"c,d"ef\n', [(1, "abc,def")]),
        (b'1,a""b\n', [(1, "ab")]),
        (b'"1",x', [(1, "x")]),
        (b"1,x\r\n2,\r\n", [(1, "x"), (2, None)]),
        (b'1,"x"\r2,y\r', [(1, "x"), (2, "y")]),
        (b"1, x \n", [(1, " x ")]),
        (b"1,\\.\n2,\\N\n", [(1, "\\."), (2, "\\N")]),
        (b'1,x\n\\.\n2,"ignored\n', [(1, "x")]),
        (b"\\.\n", []),
        (b"1,x\r\n\\.\r\nignored", [(1, "x")]),
        (b'1,"\n\\.\n"\n\\.\na', [(1, "\n\\.\n")]),
    ],
)
def test_csv_in(data: bytes, rows: Rows) -> None:
    assert decode(AB, data, CSV) == rows
    for cut in range(len(data)):
        assert decode(AB, data, CSV, [cut]) == rows


def test_only_a_whole_line_ends_csv_data() -> None:
    one = (Column("a", model.TEXT),)
    for data, rows in (
        (b"x\n\\.", [("x",), ("\\.",)]),
        (b"x\n\\.\na", [("x",)]),
        (b'"\\."\n\\.x\n \\.\n', [("\\.",), ("\\.x",), (" \\.",)]),
    ):
        for cut in range(len(data)):
            assert decode(one, data, CSV, [cut]) == rows


def test_csv_in_options() -> None:
    escaped = replace(CSV, escape="\\")
    data = b'1,"a\\"b\\\\c\\d"\n2,"x"\n3,\\"quoted, after\n'
    assert decode(AB, data + b'"\n', escaped) == [(1, 'a"b\\c\\d'), (2, "x"), (3, "\\quoted, after\n")]
    forced = replace(CSV, null="NULL", force_null=("b",), force_not_null=("a",))
    columns = (Column("a", model.TEXT), Column("b", model.TEXT), Column("c", model.TEXT))
    data = b'NULL,"NULL","NULL"\nNULL,NULL,NULL\n'
    assert decode(columns, data, forced) == [("NULL", None, "NULL"), ("NULL", None, None)]
    everything = replace(CSV, force_null=("*",), header=True)
    assert decode(columns, b'a,"b\n",c\n"",,x\n', everything) == [(None, None, "x")]


def test_csv_out() -> None:
    rows: Rows = [(1, "plain"), (2, 'say "hi", ok'), (3, "a\nb"), (4, ""), (None, None), (5, "x\ry")]
    assert encode(AB, rows, CSV) == b'1,plain\n2,"say ""hi"", ok"\n3,"a\nb"\n4,""\n,\n5,"x\ry"\n'
    assert encode(AB, [(1, None)], replace(CSV, force_quote=("*",), header=True)) == b'a,b\n"1",\n'
    assert encode(AB, [(1, "NULL")], replace(CSV, null="NULL")) == b'1,"NULL"\n'
    assert encode(AB, [(1, 'a"\\')], replace(CSV, escape="\\")) == b'1,"a\\"\\\\"\n'
    assert encode(AB[1:], [("\\.",)], CSV) == b'"\\."\n'
    assert encode((Column('x,"y"', model.INT4),), [], replace(CSV, header=True)) == b'"x,""y"""\n'


# -- binary

SIGNATURE = b"PGCOPY\n\xff\r\n\0" + bytes(8)


def test_binary_layout() -> None:
    data = encode(AB, [(1, "é"), (None, "")], BINARY)
    assert data == (
        SIGNATURE
        + struct.pack("!hiii", 2, 4, 1, 2)
        + "é".encode()
        + struct.pack("!hii", 2, -1, 0)
        + struct.pack("!h", -1)
    )
    encoder = copy_encoder(AB, BINARY)
    first = encoder.encode(batch(AB, [(1, "x"), (2, "y")])).to_pylist()
    assert (encoder.start(), first[0][:19], first[1][:2]) == ([], SIGNATURE, b"\0\2")
    assert encode(AB, [], BINARY) == SIGNATURE + b"\xff\xff"


def test_binary_in_takes_what_is_allowed() -> None:
    extended = SIGNATURE[:-4] + struct.pack("!i", 3) + b"abc"
    assert decode(AB, extended + struct.pack("!hiii", 2, 4, 7, 1) + b"x", BINARY) == [(7, "x")]
    assert decode(AB, SIGNATURE, BINARY) == []


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "signature not recognized"),
        (b"PGCOPX" + bytes(20), "signature not recognized"),
        (SIGNATURE[:12], "signature not recognized"),
        (SIGNATURE[:11] + struct.pack("!Ii", 1 << 16, 0), "critical flags"),
        (SIGNATURE[:11] + struct.pack("!Ii", 0, -1), "wrong length"),
        (SIGNATURE + struct.pack("!h", 3), "row field count is 3, expected 2"),
        (SIGNATURE + struct.pack("!hi", 2, -2), "invalid field size"),
        (SIGNATURE + struct.pack("!hi", 2, 4), "unexpected EOF"),
        (SIGNATURE + b"\xff\xffmore", "after EOF marker"),
    ],
)
def test_binary_in_refuses(data: bytes, text: str) -> None:
    with pytest.raises(TidemillError, match=text) as caught:
        decode(AB, data, BINARY)
    assert caught.value.sqlstate == "22P04"


# -- errors


@pytest.mark.parametrize(
    ("options", "data", "sqlstate", "text", "where"),
    [
        (TEXT, b"1\ta\nabc\tb\n", "22P02", "invalid input syntax", 'COPY t, line 2, column a: "abc"'),
        (TEXT, b"1\ta\n2\n", "22P04", 'missing data for column "b"', 'COPY t, line 2: "2"'),
        (TEXT, b"1\ta\tb\n", "22P04", "extra data after last expected column", 'COPY t, line 1: "1\ta\tb"'),
        (TEXT, b"bad\ta\n2\n", "22P02", "invalid input syntax", 'COPY t, line 1, column a: "bad"'),
        (TEXT, b"1\ta\n2\tb\rc\n", "22P04", "literal carriage return", "COPY t, line 2"),
        (TEXT, b"1\ta\r\n2\tb\n", "22P04", "literal newline", "COPY t, line 2"),
        (TEXT, b"1\ta\r\n2\tb\rc\r\n", "22P04", "literal carriage return", "COPY t, line 2"),
        (TEXT, b"1\ta\r2\tb\n", "22P04", "literal newline", "COPY t, line 2"),
        (TEXT, b"1\ta\n2\t\xff\n", "22021", "invalid byte sequence", "COPY t, line 2, column b"),
        (TEXT, b"1\ta\n2\t\\0\n", "22021", "invalid byte sequence", "COPY t, line 2, column b"),
        (TEXT, b"9999999999\ta\n", "22003", "out of range", 'COPY t, line 1, column a: "9999999999"'),
        (replace(TEXT, header=True), b"h\ti\nx\ta\n", "22P02", "syntax", 'COPY t, line 2, column a: "x"'),
        (CSV, b'1,"a\nb"\nx,c\n', "22P02", "invalid input syntax", 'COPY t, line 3, column a: "x"'),
        (CSV, b'1,"a\nb"\n2\n', "22P04", 'missing data for column "b"', 'COPY t, line 3: "2"'),
        (CSV, b'1,a\n2,"b\n', "22P04", "unterminated CSV quoted field", 'COPY t, line 3: "2,"b\n"'),
        (CSV, b"1,a\n2,b\rc\n", "22P04", "unquoted carriage return", "COPY t, line 2"),
        (CSV, b"1,a\r\n2,b\n", "22P04", "unquoted newline", "COPY t, line 2"),
        (CSV, b"1,a,b\n", "22P04", "extra data", 'COPY t, line 1: "1,a,b"'),
    ],
)
def test_errors_say_where(options: CopyOptions, data: bytes, sqlstate: str, text: str, where: str) -> None:
    with pytest.raises(TidemillError, match=text) as caught:
        decode(AB, data, options)
    assert (caught.value.sqlstate, where in (caught.value.context or "")) == (sqlstate, True), caught.value


def test_the_first_bad_row_is_reported_however_the_columns_lie() -> None:
    columns = (Column("a", model.INT4), Column("b", model.BOOL))
    with pytest.raises(TidemillError) as caught:
        decode(columns, b"1\tt\n2\tmaybe\nx\tt\n", TEXT)
    assert caught.value.context == 'COPY t, line 2, column b: "maybe"'
    with pytest.raises(TidemillError) as caught:
        decode(columns, b"1\tt\nx\tmaybe\n3\n", TEXT)
    assert caught.value.context == 'COPY t, line 2, column a: "x"'


@pytest.mark.parametrize("options", [TEXT, CSV, BINARY], ids=lambda o: o.format)
def test_line_numbers_go_on_over_blocks(options: CopyOptions) -> None:
    data = encode(AB, [(i, "x") for i in range(10)], options)
    decoder = copy_decoder(AB, options, relation="t")
    for i in range(len(data) - 2):
        decoder.feed(data[i : i + 1])
    bad = struct.pack("!hiii", 2, 4, 7, 1) + b"\xff" if options is BINARY else b"7" + data[1:2] + b"\xff\n"
    with pytest.raises(TidemillError, match="invalid byte sequence") as caught:
        decoder.feed((b"" if options is BINARY else data[-2:]) + bad)
        decoder.finish()
    assert "line 11, column b" in (caught.value.context or "")


@pytest.mark.parametrize("options", [TEXT, CSV], ids=lambda o: o.format)
def test_tables_without_columns(options: CopyOptions) -> None:
    nothing = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert copy_encoder((), options).encode(nothing).to_pylist() == [b"\n", b"\n"]
    with pytest.raises(TidemillError, match="without columns"):
        copy_decoder((), options)


@pytest.mark.parametrize("options", [TEXT, CSV, BINARY], ids=lambda o: o.format)
def test_a_row_without_end_is_refused(options: CopyOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_COPY_ROW_BYTES", 10_000)
    start = {"text": b"1\t", "csv": b'1,"\n', "binary": SIGNATURE + struct.pack("!hiii", 2, 4, 1, 1 << 30)}
    decoder = copy_decoder(AB, options)
    decoder.feed(start[options.format])
    with pytest.raises(TidemillError, match="longer than 10000 bytes") as caught:
        for _ in range(100):
            decoder.feed(b"\n" * 1000 if options.format == "csv" else b"x" * 1000)
    assert caught.value.sqlstate == "54000"


@settings(deadline=None)
@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=4), st.sampled_from(ALL))
def test_garbage_is_refused_or_read_but_never_a_crash(
    data: bytes, cuts: list[int], options: CopyOptions
) -> None:
    """And the outcome does not depend on the cuts."""

    def outcome(cuts: list[int]) -> object:
        try:
            return decode(AB, data, options, cuts)
        except TidemillError as e:
            return e.sqlstate

    assert outcome(cuts) == outcome([])
