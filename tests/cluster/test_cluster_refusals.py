"""What cannot work on a cluster is refused before anything is opened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.server


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidemill.cli", "serve", *arguments]
    command += ["--sql-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_executors_elsewhere_cannot_see_a_folder_here(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    ended = serve("--data-dir", str(folder), "--spark-master", "spark://127.0.0.1:7077")
    assert ended.returncode == 2
    assert (
        f'executors of Spark at "spark://127.0.0.1:7077" cannot see the local folder "{folder}"'
        in ended.stderr
    )
    assert (
        "Use an s3:// data directory, or say with --shared-data-dir that every machine sees" in ended.stderr
    )
    assert not folder.exists()


def test_settings_that_answers_depend_on_are_not_changed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    ended = serve(
        *("--data-dir", str(folder), "--spark-conf", "spark.speculation=true"),
        *("--spark-conf", "spark.sql.ansi.enabled=false"),
    )
    assert ended.returncode == 1
    assert "spark.sql.ansi.enabled cannot be set to false: Tidemill needs true" in ended.stderr
    assert "Leave it out of --spark-conf." in ended.stderr
    assert not folder.exists()
