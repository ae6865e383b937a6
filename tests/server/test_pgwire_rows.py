"""DataRow and the other replies: the vectorised bytes against a model that packs them one by one."""

from __future__ import annotations

import asyncio
import gc
import struct
import weakref
from collections.abc import AsyncIterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pgframes as f
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemill.engine.api import Rows
from tidemill.errors import InvalidValue, Notice
from tidemill.server import limits
from tidemill.server.bytecolumns import content
from tidemill.server.pgwire import replies
from tidemill.server.pgwire.messages import MalformedMessage
from tidemill.server.pgwire.results import RowStream
from tidemill.server.pgwire.rows import (
    RowEncoder,
    data_rows,
    framed,
    is_light,
    pieces,
    result_formats,
    rows_of_a_piece,
)
from tidemill.types import model
from tidemill.types.arrow import arrow_type
from tidemill.types.model import Column

CELLS = st.one_of(st.none(), st.binary(max_size=12))


def packed(row: tuple[bytes | None, ...]) -> bytes:
    body = struct.pack("!h", len(row))
    for cell in row:
        body += struct.pack("!i", -1) if cell is None else struct.pack("!i", len(cell)) + cell
    return f.frame(b"D", body)


@settings(deadline=None)
@given(
    st.integers(0, 5).flatmap(lambda width: st.lists(st.tuples(*[CELLS] * width), max_size=9)),
    st.integers(0, 4),
)
def test_data_rows(rows: list[tuple[bytes | None, ...]], skip: int) -> None:
    """Sliced columns too, whose offsets do not start at zero."""
    width = len(rows[0]) if rows else 0
    columns = [pa.array([r[i] for r in rows], pa.binary()).slice(skip) for i in range(width)]
    kept = rows[skip:]
    assert bytes(content(data_rows(columns, len(kept)))) == b"".join(map(packed, kept))


@settings(deadline=None)
@given(st.lists(st.tuples(CELLS, st.lists(CELLS, min_size=3, max_size=3), st.booleans()), max_size=6))
def test_data_rows_of_columns_that_are_one_value(
    columns: list[tuple[bytes | None, list[bytes | None], bool]],
) -> None:
    """Wherever such columns stand among the others."""
    rows = list(zip(*([one] * 3 if same else cells for one, cells, same in columns), strict=True))
    given = [
        pa.scalar(one, pa.binary()) if same else pa.array(cells, pa.binary()) for one, cells, same in columns
    ]
    assert bytes(content(data_rows(given, 3))) == b"".join(map(packed, rows or [()] * 3))


@pytest.mark.parametrize("form", [0, 1])
def test_one_value_is_encoded_as_many_are(form: int) -> None:
    values: list[tuple[model.SqlType, object, object]] = [
        (model.INT8, 5, 6),
        (model.INT2, -1, 1),
        (model.BOOL, True, False),
        (model.TEXT, "same", "some"),
        (model.TEXT, "", "a"),
        (model.BYTEA, b"\0\0", b"\0"),
        (model.FLOAT8, -0.0, 0.0),
        (model.numeric(10, 2), Decimal("1.50"), Decimal("2.50")),
        (model.INT4, None, 7),
    ]
    columns = [Column(f"c{i}", t) for i, (t, _, _) in enumerate(values)]
    encoder = RowEncoder(columns, (form,) * len(columns))
    # Between two others: all of it is not the same, a slice is.
    arrays = [pa.array([b, a, a, a, b], arrow_type(t)) for t, a, b in values]
    batch = pa.RecordBatch.from_arrays(arrays, [c.name for c in columns])
    singles = [bytes(encoder.encode(batch.slice(i, 1))) for i in range(5)]
    assert bytes(encoder.encode(batch)) == b"".join(singles)
    assert bytes(encoder.encode(batch.slice(1, 3))) == b"".join(singles[1:4])


@settings(deadline=None)
@given(st.lists(st.binary(max_size=9), max_size=6), st.integers(0, 3))
def test_framed(values: list[bytes], skip: int) -> None:
    got = bytes(framed(b"d", pa.array(values, pa.binary()).slice(skip)))
    assert got == b"".join(f.copy_data(v) for v in values[skip:])


def test_formats_are_by_column() -> None:
    columns = [Column("a", model.INT4), Column("b", model.TEXT), Column("c", model.TIMESTAMPTZ)]
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([258, None], pa.int32()),
            pa.array(["é", ""]),
            pa.array([0, None], pa.timestamp("us", "UTC")),
        ],
        names=["a", "b", "c"],
    )
    got = bytes(RowEncoder(columns, (1, 0, 0), "Asia/Tokyo").encode(batch))
    assert got == packed((b"\0\0\1\2", "é".encode(), b"1970-01-01 09:00:00+09")) + packed((None, b"", None))


def test_result_formats() -> None:
    assert result_formats((), 2) == (0, 0)
    assert result_formats((1,), 2) == (1, 1)
    assert result_formats((0, 1), 2) == (0, 1)
    assert result_formats((1,), 0) == ()
    with pytest.raises(MalformedMessage, match="3 result formats but query has 2 columns"):
        result_formats((0, 0, 0), 2)


