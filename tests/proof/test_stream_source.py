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
        self.history: list[tuple[int, int, str | None]] = []
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
                self.history.append((self._time, *row))
            said += [batch, batch, *[Progress([self._time], [self._time + 1], [(self._time, len(rows))])] * 2]
            self._time += 1
        self._rng.shuffle(said)
        cut = len(said) if last else len(said) * 2 // 3
        now, self._late = said[:cut], said[cut:]
        for first in range(0, len(now), 3):
            self._write(now[first : first + 3])

    def end(self) -> None:
        self._write([Progress([self._time], [])])

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
PAIRS = "FROM FILES 'p' FORMAT JSON ENVELOPE MATERIALIZE (TIME COMPONENTS 2)"
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
    ask(lives, "CREATE SOURCE l FROM FILES 'a' FORMAT AVRO ENVELOPE MATERIALIZE WITH (TIMELINE 'theirs')")
    for failpoint in ("tick.recovery.stashed=kill@2", "tick.recovery.lined=kill@2"):
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
    own_times(lives, streams["a"])
    products(lives, tmp_path)
    assert statuses(lives) == [("a", "running"), ("j", "running")]
    streams["j"].end()
    until(lambda: statuses(lives), [("a", "running"), ("j", "ceased")])
    assert found(JSON) == streams["j"].rows
    waits_and_errors(lives, tmp_path)
    changed_files(lives, tmp_path / "files" / "a")
    assert found(AVRO) == streams["a"].rows


def products(lives: ServerProcess, tmp_path: Path) -> None:
    """Times that are pairs: what is complete is there, however the plane was covered."""
    codec = JsonCodec(SCHEMA, 2)
    rows = pa.RecordBatch.from_pylist([{"id": n, "name": None} for n in range(3)], schema=SCHEMA)
    said = [
        Progress([(1, 0)], [(1, 2), (2, 0)], [((1, 1), 1)]),
        UpdateColumns.of(rows, [(0, 1), (1, 1), (5, 5)]),
        Progress([(0, 0)], [(0, 2), (1, 0)], [((0, 1), 1)]),
    ]
    (tmp_path / "files" / "p").mkdir()
    lines = [line + b"\n" for message in said for line in codec.encode(message)]
    (tmp_path / "files" / "p" / "1").write_bytes(b"".join(lines))
    with pytest.raises(psycopg.Error, match="is not possible where times are products"):
        ask(lives, f"CREATE SOURCE p {PAIRS} WITH (TIMELINE 'x')")
    ask(lives, f"CREATE SOURCE p {PAIRS}")
    assert ask(lives, "SELECT (data->>'id')::int FROM p ORDER BY 1") == [(0,), (1,)]
    ask(lives, "DROP SOURCE p")


def statuses(lives: ServerProcess) -> list[tuple[Any, ...]]:
    return ask(lives, "SELECT name, status FROM mz_internal.mz_source_statuses ORDER BY 1")


