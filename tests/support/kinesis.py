"""A Kinesis for tests: kinesis-local from npm, started once per run by the first test that asks for it.

The fixture `kinesis` is a handle on it; tests take a stream of their own. Whatever uses it gets the marker
`kinesis`, and is skipped, loudly, where there is no Node. The program is downloaded before the first test,
where no test's time limit counts, and stays in the user's cache.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from tidemill.dev.kinesis import (
    KinesisLocal,
    create_stream,
    fetch_kinesis,
    find_node,
    put_records,
    status_of,
    wait_active,
)
from tidemill.errors import TidemillError
from tidemill.sources.kinesis.failures import NoStream
from tidemill.sources.kinesis.reader import Start, iterator_at
from tidemill.sources.kinesis.shards import ShardInfo, list_shards

WAIT_SECONDS = 120.0
_STREAMS = 40


class Kinesis:
    """The server of the test run, and what tests do with it."""

    def __init__(self, program: KinesisLocal) -> None:
        self.program = program
        self.options = program.options
        self.client = program.client()
        self._made: list[str] = []

    def start(self) -> None:
        if not self.program.running:
            self.program.start()

    def stream(self, shards: int = 2, name: str | None = None) -> str:
        """A stream; its name, made up if none is given. Old ones are deleted: the server has a limit."""
        name = name or f"s-{uuid.uuid4().hex[:12]}"
        if len(self._made) >= _STREAMS // 2:
            self.delete(self._made.pop(0))
        create_stream(self.client, name, shards)
        self._made.append(name)
        return name

    def delete(self, name: str) -> None:
        try:
            self.client.call("DeleteStream", name, {"StreamName": name})
            self._until(lambda: status_of(self.client, name) is None)
        except NoStream:
            pass

    def put(self, stream: str, records: Sequence[tuple[str, bytes]]) -> list[str]:
        return put_records(self.client, stream, records)

    def shards(self, stream: str) -> dict[str, ShardInfo]:
        return list_shards(self.client, stream)

    def split(self, stream: str, shard: str) -> None:
        found = self._hashes(stream, shard)
        middle = (int(found["StartingHashKey"]) + int(found["EndingHashKey"])) // 2
        request = {"StreamName": stream, "ShardToSplit": shard, "NewStartingHashKey": str(middle)}
        self.client.call("SplitShard", stream, request)
        wait_active(self.client, stream)

    def merge(self, stream: str, shard: str, other: str) -> None:
        request = {"StreamName": stream, "ShardToMerge": shard, "AdjacentShardToMerge": other}
        self.client.call("MergeShards", stream, request)
        wait_active(self.client, stream)

    def reshard(self, stream: str, rng: Random) -> None:
        """Split a shard, or merge two that were split."""
        found = self.client.call("ListShards", stream, {"StreamName": stream})["Shards"]
        parents = {shard["ParentShardId"] for shard in found} | {s["AdjacentParentShardId"] for s in found}
        leaves = [shard for shard in found if shard["ShardId"] not in parents]
        leaves.sort(key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))
        if len(leaves) > 2:
            at = rng.randrange(len(leaves) - 1)
            self.merge(stream, leaves[at]["ShardId"], leaves[at + 1]["ShardId"])
        else:
            self.split(stream, rng.choice(leaves)["ShardId"])

    def restart(self) -> None:
        """kill -9 of the server, which has what it had."""
        self.persisted()
        self.program.kill()
        self.start()

    def records(self, stream: str, shard: str) -> list[dict[str, Any]]:
        """All records of a shard, as the service gives them."""
        iterator: str | None = iterator_at(self.client, stream, shard, Start(), None, "")
        found: list[dict[str, Any]] = []
        while iterator is not None:
            answer = self.client.call("GetRecords", stream, {"ShardIterator": iterator})
            found += answer["Records"]
            iterator = answer["NextShardIterator"] if answer["Records"] else None
        return found

    def persisted(self) -> None:
        """Wait until a kill of the server loses nothing of what is there."""
        file = self.program.folder / "kinesis-data.json"
        began = time.time()
        # (The file may have been written while the last request was answered.)
        self._until(lambda: file.exists() and os.stat(file).st_mtime > began + 0.6 and _whole(file))

    def _hashes(self, stream: str, shard: str) -> dict[str, str]:
        shards = self.client.call("ListShards", stream, {"StreamName": stream})["Shards"]
        return next(found["HashKeyRange"] for found in shards if found["ShardId"] == shard)

    def _until(self, done: Any) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not done():
            assert time.monotonic() < deadline, "the server of Kinesis does not get there"
            time.sleep(0.02)


def _whole(file: Any) -> bool:
    try:
        json.loads(file.read_text())
    except (ValueError, OSError):
        return False
    return True


@pytest.fixture(scope="session")
def kinesis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kinesis]:
    if find_node() is None:
        pytest.skip("the tests of Kinesis need Node 18 or later (Debian: apt-get install nodejs npm)")
    program = KinesisLocal(tmp_path_factory.mktemp("kinesis"))
    try:
        program.start()
        yield Kinesis(program)
    finally:
        program.kill()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before -m looks at the markers: who uses the fixture is marked so."""
    for item in items:
        if "kinesis" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kinesis)


def pytest_collection_finish(session: pytest.Session) -> None:
    """The download, once it is known which tests run."""
    used = any("kinesis" in getattr(item, "fixturenames", ()) for item in session.items)
    if session.config.option.collectonly or not used or find_node() is None:
        return
    try:
        fetch_kinesis(lambda text: print(f"\n{text}, once", file=sys.__stderr__, flush=True))
    except TidemillError as e:
        print(f"\n{e}", file=sys.__stderr__, flush=True)
        raise
