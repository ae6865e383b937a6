"""Rows as WebSocket frames: what another implementation of the protocol reads from them."""

from __future__ import annotations

import json
from collections.abc import Generator

import pyarrow as pa
import pytest
from websockets.frames import Frame, Opcode
from websockets.streams import StreamReader

from tidemill.server.http.frames import RowFrames, framed
from tidemill.types.model import INT8, TEXT, Column


def read(data: bytes) -> list[Frame]:
    stream = StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    found: list[Frame] = []

    def all_frames() -> Generator[None]:
        while True:
            at_end = yield from stream.at_eof()
            if at_end:
                return
            found.append((yield from Frame.parse(stream.read_exact, mask=False, max_size=None)))

    for _ in all_frames():
        raise AssertionError("the bytes end within a frame")
    return found


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 255, 256, 65_535, 65_536, 70_000, 1 << 20])
def test_lengths_have_their_shortest_form(size: int) -> None:
    data = bytes(framed(pa.array([b"x" * size], pa.binary())))
    assert data == Frame(Opcode.TEXT, b"x" * size).serialize(mask=False)


def test_many_rows_are_many_frames() -> None:
    sizes = [3, 200, 70_000, 0, 125, 126, 65_535, 65_536, 5]
    batch = pa.record_batch(
        [pa.array(range(len(sizes)), pa.int64()), pa.array(["ä" * n for n in sizes], pa.string())],
        names=["n", "t"],
    )
    encoder = RowFrames([Column("n", INT8), Column("t", TEXT)])
    frames = read(bytes(encoder.encode(batch)))
    assert [json.loads(bytes(f.data)) for f in frames] == [
        {"type": "Row", "payload": [i, "ä" * n]} for i, n in enumerate(sizes)
    ]
    assert all(f.fin and f.opcode is Opcode.TEXT for f in frames)
    # A slice of a batch, which has offsets of its own, and no rows at all.
    cut = read(bytes(encoder.encode(batch.slice(4, 2))))
    assert [json.loads(bytes(f.data))["payload"][0] for f in cut] == [4, 5]
    assert bytes(encoder.encode(batch.slice(0, 0))) == b""


def test_rows_without_columns() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert [f.data for f in read(bytes(RowFrames([]).encode(batch)))] == [b'{"type":"Row","payload":[]}'] * 2
