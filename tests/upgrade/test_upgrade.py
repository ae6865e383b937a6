"""Data directories and backups of earlier formats: restored, read and written by this version.
`formats/<number>` was made once, by the version that wrote that format (`make_format_fixture`), and must
never be made again.

No version is released yet: the present formats are pinned, so that their first change needs a migration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from subscriptions.subscriptions_world import Client, World
from tidemill.backup.restore import find, restore
from tidemill.persist import formats
from tidemill.persist.blob import open_blobs
from upgrade.make_format_fixture import contents

FORMATS = Path(__file__).parent / "formats"


@pytest.mark.parametrize("number", sorted(path.name for path in FORMATS.iterdir()))
def test_a_directory_of_an_earlier_format(number: str, tmp_path: Path) -> None:
    seen = json.loads((FORMATS / number / "seen.json").read_text())
    source, data = open_blobs(str(FORMATS / number)), open_blobs(str(tmp_path / "data"))
    restore(source, find(source, None), data, tmp_path / "data" / "secrets", continued=True)
    assert contents(data, seen["times"]) == seen["contents"]
    world = World(tmp_path, files_root=str(tmp_path))

    async def use(client: Client) -> None:
        for sql, rows in seen["shown"].items():
            found: list[tuple[Any, ...]] = await client.run(sql)
            assert [list(map(str, row)) for row in found] == rows, sql
        await client.run("INSERT INTO things (id) VALUES (100)")
        await client.run("ALTER SECRET hidden AS 'another'")

    try:
        world.loop.run(use(world.session()))
        environment = world.engine.environment
        assert formats.format_of(environment._clock.shard) == formats.FORMAT  # pyright: ignore[reportPrivateUsage]
        assert [path.read_text() for path in (tmp_path / "data" / "secrets").iterdir()] == ["another"]
        world.restart()
    finally:
        world.close()


def test_the_present_format_is_pinned() -> None:
    assert str(formats.FORMAT) in {path.name.split("-")[0] for path in FORMATS.iterdir()}
