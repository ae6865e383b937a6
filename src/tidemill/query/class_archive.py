"""An archive of the classes that a start of Spark loads: with it, the JVM has a session in half the time.

`tidemill prepare` makes it once (`make`); `SparkHost` uses it in each later start, if it exists (`find`).
Java calls this class data sharing. A start loads some 15,000 classes out of 250 jars, and checks each. From
the archive they are mapped into memory.

Promises: an archive changes how fast the JVM starts, nothing else. The JVM checks that the archive is of the
same Java and the same jars, and does without it otherwise. It is mapped as code, so its folder belongs to
this user alone. There is one for each installation of Java and PySpark (`_name`), and none is left half made.
One that was made for an installation that has changed since, or is gone, is removed when another is made.

Java archives classes of jars only: no folder on the class path may hold a file. Spark puts the folder of its
settings there. With an archive that is an empty folder beside it, the same for all servers, and the settings
of the log are named by an option (`settings.LOG4J_OPTION`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.errors import Unavailable
from tidemill.query.java import Java, default_cache_dir, find_java, must_be_ours

if TYPE_CHECKING:
    from tidemill.query.spark import SparkHost

# The archive takes 10 to 40 s of a core to write; a machine that needs longer than this is stuck.
DUMP_TIMEOUT = 600.0
# A start of Spark, with the warm-up, on a busy machine.
START_TIMEOUT = 600.0
# What the JVM that is watched needs; its heap has no influence on the archive.
DRIVER_MB = 1024


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive of one installation; `file` may not exist yet."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "classes.jsa"

    @property
    def conf(self) -> Path:
        """What Spark takes for the folder of its settings: it is empty, and first on the class path."""
        return self.folder / "conf"

    @property
    def made_for(self) -> Path:
        """Names the folders of the Java and the jars, a line each."""
        return self.folder / "made-for"

    @property
    def option(self) -> str:
        """For the JVM."""
        return f'"-XX:SharedArchiveFile={self.file}"'


def find(java: Java, cache_dir: Path | None = None) -> ClassArchive | None:
    """The archive for this Java and the installed PySpark; None if there is none that may be used."""
    archive = place(java, cache_dir)
    try:
        if not archive.file.is_file() or any(archive.conf.iterdir()):
            return None
        must_be_ours(archive.folder)
        must_be_ours(archive.conf)
    except (OSError, Unavailable):
        return None
    return archive


def place(java: Java, cache_dir: Path | None = None) -> ClassArchive:
    return ClassArchive((cache_dir or default_cache_dir()) / f"classes-{_name(java)}")


def _name(java: Java) -> str:
    """All that an archive depends on: the Java, and the jars with their times."""
    jars = _jars()
    parts = [str(java.home), str(java.version), str(jars)]
    with os.scandir(jars) as found:
        for entry in sorted(found, key=lambda e: e.name):
            stat = entry.stat()
            parts.append(f"{entry.name} {stat.st_size} {stat.st_mtime_ns}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _jars() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


def make(
    settings: Mapping[str, str],
    also_warm: Callable[[SparkHost], None],
    say: Callable[[str], None],
    cache_dir: Path | None = None,
) -> ClassArchive:
    """Make the archive, or return the one that exists. It starts Spark in this process as a server does,
    which takes a gigabyte of memory, and about a minute of a core in all. `say` is called with each step."""
    from tidemill.query.spark import SparkHost

    java = find_java(cache_dir)
    existing = find(java, cache_dir)
    if existing is not None:
        return existing
    archive = place(java, cache_dir)
    try:
        archive.conf.mkdir(parents=True, exist_ok=True, mode=0o700)
        work = Path(tempfile.mkdtemp(dir=archive.folder, prefix="new-"))
    except OSError as e:
        raise _unwritable(archive.folder, e) from e
    must_be_ours(archive.folder)
    must_be_ours(archive.conf)
    try:
        listed = work / "classes.txt"
        say(f"starting Spark with Java {java.version} from {java.source}, to see which classes it loads")
        watched = {"spark.driver.extraJavaOptions": f'"-XX:DumpLoadedClassList={listed}"'}
        host = SparkHost(
            "local[2]",
            {**settings, **watched},
            scratch=work / "spark",
            driver_memory_mb=DRIVER_MB,
            also_warm=also_warm,
        )
        try:
            session = host.wait(START_TIMEOUT)
            path: str = session._jvm.java.lang.System.getProperty("java.class.path")
            # Java compares some of them with those of the start.
            modules: str = session._jvm.org.apache.spark.launcher.JavaModuleOptions.defaultModuleOptions()
        finally:
            host.stop()
        say(f"writing the classes to {archive.file}")
        _write(java, modules.split(), listed, _with_conf(path, archive.conf), work / "classes.jsa")
        # Whoever starts meanwhile sees the whole archive or none.
        (work / "classes.jsa").replace(archive.file)
        archive.made_for.write_text(f"{java.home}\n{_jars()}\n")
        remove_outdated(archive)
    except OSError as e:
        raise _unwritable(archive.folder, e) from e
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return archive


def remove_outdated(archive: ClassArchive) -> None:
    """Removes the archives beside it that no start will use again. A JVM that has one mapped keeps it."""
    mine = archive.made_for.read_text()
    for folder in archive.folder.parent.glob("classes-*"):
        other = ClassArchive(folder)
        try:
            theirs = other.made_for.read_text()
        except OSError:
            continue  # it is being made
        gone = not all(Path(line).exists() for line in theirs.splitlines())
        if folder != archive.folder and (gone or theirs == mine):
            shutil.rmtree(folder, ignore_errors=True)


def _with_conf(class_path: str, conf: Path) -> str:
    """The class path of a server that uses the archive: Spark's launcher writes the folder with a slash."""
    _, *jars = class_path.split(os.pathsep)
    return os.pathsep.join([f"{conf}/", *jars])


def _write(java: Java, modules: Sequence[str], listed: Path, class_path: str, file: Path) -> None:
    command = [
        str(java.home / "bin" / "java"),
        *modules,
        "-Xshare:dump",
        # It would name thousands of classes that no archive can hold: those that Spark generates.
        "-Xlog:cds*=off",
        f"-XX:SharedClassListFile={listed}",
        f"-XX:SharedArchiveFile={file}",
        "-cp",
        class_path,
    ]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=DUMP_TIMEOUT, check=False)
        said = (ran.stdout + ran.stderr).strip().splitlines()
    except subprocess.TimeoutExpired:
        said = [f"no end after {DUMP_TIMEOUT:.0f} s"]
    if not file.is_file():
        raise Unavailable(
            f"Java {java.version} could not write an archive of classes",
            detail=" / ".join(said[-3:])[:500],
            hint="The server works without it, and takes longer to start.",
        )


def _unwritable(folder: Path, e: OSError) -> Unavailable:
    return Unavailable(
        "cannot write the archive of classes",
        detail=f"{folder}: {e.strerror or e}",
        hint="make the cache folder writable, or set XDG_CACHE_HOME to one that is",
    )
