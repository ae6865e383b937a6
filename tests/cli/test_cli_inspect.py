"""`tidemill inspect`: what a directory holds, while it is held, and when it is damaged. It only reads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tidemill.catalog.items import Schema, Table
from tidemill.catalog.ops import CreateTableOp, DropOp
from tidemill.catalog.source_ops import CreateSourceOp, NewSubsource
from tidemill.catalog.store import Catalog
from tidemill.cli import inspect
from tidemill.cli.survey import DirectorySurvey, ShardReport, survey
from tidemill.config import ConfigError, load
from tidemill.persist.environment import Environment
from tidemill.types.model import INT8, TEXT, Column, RelationDesc

DESC = RelationDesc((Column("id", INT8), Column("name", TEXT)))


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    """A held directory with the table `fruit` of three rows."""
    environment = Environment.open(str(tmp_path / "data"))
    catalog = Catalog.open(environment)
    schema = next(i for i in catalog.state.items.values() if isinstance(i, Schema) and i.name == "public")
    catalog.transact([CreateTableOp(schema.id, "fruit", DESC)])
    table = next(i for i in catalog.state.items.values() if isinstance(i, Table))
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})
    diffs = pa.array([1, 1, 1], pa.int64())
    time = environment.txns.commit({table.shard: rows.append_column("mz_diff", diffs)}).result(10)
    environment.txns.apply_until(table.shard, time)
    yield environment
    environment.close()


def look(folder: Path) -> DirectorySurvey:
    return survey(load({"data_dir": str(folder)}, {}))


def fruit(found: DirectorySurvey) -> ShardReport:
    return next(s for s in found.shards if s.name.endswith("fruit"))


def files(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.stat().st_size)
        for p in sorted(folder.rglob("*"))
    }


def test_a_held_directory_is_shown_and_not_touched(environment: Environment, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(folder, tmp_path / "copy")
    before = files(tmp_path / "copy")
    found = look(tmp_path / "copy")
    assert files(tmp_path / "copy") == before
    assert look(folder).healthy, "also while the server holds it"
    assert found.healthy
    assert found.holder is not None
    assert found.holder.pid == os.getpid()
    assert {s.name for s in found.shards} >= {"(catalog)", "(clock and holder)", "(transactions)"}
    table = fruit(found)
    assert table.name == "materialize.public.fruit"
    assert (table.files, table.rows) == (1, 3)
    assert isinstance(table.upper, int)
    assert table.since is not None
    assert table.since < table.upper


def test_a_missing_part_is_damage_of_its_shard_alone(environment: Environment, tmp_path: Path) -> None:
    shard = fruit(look(tmp_path / "data")).id
    part = next((tmp_path / "data" / "shards" / shard / "parts").rglob("*.parquet"))
    part.rename(tmp_path / "elsewhere")
    found = look(tmp_path / "data")
    assert not found.healthy
    assert [s.id for s in found.shards if s.problems] == [shard]
    assert "parts missing: parts/" in fruit(found).problems[0]


def test_a_part_of_the_wrong_size_is_damage(environment: Environment, tmp_path: Path) -> None:
    shard = fruit(look(tmp_path / "data")).id
    part = next((tmp_path / "data" / "shards" / shard / "parts").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    assert "of the wrong size" in fruit(look(tmp_path / "data")).problems[0]


def test_a_torn_log_entry_is_damage_and_the_rest_is_read(environment: Environment, tmp_path: Path) -> None:
    shard = fruit(look(tmp_path / "data")).id
    entry = max((tmp_path / "data" / "shards" / shard / "_delta_log").glob("*.json"))
    entry.write_bytes(entry.read_bytes()[:20])
    found = look(tmp_path / "data")
    damaged = [s for s in found.shards if s.problems]
    assert [s.id for s in damaged] == [shard]
    assert damaged[0].name == "materialize.public.fruit"
    assert entry.name in damaged[0].problems[0]


@pytest.mark.parametrize("shard", ["fruit", "catalog", "txns"])
def test_a_log_whose_newest_entry_is_gone_is_damage(
    environment: Environment, tmp_path: Path, shard: str
) -> None:
    shard = fruit(look(tmp_path / "data")).id if shard == "fruit" else shard
    environment.close()
    assert look(tmp_path / "data").healthy
    entry = max((tmp_path / "data" / "shards" / shard / "_delta_log").glob("*.json"))
    entry.unlink()
    found = look(tmp_path / "data")
    damaged = [s for s in found.shards if s.problems]
    assert [s.id for s in damaged] == [shard]
    assert entry.name in damaged[0].problems[0] and "is missing" in damaged[0].problems[0]


def test_a_damaged_catalog_costs_only_the_names(environment: Environment, tmp_path: Path) -> None:
    shard = fruit(look(tmp_path / "data")).id
    log = tmp_path / "data" / "shards" / "catalog" / "_delta_log"
    (log / f"{0:020d}.json").write_text("{}")
    found = look(tmp_path / "data")
    assert not found.healthy
    assert found.problems
    table = next(s for s in found.shards if s.id == shard)
    assert (table.name, table.rows, table.problems) == ("", 3, [])


def test_a_dropped_table_is_shown_as_such_until_its_files_go(
    environment: Environment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = Catalog.open(environment)
    table = next(i for i in catalog.state.items.values() if isinstance(i, Table))
    catalog.transact([DropOp(table.id)])
    found = look(tmp_path / "data")
    assert found.healthy
    report = next(s for s in found.shards if s.id == table.shard)
    assert (report.name, report.dropped, report.rows) == ("(dropped)", True, 3)
    inspect.run(load({"data_dir": str(tmp_path / "data")}, {}), as_json=False)
    assert f"{table.shard}: its table was dropped" in capsys.readouterr().out


def test_what_is_no_data_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no data directory"):
        look(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(ConfigError, match="holds no shards"):
        look(tmp_path)


def test_the_command_prints_both_forms_and_tells_damage_by_its_status(
    environment: Environment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = load({"data_dir": str(tmp_path / "data")}, {})
    assert inspect.run(config, as_json=False) == 0
    shown = capsys.readouterr().out
    assert "materialize.public.fruit" in shown
    assert "all whole" in shown
    assert f"held by process {os.getpid()}" in shown
    assert inspect.run(config, as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["healthy"] is True
    shard = next(s["id"] for s in report["shards"] if s["name"] == "materialize.public.fruit")
    shutil.rmtree(tmp_path / "data" / "shards" / shard / "parts")
    assert inspect.run(config, as_json=False) == 1
    assert "parts missing" in capsys.readouterr().out


def test_shards_of_sources_are_named(environment: Environment, tmp_path: Path) -> None:
    catalog = Catalog.open(environment)
    schema = next(i for i in catalog.state.items.values() if isinstance(i, Schema) and i.name == "public")
    bids = NewSubsource("bids", "bids", DESC, "none")
    empty = RelationDesc(())
    source = CreateSourceOp(
        schema.id, "house", "load-generator", "{}", "", None, None, empty, DESC, 1000, None, (bids,)
    )
    catalog.transact([source])
    found = look(tmp_path / "data")
    assert found.healthy
    names = {s.name for s in found.shards}
    assert names >= {"materialize.public.house (bindings)", "materialize.public.bids"}
