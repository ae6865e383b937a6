"""CDCv2 where tasks run in processes of their own: what one executor stashed another releases, also when all
of them are killed in between."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from cluster_world import connect, executors, kill9, until

from support.server import ServerProcess
from tidemill.cdcv2 import JsonCodec, Progress, UpdateColumns

pytestmark = [pytest.mark.server, pytest.mark.timeout(3600)]

MASTER = "local-cluster[2,1,1024]"
READY_SECONDS = 480.0
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False)])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    (tmp_path / "files" / "in").mkdir(parents=True)
    arguments = ["--spark-master", MASTER, "--scratch-dir", str(tmp_path / "scratch")]
    server = ServerProcess(tmp_path / "data", args=[*arguments, "--files-root", str(tmp_path / "files")])
    try:
        server.start()
        server.wait_ready(READY_SECONDS)
        yield server
    finally:
        server.close()


def history() -> tuple[list[UpdateColumns | Progress], list[int]]:
    rng = Random(3)
    said: list[UpdateColumns | Progress] = []
    rows: list[int] = []
    for t in range(40):
        ids = rng.sample(range(1000), 50)
        rows += ids
        batch = pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], schema=SCHEMA)
        said += [UpdateColumns.of(batch, [t] * 50)] * 2 + [Progress([t], [t + 1], [(t, 50)])] * 2
    rng.shuffle(said)
    return said, sorted(rows)


def test_executors_share_a_stash(server: ServerProcess, tmp_path: Path) -> None:
    said, rows = history()
    codec = JsonCodec(SCHEMA)
    folder = tmp_path / "files" / "in"

    def write(number: int, messages: list[UpdateColumns | Progress]) -> None:
        hidden = folder / f".{number}"
        hidden.write_bytes(b"".join(line + b"\n" for m in messages for line in codec.encode(m)))
        os.rename(hidden, folder / str(number))

    def one(sql: str) -> Any:
        with connect(server) as c:
            row = c.execute(sql.encode()).fetchone()
            assert row is not None
            return row[0]

    def read() -> int:
        return int(one("SELECT coalesce(sum(kilobytes), 0)::bigint FROM s_progress"))

    third = len(said) // 3
    write(1, said[:third])
    with connect(server) as c:
        c.execute("CREATE SOURCE s FROM FILES 'in' FORMAT JSON ENVELOPE MATERIALIZE")
    until(lambda: read() > 0, "the first file was not read")
    before = read()
    for pid in executors(server.pid):
        kill9(pid)
    write(2, said[third : 2 * third])
    until(lambda: read() > before, "the second file was not read")
    write(3, said[2 * third :])
    until(lambda: int(one("SELECT count(*) FROM s")) == len(rows), "the history did not become complete")
    with connect(server) as c:
        found = c.execute("SELECT (data->>'id')::bigint FROM s").fetchall()
    assert sorted(row[0] for row in found) == rows
