"""The archive of classes: when it is used, and that a server does use it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest

from support.server import ServerProcess
from tidemill.query import class_archive
from tidemill.query.java import Java

JAVA = Java(Path("/usr/lib/jvm/some"), 17, "PATH")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache folder in which there is an archive for JAVA."""
    archive = class_archive.place(JAVA, tmp_path)
    archive.conf.mkdir(parents=True, mode=0o700)
    archive.folder.chmod(0o700)
    archive.file.write_bytes(b"classes")
    return tmp_path


def test_it_is_found_for_the_same_java_and_jars(cache: Path) -> None:
    found = class_archive.find(JAVA, cache)
    assert found is not None
    assert found.option == f'"-XX:SharedArchiveFile={found.folder}/classes.jsa"'
    assert class_archive.find(Java(JAVA.home, 25, "PATH"), cache) is None
    assert class_archive.find(Java(Path("/usr/lib/jvm/other"), 17, "PATH"), cache) is None


def test_other_jars_have_another_one(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "spark.jar").write_bytes(b"1")
    monkeypatch.setattr(class_archive, "_jars", lambda: jars)
    assert class_archive.find(JAVA, cache) is None
    first = class_archive.place(JAVA, cache)
    os.utime(jars / "spark.jar", ns=(1, 1))
    assert class_archive.place(JAVA, cache) != first


def test_what_others_could_replace_is_not_used(cache: Path) -> None:
    class_archive.place(JAVA, cache).folder.chmod(0o777)
    assert class_archive.find(JAVA, cache) is None


def test_a_folder_of_settings_that_holds_something_is_not_used(cache: Path) -> None:
    """Java would do without the archive, and Spark would read the settings."""
    (class_archive.place(JAVA, cache).conf / "spark-defaults.conf").write_text("spark.sql.ansi.enabled false")
    assert class_archive.find(JAVA, cache) is None


def test_archives_of_installations_that_changed_or_are_gone_are_removed(tmp_path: Path) -> None:
    java, other_java, jars = (tmp_path / name for name in ("java", "other-java", "jars"))
    for folder in (java, other_java, jars):
        folder.mkdir()

    def archive(name: str, *made_for: Path) -> class_archive.ClassArchive:
        made = class_archive.ClassArchive(tmp_path / "cache" / f"classes-{name}")
        made.conf.mkdir(parents=True)
        if made_for:
            made.made_for.write_text("".join(f"{folder}\n" for folder in made_for))
        return made

    new = archive("new", java, jars)
    kept = [archive("other-java", other_java, jars), archive("being-made")]
    outdated = [archive("older", java, jars), archive("gone", java, tmp_path / "gone")]
    class_archive.remove_outdated(new)
    assert all(a.folder.is_dir() for a in (new, *kept))
    assert not any(a.folder.exists() for a in outdated)


def _maps(process: psutil.Process, file: Path) -> bool:
    try:
        return any(m.path == str(file) for m in process.memory_maps())
    except psutil.NoSuchProcess:  # it has ended; also a zombie
        return False


@pytest.mark.timeout(900)
def test_a_server_starts_with_the_archive(start_server: Callable[..., ServerProcess]) -> None:
    """`make test` has made it already; else this takes a minute."""
    prepared = subprocess.run(
        [sys.executable, "-m", "tidemill.cli", "prepare"], capture_output=True, text=True, check=True
    )
    archive = Path(prepared.stdout.split(" of ", 1)[1].strip())
    assert archive.stat().st_size > 50 << 20
    server = start_server(wait_ready=True)
    mapped = [child for child in psutil.Process(server.pid).children(recursive=True) if _maps(child, archive)]
    assert len(mapped) == 1, server.log
    with psycopg.connect(server.sql_dsn, autocommit=True) as c:
        c.execute("CREATE TABLE t (a int)")
        c.execute("INSERT INTO t VALUES (1), (2)")
        assert c.execute(
            "SELECT sum(a), now() AT TIME ZONE 'Europe/Rome' > '2000-01-01' FROM t"
        ).fetchall() == [(3, True)]