@settings(deadline=None)
@given(st.integers(0, 40_000), st.integers(0, 300), st.none() | st.integers(0, 50_000))
def test_pieces_are_bounded_and_whole(rows: int, width: int, at_most: int | None) -> None:
    batch = pa.RecordBatch.from_arrays([pa.nulls(rows, pa.binary(width))], names=["a"])
    next_row = 0
    for first, count in pieces(batch, at_most):
        assert first == next_row and 1 <= count <= limits.CHUNK_ROWS
        assert count == 1 or count * width <= limits.CHUNK_BYTES
        next_row += count
    assert next_row == min(rows, rows if at_most is None else at_most)


def test_pieces_are_as_large_as_the_last_one_says() -> None:
    """What numbers take is known after the first: a guess is for the longest texts."""
    batch = pa.RecordBatch.from_arrays([pa.array(range(16_384))] * 8, names=list("abcdefgh"))
    guessed, known = rows_of_a_piece(batch), rows_of_a_piece(batch, 103 / 64)
    assert guessed * 103 < 0.6 * limits.CHUNK_BYTES
    assert 0.9 * limits.CHUNK_BYTES < known * 103 <= limits.CHUNK_BYTES
    assert rows_of_a_piece(batch, 0.0) == limits.CHUNK_ROWS
    assert rows_of_a_piece(batch, 1e9) == 1


def test_row_description() -> None:
    columns = [Column("a", model.INT4), Column("naïve", model.varchar(5)), Column("n", model.numeric(10, 2))]
    assert replies.row_description(columns, (0, 1, 0)) == f.frame(
        b"T",
        struct.pack("!h", 3)
        + b"a\0"
        + struct.pack("!ihihih", 0, 0, 23, 4, -1, 0)
        + "naïve".encode()
        + b"\0"
        + struct.pack("!ihihih", 0, 0, 1043, -1, 9, 1)
        + b"n\0"
        + struct.pack("!ihihih", 0, 0, 1700, -1, ((10 << 16) | 2) + 4, 0),
    )


def test_errors_and_notices_cannot_break_the_framing() -> None:
    error = InvalidValue("bad\0value \ud800", detail="d", hint="h", position=3)
    ((tag, body),) = f.replies(replies.error_response(error, severity="FATAL"))
    assert (tag, f.fields(body)) == (
        "E",
        {"S": "FATAL", "V": "FATAL", "C": "22P02", "M": "bad\\0value ?", "D": "d", "H": "h", "P": "3"},
    )
    ((tag, body),) = f.replies(replies.notice_response(Notice("n", severity="WARNING", sqlstate="01000")))
    assert (tag, f.fields(body)) == ("N", {"S": "WARNING", "V": "WARNING", "C": "01000", "M": "n"})


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_few_rows_are_the_same_bytes(choice: st.DataObject) -> None:
    """What is sent a row at a time in passing is what whole batches are."""
    types = [model.INT2, model.INT4, model.INT8, model.TEXT, model.BOOL, model.FLOAT8, model.NUMERIC]
    columns = [Column(f"c{i}", t) for i, t in enumerate(types)]
    values = [
        st.sampled_from([None, -(2**15), 0, 2**15 - 1]),
        st.sampled_from([None, -(2**31), 7, 2**31 - 1]),
        st.sampled_from([None, -(2**63), 1, 2**63 - 1]),
        st.sampled_from([None, "", "é", "x" * 300]),
        st.sampled_from([None, True, False]),
        st.sampled_from([None, 0.5, -1e300]),
        st.sampled_from([None, Decimal("1.50"), Decimal(0)]),
    ]
    rows = [tuple(choice.draw(v) for v in values) for _ in range(choice.draw(st.sampled_from([1, 3, 16])))]
    arrays = [pa.array([r[i] for r in rows], arrow_type(t)) for i, t in enumerate(types)]
    batch = pa.RecordBatch.from_arrays(arrays, names=[c.name for c in columns])
    assert is_light(batch)
    formats = [choice.draw(st.sampled_from([0, 1])) for _ in types]
    encoder = RowEncoder(columns, formats)
    assert encoder.few(batch) == bytes(encoder.encode(batch))


def test_nothing_is_kept_of_rows_that_were_sent() -> None:
    """The next ones of a subscription may be long in coming."""
    seen: list[weakref.ref[pa.RecordBatch]] = []

    async def batches(length: int) -> AsyncIterator[pa.RecordBatch]:
        for _ in range(2):
            batch = pa.record_batch({"a": pa.array(["x" * 100] * length)})
            seen.append(weakref.ref(batch))
            yield batch
            del batch
            gc.collect()
            assert [r() for r in seen] == [None] * len(seen)

    async def block(batch: pa.RecordBatch, at: int, rows: int, encoder: RowEncoder) -> memoryview:
        return encoder.encode(batch.slice(at, rows))

    async def drain() -> None:
        return None

    def nothing(*_: object) -> None:
        return None

    outbox = SimpleNamespace(put=nothing, flush=nothing, flush_soon=nothing, drain=drain, stopped=False)
    columns = (Column("a", model.TEXT),)
    encodings = SimpleNamespace(common=lambda _key, make: make(), block=block)
    shapes = SimpleNamespace(of=lambda *_: SimpleNamespace(encoder=RowEncoder(columns, (0,), "UTC")))
    line: Any = SimpleNamespace(
        outbox=outbox, check=nothing, timezone="UTC", encodings=encodings, shapes=shapes
    )
    for shared, length in ((True, 5), (False, 5)):
        stream = RowStream(Rows(columns, batches(length), "SELECT", shared=shared), ())
        assert asyncio.run(stream.send(line)) == (2 * length, True)
    assert len(seen) == 4
