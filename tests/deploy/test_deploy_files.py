"""The files of deploy/: checked by the tools that people check such files with, and against the settings and
classes that they name. No container engine and no cluster is needed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyspark
import pytest

from tidemill import config

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CONTAINER = DEPLOY / "container"
MANIFEST = DEPLOY / "kubernetes" / "tidemill.yaml"


def tool(name: str, *args: str | Path) -> None:
    """Skipped where it is not installed: with `make setup-dev` it is."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"there is no {name}")
    ran = subprocess.run([found, *map(str, args)], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_container_file_is_linted() -> None:
    tool("hadolint", "--failure-threshold", "info", CONTAINER / "Dockerfile")


def test_the_container_file_copies_what_is_there_and_ends_without_rights() -> None:
    text = (CONTAINER / "Dockerfile").read_text()
    ignored = (CONTAINER / "Dockerfile.dockerignore").read_text()
    shown = tuple(line[1:] for line in ignored.splitlines() if line.startswith("!"))
    for line in re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", text, re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists() and name.startswith(shown), name
    stages = text.split("\nFROM ")
    assert len(stages) == 3 and re.search(r"^USER 10001:10001$", stages[-1], re.MULTILINE)
    for name, _ in re.findall(r"(TIDEMILL_[A-Z0-9_]+)=(\S+)", text):
        assert name.removeprefix("TIDEMILL_").lower() in config.SETTINGS


def test_the_manifests_fit_the_schemas_of_kubernetes() -> None:
    tool("kubernetes-validate", "--strict", "--quiet", MANIFEST)


def clean() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TIDEMILL_")}


def test_the_settings_of_the_manifests_are_valid(tmp_path: Path) -> None:
    """As the server would read them, and consistent with the ports and names of the other objects."""
    text = MANIFEST.read_text()
    match = re.search(r"  tidemill\.toml: \|\n((?:    .*\n|\n)+)", text)
    assert match is not None
    file = tmp_path / "tidemill.toml"
    file.write_text(re.sub(r"^    ", "", match[1], flags=re.MULTILINE))
    loaded = config.load({}, {}, config_file=str(file))
    assert loaded.on_s3 and loaded.spark_is_remote and loaded.authentication == "password"
    spark = dict(loaded.spark_conf)
    for port in (spark["spark.driver.port"], spark["spark.driver.blockManager.port"], loaded.sql_addr.port):
        assert f"containerPort: {port}\n" in text and f"port: {port}\n" in text
    pod, service, namespace, _ = spark["spark.driver.host"].split(".")
    assert pod == spark["spark.kubernetes.driver.pod.name"] == "tidemill-0"
    assert f"serviceName: {service}\n" in text and text.count(f"namespace: {namespace}\n") >= 8
    assert text.count(f"image: {spark['spark.kubernetes.container.image']}\n") == 1
    label = spark["spark.kubernetes.executor.label.app.kubernetes.io/name"]
    assert f"app.kubernetes.io/name: {label}\n" in text
    for name in set(re.findall(r"TIDEMILL_[A-Z0-9_]+", text)):
        assert name.removeprefix("TIDEMILL_").lower() in config.SETTINGS


def test_the_unit(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd" / "tidemill.service").read_text()
    with (DEPLOY / "systemd" / "tidemill.toml").open("rb") as file:
        assert tomllib.load(file).keys() <= config.SETTINGS.keys()
    assert "ExecStart=/opt/tidemill/bin/tidemill serve " in unit
    # The program of this environment stands for the one that would be installed.
    here = Path(sys.executable).parent / "tidemill"
    copy = tmp_path / "tidemill.service"
    copy.write_text(unit.replace("/opt/tidemill/bin/tidemill", str(here)))
    tool("systemd-analyze", "verify", "--man=no", copy)


def run(script: str, *args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, CONTAINER / script, *args],
        capture_output=True,
        text=True,
        timeout=120,
        env={**clean(), **environ},
    )


@pytest.fixture
def address() -> Iterator[str]:
    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = HTTPServer(("127.0.0.1", 0), Health)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"0.0.0.0:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_health_check(address: str) -> None:
    assert run("health.py", TIDEMILL_HTTP_ADDR=address).returncode == 0
    # Nobody speaks TLS there.
    assert run("health.py", TIDEMILL_HTTP_ADDR=address, TIDEMILL_TLS_CERT="cert.pem").returncode == 1
    assert run("health.py", TIDEMILL_HTTP_ADDR="0.0.0.0:1").returncode == 1


def test_the_entrypoint_starts_an_executor_of_spark(tmp_path: Path) -> None:
    """With the options that the class has, which is in the jars of the pip package."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.1"\n')
    told = {
        "SPARK_EXECUTOR_MEMORY": "4g",
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "3",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.7",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "pod",
        "SPARK_JAVA_OPT_10": "-Dlast=1",
        "SPARK_JAVA_OPT_2": "-Dfirst=a b",
    }
    ran = run("entrypoint.py", "executor", JAVA_HOME=str(tmp_path), **told)
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.splitlines()
    assert said[:4] == ["-Dfirst=a b", "-Dlast=1", "-Xms4g", "-Xmx4g"]
    name = said[6]
    options = dict(zip(said[7::2], said[8::2], strict=True))
    assert options["--driver-url"] == "spark://driver" and options["--hostname"] == "10.0.0.7"
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as archive:
        assert f"{name.replace('.', '/')}.class" in archive.namelist()
