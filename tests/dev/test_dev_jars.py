"""Fetching Java programs: once, whole or not at all, and with the reason when it fails. Ivy is a stand-in
here; the real one brings what the other tests of this folder start."""

from __future__ import annotations

import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tidemill.dev import jars
from tidemill.dev.jars import Bundle, fetch, fetched
from tidemill.errors import Unavailable
from tidemill.query.java import Java

Ivy = Callable[[str], Path]
PLAIN = Bundle("plain", ("org.example:thing:1.0",), without=("kafka-clients",))
ARCHIVE = Bundle("archive", ("org.example:app:2.0",), classifier="all")

# What stands for Java: brings the files that Ivy would, to where it is told.
IVY = """#!{python}
import io, os, pathlib, sys, tarfile
arguments = sys.argv
folder = pathlib.Path(arguments[arguments.index("-retrieve") + 1]).parent
with open({calls!r}, "a") as calls:
    calls.write(pathlib.Path(arguments[arguments.index("-ivy") + 1]).read_text() + chr(10))
{body}
"""
BRINGS_JARS = """
folder.mkdir()
for name in ("thing-1.0.jar", "kafka-clients-4.0.jar", "kafka-clients-extra-4.0.jar"):
    (folder / name).write_text(name)
"""
BRINGS_ARCHIVE = """
folder.mkdir()
with tarfile.open(folder / "app-2.0-all.tar.gz", "w:gz") as tar:
    entry = tarfile.TarInfo("lib/inner.jar")
    entry.size = 3
    tar.addfile(entry, io.BytesIO(b"abc"))
"""


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ivy:
    """`ivy(body)` makes the stand-in; gives the file that notes its calls."""
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path / "cache"))
    calls = tmp_path / "calls"

    def make(body: str) -> Path:
        java = tmp_path / "java" / "bin" / "java"
        java.parent.mkdir(parents=True, exist_ok=True)
        java.write_text(IVY.format(python=sys.executable, calls=str(calls), body=body))
        java.chmod(java.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(jars, "find_java", lambda: Java(tmp_path / "java", 17, "test"))
        return calls

    return make


def test_jars_come_once_and_less_those_to_be_found_elsewhere(ivy: Ivy, tmp_path: Path) -> None:
    calls = ivy(BRINGS_JARS)
    told: list[str] = []
    assert not fetched(PLAIN)
    folder = fetch(PLAIN, told.append)
    assert sorted(p.name for p in folder.iterdir()) == ["kafka-clients-extra-4.0.jar", "thing-1.0.jar"]
    assert fetch(PLAIN) == folder and fetched(PLAIN)
    assert calls.read_text().count("<ivy-module") == 1
    assert 'org="org.example" name="thing" rev="1.0" transitive="true"' in calls.read_text()
    assert any("downloading" in text for text in told)
    # Nothing else is left behind.
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == [folder.name, f"{folder.name}.lock"]


def test_archives_are_taken_alone_and_unpacked(ivy: Ivy) -> None:
    calls = ivy(BRINGS_ARCHIVE)
    folder = fetch(ARCHIVE)
    assert [str(p.relative_to(folder)) for p in folder.rglob("*.*")] == ["lib/inner.jar"]
    assert 'transitive="false"' in calls.read_text() and 'm:classifier="all"' in calls.read_text()


def test_another_version_is_another_folder() -> None:
    assert PLAIN.folder_name != Bundle("plain", ("org.example:thing:1.1",), without=PLAIN.without).folder_name


def test_a_failure_shows_what_was_not_found_and_leaves_nothing(ivy: Ivy, tmp_path: Path) -> None:
    ivy("folder.mkdir()\nprint('module not found: org.example#thing')\nsys.exit(1)")
    with pytest.raises(Unavailable, match="cannot download plain") as caught:
        fetch(PLAIN)
    assert "module not found: org.example#thing" in (caught.value.detail or "")
    assert "proxy" in (caught.value.hint or "")
    assert not fetched(PLAIN)
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [f"{PLAIN.folder_name}.lock"]


def test_a_download_that_stands_still_is_given_up(ivy: Ivy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "STALL_SECONDS", 0.3)
    ivy("import time\ntime.sleep(3600)")
    with pytest.raises(Unavailable) as caught:
        fetch(PLAIN)
    assert "no progress" in (caught.value.detail or "")


def test_what_a_killed_process_left_is_cleared_away(ivy: Ivy, tmp_path: Path) -> None:
    ivy(BRINGS_JARS)
    left = tmp_path / "cache" / f".{PLAIN.folder_name}-dead"
    left.mkdir(parents=True)
    fetch(PLAIN)
    assert not left.exists()


def test_two_at_once_download_once(ivy: Ivy) -> None:
    calls = ivy(f"import time\ntime.sleep(2)\n{BRINGS_JARS}")
    told: list[str] = []
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(PLAIN, told.append))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 3
    assert calls.read_text().count("<ivy-module") == 1
    assert any("waiting" in text for text in told)


def test_a_cache_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    with pytest.raises(Unavailable, match="cannot keep plain") as caught:
        fetch(PLAIN)
    assert jars.CACHE_VARIABLE in (caught.value.hint or "")
