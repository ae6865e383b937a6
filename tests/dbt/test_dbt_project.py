"""The project of examples/dbt, run by dbt itself over a real server. dbt has an environment of its own in
.cache, which is made once: what it needs does not fit beside what the server needs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.server import ServerProcess, connected

ROOT = Path(__file__).resolve().parents[2]
# dbt-core 1.12 needs a package that is not on PyPI.
PACKAGES = ("dbt-core==1.11.16", "dbt-postgres==1.10.2")
VENV = ROOT / ".cache" / "dbt-venv"
SECONDS = 900


@pytest.fixture(scope="session")
def dbt() -> Path:
    made = VENV / ".made"
    if not made.exists() or made.read_text() != " ".join(PACKAGES):
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        got = subprocess.run([*pip, *PACKAGES], capture_output=True, text=True, check=False)
        if got.returncode:
            pytest.skip(f"dbt cannot be installed: {got.stderr[-500:]}")
        made.write_text(" ".join(PACKAGES))
    return VENV / "bin" / "dbt"


class Project:
    def __init__(self, dbt: Path, folder: Path, server: ServerProcess, database: str) -> None:
        self.dbt, self.folder = dbt, folder
        shutil.copytree(ROOT / "examples" / "dbt", folder)
        self.env = {
            **os.environ,
            "DBT_PROFILES_DIR": str(folder),
            "TIDEMILL_HOST": "127.0.0.1",
            "TIDEMILL_PORT": str(server.sql_port),
            "TIDEMILL_DATABASE": database,
        }
        self.vars = json.dumps({"sink_folder": f"dbt_{database}"})

    def run(self, *args: str) -> Mapping[str, str]:
        """The message of each node, such as CREATE VIEW."""
        command = [str(self.dbt), "--no-use-colors", *args, "--vars", self.vars]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        results: list[dict[str, Any]] = json.loads((self.folder / "target" / "run_results.json").read_text())[
            "results"
        ]
        return {r["unique_id"].split(".")[2]: r["message"] for r in results}

    def edit(self, model: str, old: str, new: str) -> None:
        path = self.folder / "models" / f"{model}.sql"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_the_project(dbt: Path, tmp_path: Path, server: ServerProcess, database: str) -> None:
    project = Project(dbt, tmp_path / "project", server, database)
    with connected(server, database) as c:

        def ids() -> dict[str, str]:
            return dict(c.execute("SELECT name, id FROM mz_objects WHERE id LIKE 'u%'").fetchall())

        first = project.run("build")
        assert first["house"] == "CREATE SOURCE"
        assert first["lots"] == "CREATE VIEW"
        assert first["highest_bids"] == "CREATE MATERIALIZED VIEW"
        assert first["highest_bids_out"] == "CREATE SINK"
        made = ids()
        assert c.execute("SELECT * FROM prices ORDER BY currency").fetchone() is not None

        again = project.run("build")
        assert (again["lots"], again["highest_bids"]) == ("UNCHANGED", "UNCHANGED")
        assert ids() == made

        # A changed query is replaced where it is, and what reads it stays: here the sink.
        project.edit("highest_bids", "max(b.amount)", "max(b.amount) + 1")
        assert project.run("run")["highest_bids"] == "CREATE MATERIALIZED VIEW"
        assert ids() == made
        highest = "SELECT 1 + max(amount) FROM bids WHERE auction_id = h.id"
        wrong = f"SELECT count(*) FROM highest_bids AS h WHERE highest <> ({highest})"
        assert c.execute(wrong.encode()).fetchone() == (0,)

        # The rows of a table are exchanged, and its readers stay.
        c.execute("CREATE MATERIALIZED VIEW reader AS SELECT * FROM prices")
        project.edit("prices", "100 / rate", "1000 / rate")
        project.run("run", "--select", "prices")
        assert (
            c.execute("SELECT currency, hundred_dollars FROM reader ORDER BY 1").fetchall()
            == c.execute("SELECT currency, round(1000 / rate, 2) FROM rates ORDER BY 1").fetchall()
        )

        project.run("docs", "generate")
        catalog = json.loads((project.folder / "target" / "catalog.json").read_text())
        found = catalog["nodes"]["model.auction.highest_bids"]
        assert found["metadata"]["type"] == "MATERIALIZED VIEW"
        assert found["metadata"]["comment"] == "The highest bid of each auction, always current."
        assert found["columns"]["id"]["comment"] == "The auction."

        c.execute("DROP MATERIALIZED VIEW reader")
        # A sink would need another folder.
        project.run("build", "--full-refresh", "--exclude", "highest_bids_out")
        anew = ids()
        assert set(anew) == set(made) - {"highest_bids_out"}
        assert anew["highest_bids"] != made["highest_bids"]
