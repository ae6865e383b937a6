"""Sources of CDCv2 on a real server that is killed at the worst moments: files, and what is told of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import psycopg
import pyarrow as pa
import pytest

from support.server import ServerProcess
from tidemill.cdcv2 import AvroCodec, JsonCodec, Progress, UpdateColumns

pytestmark = pytest.mark.server

SECONDS = 180.0
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[ServerProcess]:
    (tmp_path / "files").mkdir()
    server = ServerProcess(tmp_path / "data", args=["--files-root", str(tmp_path / "files")])
    try:
        yield server
    finally:
        server.close()


class Stream:
    """A history told twice, mixed up, in files that appear whole."""

    def __init__(self, folder: Path, form: str, seed: int) -> None:
        self._folder = folder
        self._form = form
        self._rng = Random(seed)
        self._time = 0
        self._files = 0
        self._late: list[UpdateColumns | Progress] = []
        # What has been told completely.
        self.rows: dict[tuple[int, str | None], int] = {}
        folder.mkdir(parents=True)

    def tell(self, times: int, *, last: bool = False) -> None:
        said = self._late
        for _ in range(times):
            rows = {(self._rng.randrange(20), self._rng.choice(["a", "b", None])) for _ in range(3)}
            data = [{"id": i, "name": n} for i, n in rows]
            batch = UpdateColumns.of(
                pa.RecordBatch.from_pylist(data, schema=SCHEMA), [self._time] * len(rows), [1] * len(rows)
            )
            for row in rows:
                self.rows[row] = self.rows.get(row, 0) + 1
            said += [batch, batch, *[Progress([self._time], [self._time + 1], [(self._time, len(rows))])] * 2]
            self._time += 1
        self._rng.shuffle(said)
        cut = len(said) if last else len(said) * 2 // 3
        now, self._late = said[:cut], said[cut:]
        for first in range(0, len(now), 3):
            self._write(now[first : first + 3])

    def _write(self, messages: list[UpdateColumns | Progress]) -> None:
        self._files += 1
        hidden = self._folder / f".{self._files}"
        if self._form == "json":
            codec = JsonCodec(SCHEMA)
            hidden.write_bytes(b"".join(line + b"\n" for m in messages for line in codec.encode(m)))
        else:
            write_avro(hidden, messages)
        os.rename(hidden, self._folder / f"{self._files}")


def write_avro(path: Path, messages: list[UpdateColumns | Progress]) -> None:
    schema: Any = fastavro.parse_schema(json.loads(AvroCodec(SCHEMA).avro_schema))
    records: list[Any] = []
    for m in messages:
        if isinstance(m, Progress):
            counts = [{"time": t, "count": n} for t, n in m.counts]
            records.append({"lower": m.lower, "upper": m.upper, "counts": counts})
        else:
            rows = [{"data": {"id": d[0], "name": d[1]}, "time": t, "diff": n} for d, t, n in m.rows()]
            records.append(rows)
    with open(path, "wb") as out:
        fastavro.writer(out, schema, records)


def ask(server: ServerProcess, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(server.sql_dsn, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        return [] if cursor.description is None else cursor.fetchall()


def until(found: Callable[[], object], wanted: object) -> None:
    deadline = time.monotonic() + SECONDS
    while (now := found()) != wanted:
        assert time.monotonic() < deadline, f"{now!r} instead of {wanted!r}"
        time.sleep(0.2)


AVRO = "SELECT id, name, count(*) FROM a GROUP BY id, name"
JSON = "SELECT (data->>'id')::bigint, data->>'name', count(*) FROM j GROUP BY 1, 2"


def test_files_are_read_once_whatever_dies(lives: ServerProcess, tmp_path: Path) -> None:
    streams = {
        "j": Stream(tmp_path / "files" / "j", "json", 1),
        "a": Stream(tmp_path / "files" / "a", "avro", 2),
    }
    for stream in streams.values():
        stream.tell(4)
    lives.start()
    ask(lives, "CREATE SOURCE j FROM FILES 'j' FORMAT JSON ENVELOPE MATERIALIZE")
    ask(lives, "CREATE SOURCE a FROM FILES 'a' FORMAT AVRO ENVELOPE MATERIALIZE")
    for failpoint in ("tick.recovery.stashed=kill@2", "tick.recovery.tallied=kill@3"):
        lives.kill9()
        lives.env["TIDEMILL_FAILPOINTS"] = failpoint
        lives.start()
        for stream in streams.values():
            stream.tell(3)
        lives.wait_exit(SECONDS)
    lives.env.pop("TIDEMILL_FAILPOINTS")
    lives.start()
    for stream in streams.values():
        stream.tell(1, last=True)

    def found(sql: str) -> dict[tuple[int, str | None], int]:
        return {(i, n): count for i, n, count in ask(lives, sql)}

    until(lambda: found(AVRO), streams["a"].rows)
    until(lambda: found(JSON), streams["j"].rows)
    assert (
        ask(lives, "SHOW CREATE SOURCE a")[0][1].endswith(
            "FROM FILES 'a' FORMAT AVRO ENVELOPE MATERIALIZE EXPOSE PROGRESS AS a_progress"
        )
        or "ENVELOPE MATERIALIZE" in ask(lives, "SHOW CREATE SOURCE a")[0][1]
    )
    told = ask(lives, "SELECT name, envelope_type, type FROM mz_sources WHERE name IN ('a', 'j') ORDER BY 1")
    assert told == [("a", "materialize", "files"), ("j", "materialize", "files")]
    waits_and_errors(lives, tmp_path)


def waits_and_errors(lives: ServerProcess, tmp_path: Path) -> None:
    """What a stream waits for is told; what is wrong with it is the relation's error."""
    folder = tmp_path / "files" / "w"
    folder.mkdir()
    write_avro(
        folder / "1",
        [
            UpdateColumns.of(pa.RecordBatch.from_pylist([{"id": 1, "name": "x"}], schema=SCHEMA), [5]),
            Progress([0], [6], [(5, 2)]),
        ],
    )
    ask(lives, "CREATE SOURCE w (number, called) FROM FILES 'w' FORMAT AVRO ENVELOPE MATERIALIZE")

    def waits() -> str:
        ((found,),) = ask(
            lives, "SELECT details->>'waits' FROM mz_internal.mz_source_statuses WHERE name = 'w'"
        )
        return "" if found is None else found.partition(" for ")[0] + found.partition(", ")[2]

    until(waits, "time 5 waitsMISSING 1 of 2 updates")
    assert ask(lives, "SELECT * FROM w") == []
    write_avro(
        folder / "2",
        [UpdateColumns.of(pa.RecordBatch.from_pylist([{"id": 1, "name": "x"}], schema=SCHEMA), [5], [3])],
    )

    def error() -> tuple[str, str | None]:
        try:
            ask(lives, "SELECT number, called FROM w")
        except psycopg.Error as e:
            return e.diag.message_primary or "", e.diag.message_detail
        return "", None

    until(
        lambda: error()[0],
        "Envelope error: Materialize: contradiction at time 5: the same data changes by two different diffs",
    )
    detail = error()[1] or ""
    assert "+1) in file 1, byte " in detail and "+3) in file 2, byte " in detail
    ask(lives, "DROP SOURCE w")
    for wrong, text in (
        ("'../x' FORMAT JSON ENVELOPE MATERIALIZE", "is not below the folder files_root"),
        ("'j' FORMAT JSON", "needs FORMAT AVRO or FORMAT JSON, and ENVELOPE MATERIALIZE"),
        ("'j' FORMAT TEXT ENVELOPE MATERIALIZE", "requires that FORMAT is AVRO or JSON"),
        ("'j' FORMAT AVRO ENVELOPE MATERIALIZE", "is no Avro file"),
        ("'none' FORMAT AVRO ENVELOPE MATERIALIZE", "has no files to take the schema from"),
        ("'a' FORMAT AVRO USING SCHEMA '[1' ENVELOPE MATERIALIZE", "the schema is not JSON"),
        ("""'a' FORMAT AVRO USING SCHEMA '"int"' ENVELOPE MATERIALIZE""", "not that of a CDCv2 stream"),
    ):
        with pytest.raises(psycopg.Error, match=text):
            ask(lives, f"CREATE SOURCE z FROM FILES {wrong}")
