"""`tidemill backup` and `tidemill restore`: when they are killed, and what a restored engine makes of
the things that outlived its history."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from subscriptions.subscriptions_world import Client, World
from tidemill.backup import restore as restoring
from tidemill.backup import take as taking
from tidemill.cli.app import app
from tidemill.errors import TidemillError
from tidemill.persist.environment import Environment

# Runs commands in children that a failpoint kills; prints the signals.
KILLED = """
import json, os, sys
from tidemill import failpoints
from tidemill.cli.app import app
import tidemill.cli.backup
for point, arguments in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        failpoints.arm(point + "=kill")
        app(arguments)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def killed(*commands: tuple[str, list[str]]) -> None:
    command = [sys.executable, "-c", KILLED, json.dumps(commands)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert ran.stdout.split() == ["-9"] * len(commands), ran.stderr


class Commands:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: str) -> str:
        self._capsys.readouterr()
        app(args, standalone_mode=False)
        return self._capsys.readouterr().out


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capsys)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def test_killed_backups_and_restores(world: World, tmp_path: Path, tidemill: Commands) -> None:
    client = world.session()
    world.loop.run(client.run("CREATE TABLE t (a int)"))
    data, place, copy = str(tmp_path / "data"), str(tmp_path / "backups"), str(tmp_path / "copy")
    first = json.loads(tidemill("backup", data, place, "--json"))
    world.loop.run(client.run("INSERT INTO t VALUES (2)"))
    backup = ["backup", data, place]
    killed(
        (taking.FP_PART, backup),
        (taking.FP_ARCHIVE, backup),
        (restoring.FP_WRITTEN, ["restore", place, copy]),
    )
    there = json.loads(tidemill("restore", place, "--list", "--json"))
    assert [backup["name"] for backup in there] == [first["name"]]
    assert "is whole" in tidemill("restore", place, "--check")
    # A file of the killed ones that is torn is no obstacle.
    torn = max((tmp_path / "backups" / "shards").rglob("*.parquet"), key=lambda path: path.stat().st_mtime)
    torn.write_bytes(torn.read_bytes()[:10])
    second = json.loads(tidemill("backup", data, place, "--json", "--keep", "1"))
    assert second["deleted"] == [first["name"]]
    with pytest.raises(TidemillError, match="is missing"):
        Environment.open(copy)
    with pytest.raises(TidemillError, match="is not empty"):
        tidemill("restore", place, copy)
    assert "restored backup" in tidemill("restore", place, str(tmp_path / "again"))
    with pytest.raises(TidemillError, match="there is no data directory"):
        tidemill("backup", str(tmp_path / "none"), place)
    with pytest.raises(TidemillError, match="would be in the data directory"):
        tidemill("backup", data, f"{data}/backups")


def test_what_outlived_a_lost_history_is_told(tmp_path: Path, tidemill: Commands) -> None:
    """A reader, and a sink's folder, have seen changes that are not in the backup."""
    settings = {"files_root": str(tmp_path), "scratch_dir": str(tmp_path / "scratch")}
    data, place = str(tmp_path / "data"), str(tmp_path / "backups")
    world = World(tmp_path, **settings)

    async def before(client: Client) -> None:
        await client.run("CREATE TABLE t (a int); CREATE SUBSCRIPTION s FOR t; CREATE SECRET hidden AS 'x'")
        await client.run("CREATE SINK out FROM t INTO FILES 'out' FORMAT JSON ENVELOPE MATERIALIZE")

    async def restored(client: Client) -> None:
        with pytest.raises(TidemillError, match="has lost its position") as lost:
            await client.run("FETCH 1 SUBSCRIPTION s")
        assert "restored from a backup" in str(lost.value.detail)
        wrong = "SELECT error FROM mz_internal.mz_sink_statuses WHERE name = 'out'"
        while not (found := await client.run(wrong))[0][0]:
            pass
        assert found[0][0].startswith('sink "out" is older than the backup that was restored')
        # What is made or reset now is of this history, also after the next start.
        await client.run("ALTER SUBSCRIPTION s RESET")
        await client.run("CREATE SINK other FROM t INTO FILES 'other' FORMAT JSON ENVELOPE MATERIALIZE")

    async def later(client: Client) -> None:
        await client.run("INSERT INTO t VALUES (7)")
        rows: list[tuple[Any, ...]] = []
        while not [row for row in rows if not row[1]]:
            rows = await client.run("FETCH 10 SUBSCRIPTION s WITH (TIMEOUT '10s')")
        assert [row[3] for row in rows if not row[1]] == [7]
        await world.until(lambda: any((tmp_path / "other").rglob("*")))
        for sink, kept in (("out", True), ("other", False)):
            wrong = f"SELECT error IS NOT NULL FROM mz_internal.mz_sink_statuses WHERE name = '{sink}'"
            while await client.run(wrong) != [(kept,)]:
                pass

    def play(what: Callable[[Client], Coroutine[Any, Any, None]]) -> None:
        world.loop.run(what(world.session()))

    try:
        play(before)
        tidemill("backup", data, place)
        world.close()
        tidemill("restore", place, str(tmp_path / "copy"))
        assert [path.read_text() for path in (tmp_path / "copy" / "secrets").iterdir()] == ["x"]
        world = World(tmp_path, **settings, data_dir=str(tmp_path / "copy"))
        play(restored)
        # So are the caches that stay.
        assert world.engine.arrangements.root.endswith(world.engine.environment.history.id)
        world.restart()
        play(later)
    finally:
        world.close()