def own_times(lives: ServerProcess, stream: Stream) -> None:
    """Rows that keep the stream's times: its history, update by update."""

    def told() -> list[tuple[int, int, str | None]]:
        found = ask(lives, "SUBSCRIBE l AS OF EARLIEST UP TO LATEST")
        assert all(diff == 1 for _, diff, _, _ in found)
        return sorted(((int(at), i, n) for at, _, i, n in found), key=str)

    until(told, sorted(stream.history, key=str))
    last = max(at for at, _, _ in stream.history)
    for at in (0, last // 2, last):
        expected = sum(t <= at for t, _, _ in stream.history)
        assert ask(lives, f"SELECT count(*), mz_now()::text FROM l AS OF {at}") == [(expected, str(at))]
    assert ask(lives, "SELECT count(*), mz_now()::text FROM l") == [(len(stream.history), str(last))]
    with psycopg.connect(lives.sql_dsn) as c:
        assert (
            c.execute("SELECT count(*) FROM l AS OF 1").fetchall()
            == c.execute("SELECT count(*) FROM l x WHERE mz_now() = '1'::mz_timestamp").fetchall()
        )
    ask(lives, "CREATE VIEW twice AS SELECT l.id FROM l JOIN l m ON l.id = m.id")
    assert ask(lives, "SELECT count(*) > 0 FROM twice") == [(True,)]
    for wrong, text in (
        ("SELECT * FROM l JOIN a ON l.id = a.id", "relations of several timelines cannot be read"),
        ("SUBSCRIBE (SELECT l.id FROM l UNION ALL SELECT a.id FROM a)", "relations of several timelines"),
        ("CREATE MATERIALIZED VIEW m AS SELECT id FROM l", "cannot be made from source"),
        (
            "CREATE SINK o FROM l INTO FILES 'o' FORMAT JSON ENVELOPE MATERIALIZE",
            "cannot be made from source",
        ),
        ("CREATE SOURCE n FROM LOAD GENERATOR COUNTER WITH (TIMELINE 'x')", "needs ENVELOPE MATERIALIZE"),
    ):
        with pytest.raises(psycopg.Error, match=text):
            ask(lives, wrong)
    assert "WITH (TIMELINE 'theirs')" in ask(lives, "SHOW CREATE SOURCE l")[0][1]
    ask(lives, "DROP VIEW twice")
    ask(lives, "DROP SOURCE l")


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
        ("'j' ENVELOPE MATERIALIZE", "needs FORMAT AVRO or FORMAT JSON"),
        ("'j' FORMAT TEXT ENVELOPE MATERIALIZE", "requires that FORMAT is AVRO or JSON"),
        ("'j' FORMAT AVRO ENVELOPE MATERIALIZE", "is no Avro file"),
        ("'none' FORMAT AVRO ENVELOPE MATERIALIZE", "has no files to take the schema from"),
        ("'none' FORMAT JSON ENVELOPE MATERIALIZE", 'folder "none" does not exist'),
        ("'a' FORMAT AVRO USING SCHEMA '[1' ENVELOPE MATERIALIZE", "the schema is not JSON"),
        ("""'a' FORMAT AVRO USING SCHEMA '"int"' ENVELOPE MATERIALIZE""", "not that of a CDCv2 stream"),
    ):
        with pytest.raises(psycopg.Error, match=text):
            ask(lives, f"CREATE SOURCE z FROM FILES {wrong}")
    # One that is to come is waited for, and the status says so.
    ask(lives, "CREATE SOURCE z FROM FILES 'none' FORMAT JSON ENVELOPE MATERIALIZE WITH (VALIDATE = false)")
    sql = "SELECT details->>'waits' FROM mz_internal.mz_source_statuses WHERE name = 'z'"
    until(lambda: ask(lives, sql), [('folder "none" is not there yet',)])
    (tmp_path / "files" / "none").mkdir()
    until(lambda: ask(lives, sql), [('folder "none" has no files yet',)])
    (tmp_path / "files" / "none" / "1").write_bytes(JsonCodec(SCHEMA).encode_progress(Progress([0], [6])))
    until(lambda: ask(lives, sql), [(None,)])
    ask(lives, "DROP SOURCE z")


def changed_files(lives: ServerProcess, folder: Path) -> None:
    """A file that is overwritten with as many bytes, or gone, stalls its source: in the same words after a
    restart, and until it is as it was."""

    def trouble() -> tuple[Any, ...]:
        sql = "SELECT status, error, details->>'detail' FROM mz_internal.mz_source_statuses WHERE name = 'a'"
        (found,) = ask(lives, sql)
        return found

    first = min(p for p in folder.rglob("*") if p.is_file())
    kept, name = first.read_bytes(), first.relative_to(folder)
    error = f'file "{name}" has changed since it was read'
    first.write_bytes(kept[:-20] + bytes(20))
    other = ("stalled", error, f"It has {len(kept)} bytes as before, but not the same ones.")
    until(trouble, other)
    first.unlink()
    gone = ("stalled", error, f"It had {len(kept)} bytes; now it is gone.")
    until(trouble, gone)
    lives.kill9()
    lives.start()
    until(trouble, gone)
    first.write_bytes(kept[:-20] + bytes(20))
    until(trouble, other)
    first.write_bytes(kept)
    until(trouble, ("running", None, None))
