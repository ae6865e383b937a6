"""`tidemill cdcv2 inspect`, as a person meets it; and every example of it on the page."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from support.debezium import SchemaRegistry
from support.kafka import Kafka
from tidemill.cdcv2 import AvroCodec, JsonCodec, Progress, UpdateColumns, Writer
from tidemill.cli import cdcv2_inspect
from tidemill.cli.app import app
from tidemill.cli.cdcv2_inspect import InspectOptions
from tidemill.errors import InvalidValue, TidemillError, UndefinedObject
from tidemill.sources.contract import UpstreamError
from tidemill.sources.kafka import metadata

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cdcv2.md"
SCHEMA = pa.schema([("name", pa.string()), ("price", pa.float64())])
EXAMPLES = re.findall(r"```console\n\$ tidemill ([^\n]+)\n(.*?)\n```", PAGE.read_text(), re.DOTALL)


def _written(*, digests: bool = False) -> list[UpdateColumns | Progress]:
    """A sound stream of three rounds."""
    writer = Writer(SCHEMA, [0], digests=digests)
    said: list[UpdateColumns | Progress] = []
    for t in range(3):
        data = pa.record_batch([["a", "b", f"row {t}"], [0.5, -0.0, None]], schema=SCHEMA)
        batch = writer.add(UpdateColumns.of(data, [t, t, t]))
        assert batch is not None
        writer.acknowledged()
        said += [batch, writer.state([t + 1])]
        writer.stated()
    return said


def _json(path: Path, said: list[UpdateColumns | Progress], *, digests: bool = False) -> str:
    codec = JsonCodec(SCHEMA, digests=digests)
    path.write_bytes(b"".join(m + b"\n" for one in said for m in codec.encode(one)))
    return str(path)


def _asked(capsys: pytest.CaptureFixture[str], wish: InspectOptions) -> tuple[int, dict[str, Any]]:
    status = cdcv2_inspect.run(wish)
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("command", "expected"), EXAMPLES, ids=[c for c, _ in EXAMPLES])
def test_the_pages_examples(
    command: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = re.findall(r'```json title="([^"]+)"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    for name, content in files:
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(command))
    assert [line.rstrip() for line in result.stdout.splitlines()] == expected.splitlines()
    assert result.exit_code == (0 if "fruit" in command else 1)


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("digests", [False, True])
def test_json_files_folders_and_the_standard_input(
    digests: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = _written(digests=digests)
    one = _json(tmp_path / "1.jsonl", said[:3], digests=digests)
    two = _json(tmp_path / "2.jsonl", said[3:], digests=digests)
    (tmp_path / "_ignored").write_text("no message")
    expected = {"sound": True, "messages": 6, "updates": 9, "distinct_updates": 9, "statements": 3}
    for names in ((one, two), (two, one), (str(tmp_path),)):
        status, found = _asked(capsys, InspectOptions(names, as_json=True))
        assert status == 0 and expected.items() <= found.items()
        assert (found["frontier"], found["times"], found["waits"]) == ([3], 3, [])
    content = Path(one).read_bytes() + b"\n\r\n" + Path(two).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))  # pyright: ignore[reportArgumentType]
    status, found = _asked(capsys, InspectOptions(("-",), as_json=True))
    assert status == 0 and expected.items() <= found.items()


def _avro(path: Path, said: list[UpdateColumns | Progress]) -> str:
    codec = AvroCodec(SCHEMA)
    union: Any = fastavro.parse_schema(json.loads(codec.avro_schema))
    records = [
        fastavro.schemaless_reader(io.BytesIO(raw), union, None) for one in said for raw in codec.encode(one)
    ]
    with path.open("wb") as out:
        fastavro.writer(out, union, records)
    return str(path)


def test_avro_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = _avro(tmp_path / "a.avro", _written())
    status, found = _asked(capsys, InspectOptions((whole,), as_json=True))
    assert (status, found["distinct_updates"], found["frontier"]) == (0, 9, [3])
    # The same in JSON beside it says nothing new: the data is the same.
    same = _json(tmp_path / "b.jsonl", _written())
    status, found = _asked(capsys, InspectOptions((same, whole), as_json=True))
    assert (status, found["updates"], found["distinct_updates"]) == (0, 18, 9)
    # Cut off, it is told where, and what came before counts.
    cut = tmp_path / "cut.avro"
    cut.write_bytes(Path(whole).read_bytes()[:-30])
    status, found = _asked(capsys, InspectOptions((str(cut),), as_json=True))
    assert status == 1 and found["unreadable"] == 1
    assert "cut.avro, before its first message" in found["first_unreadable"][0]["origin"]
    other = tmp_path / "other.avro"
    with other.open("wb") as out:
        fastavro.writer(out, "int", [1, 2])
    status, found = _asked(capsys, InspectOptions((str(other),), as_json=True))
    assert status == 1 and found["unreadable"] == 2


def test_what_is_wrong_with_a_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.jsonl"
    lines = [
        '{"lower":[0],"upper":[4],"counts":[{"time":1,"count":2}]}',
        '[{"data":1,"time":1,"diff":1},{"data":1,"time":3,"diff":1}]',
        "no json",
        '{"lower":[0]}',
        '[{"data":1,"time":"x","diff":1}]',
        '{"a":1,"a":2}',
        "[1]",
        "7",
        '{"lower":[6],"upper":[9],"counts":[]}',
    ]
    path.write_text("\n".join(lines))
    status, found = _asked(capsys, InspectOptions((str(path),), as_json=True))
    assert status == 1 and not found["sound"]
    [wait] = found["waits"]
    assert (wait["time"], wait["for"], wait["have"], wait["want"]) == (1, "missing", 1, 2)
    assert wait["counted_by"] == f"progress from [0] to [4] of {path}, line 1"
    assert wait["since"]["message"] == 1
    [wrong] = found["first_contradictions"]
    assert wrong["time"] == 3 and "line 1" in wrong["first"] and "line 2" in wrong["second"]
    assert found["unreadable"] == 6
    assert [e["origin"].split()[-1] for e in found["first_unreadable"]] == list("345678")
    assert cdcv2_inspect.run(InspectOptions((str(path),))) == 1
    shown = capsys.readouterr().out
    assert "MISSING: time 1 waits for 1 update of 2" in shown and "UNREADABLE" in shown
    assert "CONTRADICTION at 3: more updates than were counted" in shown
    # With a snapshot at 4 the gap is what is left.
    status, found = _asked(capsys, InspectOptions((str(path),), resume_from=("4",), as_json=True))
    assert [(w["time"], w["for"], w["nearest_statements"]) for w in found["waits"]] == [(4, "gap", [6])]


def test_long_data_is_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.jsonl"
    texts = [("x" * 5000 + end, n) for end in "ab" for n in (0, 1)]
    rows = [{"data": {"text": text, "n": [-0.0, n]}, "time": 0, "diff": 1} for text, n in texts]
    same = [{"data": {"n": [0.0, n], "text": text}, "time": 0, "diff": 1} for text, n in texts]
    path.write_text(f"{json.dumps(rows)}\n{json.dumps(same)}\n")
    _, found = _asked(capsys, InspectOptions((str(path),), as_json=True))
    assert (found["updates"], found["distinct_updates"]) == (8, 4)


def test_a_broken_seal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(_json(tmp_path / "s.jsonl", _written(digests=True), digests=True))
    path.write_text(re.sub(r'"seal":(-?\d+)', lambda m: f'"seal":{int(m[1]) ^ 1}', path.read_text(), count=1))
    status, found = _asked(capsys, InspectOptions((str(path),), as_json=True))
    assert status == 1 and "digest" in found["first_contradictions"][0]["kind"]


def test_svg(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream, out = _json(tmp_path / "s.jsonl", _written()), tmp_path / "s.svg"
    assert cdcv2_inspect.run(InspectOptions((stream,), svg=str(out))) == 0
    assert out.read_text().startswith("<svg ") and "<rect" in out.read_text()
    triples = tmp_path / "t.jsonl"
    triples.write_text('{"lower":[[0,0,0]],"upper":[[1,0,0]],"counts":[]}')
    assert cdcv2_inspect.run(InspectOptions((str(triples),))) == 0
    with pytest.raises(InvalidValue, match="no timeline"):
        cdcv2_inspect.run(InspectOptions((str(triples),), svg=str(out)))
    with pytest.raises(InvalidValue, match="cannot be written"):
        cdcv2_inspect.run(InspectOptions((stream,), svg=str(tmp_path / "no" / "x.svg")))


def test_bad_usage(tmp_path: Path) -> None:
    stream = _json(tmp_path / "s.jsonl", _written())
    with pytest.raises(UndefinedObject, match="there is no file") as caught:
        cdcv2_inspect.run(InspectOptions(("nosuch",)))
    assert "--brokers" in str(caught.value.hint)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UndefinedObject, match="has no files"):
        cdcv2_inspect.run(InspectOptions((str(tmp_path / "empty"),)))
    for words in (("x",), ("1", "1,2"), ("-1",), ("",)):
        with pytest.raises(TidemillError):
            cdcv2_inspect.run(InspectOptions((stream,), resume_from=words))
    with pytest.raises(InvalidValue, match="are for topics"):
        InspectOptions((stream,), registry="http://localhost")
    with pytest.raises(InvalidValue, match="one topic"):
        InspectOptions(("a", "b"), brokers="localhost:9092")
    with pytest.raises(InvalidValue, match="a name is empty"):
        InspectOptions(("",))
    with pytest.raises(InvalidValue, match="names no broker"):
        InspectOptions(("a",), brokers=" ,")
    for schema in ("nosuch.avsc", str(tmp_path)):
        with pytest.raises(InvalidValue, match="cannot be read") as caught:
            cdcv2_inspect.run(InspectOptions(("a",), brokers="localhost:1", schema=schema))
        assert caught.value.detail in ("No such file or directory.", "Is a directory.")
    # Of another kind than the stream: it is the flag that is wrong, not the stream.
    with pytest.raises(
        InvalidValue, match="--resume-from has products of 2 integers, and the stream has int"
    ):
        cdcv2_inspect.run(InspectOptions((stream,), resume_from=("1,2",)))
    assert CliRunner().invoke(app, ["cdcv2", "inspect"]).exit_code == 2


def test_a_topic_of_json_over_several_partitions(kafka: Kafka, capsys: pytest.CaptureFixture[str]) -> None:
    topic = kafka.create_topic(partitions=3)
    codec = JsonCodec(SCHEMA)
    raw = [m for said in _written() for m in codec.encode(said)]
    now = int(time.time() * 1000)
    kafka.produce(topic, [(None, m, None, now + n, n % 3) for n, m in enumerate([*raw, *raw])])
    status, found = _asked(capsys, InspectOptions((topic,), brokers=kafka.bootstrap, as_json=True))
    assert (status, found["messages"], found["distinct_updates"], found["frontier"]) == (0, 12, 9, [3])
    kafka.produce(topic, [(None, b"\x00\x01", None, None, 0), ("k", None, None, None, 1)])
    kafka.produce(topic, [(None, codec.encode(Progress([3], [5], [(3, 1)]))[0], None, now + 999, 2)])
    status, found = _asked(capsys, InspectOptions((topic,), brokers=kafka.bootstrap, as_json=True))
    assert (status, found["unreadable"]) == (1, 2)
    assert {e["origin"].split(", ")[1] for e in found["first_unreadable"]} == {"partition 0", "partition 1"}
    [wait] = found["waits"]
    assert wait["for"] == "missing" and wait["since"]["at"] is not None
    assert f"topic {topic}, partition" in wait["since"]["origin"]


def test_a_topic_of_avro(
    kafka: Kafka, registry: SchemaRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = AvroCodec(SCHEMA)
    topic, plain = kafka.create_topic(), kafka.create_topic()
    framed = AvroCodec(SCHEMA, schema_id=registry.register(f"{topic}-value", bare.avro_schema))
    for name, codec in ((topic, framed), (plain, bare)):
        kafka.produce(name, [(None, m) for said in _written() for m in codec.encode(said)])
    status, found = _asked(
        capsys, InspectOptions((topic,), brokers=kafka.bootstrap, registry=registry.url, as_json=True)
    )
    assert (status, found["distinct_updates"], found["frontier"]) == (0, 9, [3])
    schema = tmp_path / "stream.avsc"
    schema.write_text(bare.avro_schema)
    status, found = _asked(
        capsys, InspectOptions((plain,), brokers=kafka.bootstrap, schema=str(schema), as_json=True)
    )
    assert (status, found["distinct_updates"], found["frontier"]) == (0, 9, [3])
    # A number that no schema has is a message that cannot be read; one without a schema says what to do.
    kafka.produce(topic, [(None, b"\x00\x00\x0f\xff\xff\x00\x00")])
    status, found = _asked(
        capsys, InspectOptions((topic,), brokers=kafka.bootstrap, registry=registry.url, as_json=True)
    )
    assert (status, found["unreadable"], found["frontier"]) == (1, 1, [3])
    assert cdcv2_inspect.run(InspectOptions((plain,), brokers=kafka.bootstrap)) == 1
    assert "This looks like Avro" in capsys.readouterr().out


def test_a_topic_that_is_not_there(kafka: Kafka, tmp_path: Path) -> None:
    with pytest.raises(UndefinedObject, match="does not exist"):
        cdcv2_inspect.run(InspectOptions(("no-such-topic",), brokers=kafka.bootstrap))
    schema = tmp_path / "s.avsc"
    schema.write_text("{")
    with pytest.raises(InvalidValue, match="no Avro"):
        cdcv2_inspect.run(InspectOptions(("x",), brokers=kafka.bootstrap, schema=str(schema)))


def test_brokers_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "CREATE_SECONDS", 0.5)
    with pytest.raises(UpstreamError, match="cannot be reached"):
        cdcv2_inspect.run(InspectOptions(("x",), brokers="127.0.0.1:1"))
