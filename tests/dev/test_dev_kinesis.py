"""`tidemill dev kinesis` as a person meets it: as a process."""

from __future__ import annotations

import signal
from pathlib import Path

from dev.dev_command import GONE_SECONDS, READY_SECONDS, Command, until
from support.kinesis import Kinesis
from tidemill.dev.process import is_free
from tidemill.sources.aws_role import frozen
from tidemill.sources.kinesis.client import KinesisClient
from tidemill.sources.kinesis.reader import Start, iterator_at
from tidemill.sources.kinesis.shards import list_shards


def records(client: KinesisClient) -> int:
    found = 0
    for shard in list_shards(client, "orders"):
        iterator = iterator_at(client, "orders", shard, Start(), None, "")
        found += len(client.call("GetRecords", "orders", {"ShardIterator": iterator})["Records"])
    return found


def test_a_load_that_is_kept(tmp_path: Path, kinesis: Kinesis) -> None:
    """(The fixture is for the download, and for what is skipped without Node.)"""
    kept = ("--data-dir", str(tmp_path / "kept"))
    for turn, load in enumerate(("50", "0")):
        command = Command(tmp_path, "--load", load, *kept, upstream="kinesis")
        try:
            command.wait_ready()
            (port,) = command.ports
            assert f"ENDPOINT 'http://127.0.0.1:{port}'" in command.output
            assert f"records per second: {load} " in command.output
            client = KinesisClient(frozen({**kinesis.options, "endpoint": f"http://127.0.0.1:{port}"}))
            assert len(list_shards(client, "orders")) == 2
            until(lambda client=client: records(client) > 20, READY_SECONDS)
            if turn:
                assert records(client) == records(client)
            command.process.send_signal(signal.SIGINT)
            assert command.process.wait(GONE_SECONDS) == 0
            assert is_free(port)
        finally:
            command.process.kill()
            command.process.wait()
