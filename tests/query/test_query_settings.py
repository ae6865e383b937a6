"""What a Spark session is started with, by where its tasks run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config import ConfigError
from tidemill.query.settings import EXECUTORS, FIXED, SettingPlace, cores, place, spark_conf
from tidemill.query.spark import SparkHost

SCRATCH, SOCKETS = Path("/scratch"), Path("/sockets")


def conf(master: str, **extra: str) -> dict[str, str]:
    return spark_conf(master, SCRATCH, SOCKETS, 512, {k.replace("_", "."): v for k, v in extra.items()})


@pytest.mark.parametrize(
    ("master", "where", "tasks"),
    [
        ("local", SettingPlace.ONE_JVM, 1),
        ("local[3]", SettingPlace.ONE_JVM, 3),
        ("local[3, 2]", SettingPlace.ONE_JVM, 3),
        ("local-cluster[2,3,512]", SettingPlace.THIS_MACHINE, 6),
        ("local-cluster[ 2, 1, 512 ]", SettingPlace.THIS_MACHINE, 2),
        ("spark://localhost:7077", SettingPlace.REMOTE, 2),
        ("k8s://https://host", SettingPlace.REMOTE, 2),
        ("yarn", SettingPlace.REMOTE, 2),
    ],
)
def test_a_master_tells_where_tasks_run_and_how_many(master: str, where: SettingPlace, tasks: int) -> None:
    assert place(master) is where
    assert cores(master) == tasks


def test_nothing_of_this_machine_goes_to_others() -> None:
    """The driver's own options may name its folders: executors never see them."""
    found = conf("spark://host:7077")
    named = {key for key, value in found.items() if str(SCRATCH) in value or str(SOCKETS) in value}
    assert named == {"spark.driver.extraJavaOptions", "spark.sql.warehouse.dir"}
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.default.parallelism"} & set(found)
    # The driver's Unix sockets lie in its temporary folder, so that must have the short path.
    assert f"-Djava.io.tmpdir={SOCKETS}" in found["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,512]"])
def test_on_one_machine_nobody_else_can_connect(master: str) -> None:
    found = conf(master)
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "127.0.0.1"
    assert found["spark.python.unix.domain.socket.dir"] == str(SOCKETS)
    assert found["spark.local.dir"] == "/scratch/local"


def test_executors_that_are_processes_may_die_alone() -> None:
    for master in ("local-cluster[2,1,512]", "spark://host:7077"):
        assert conf(master).items() >= EXECUTORS.items()
    assert not EXECUTORS.keys() & conf("local[2]").keys()
    assert conf("local-cluster[2,1,512]")["spark.executor.memory"] == "512m"
    assert "spark.executor.memory" not in conf("spark://host:7077")


def test_what_is_given_wins_over_ours() -> None:
    found = conf("local[2]", spark_scheduler_mode="FIFO", spark_driver_host="elsewhere")
    assert (found["spark.scheduler.mode"], found["spark.driver.host"]) == ("FIFO", "elsewhere")


def test_java_options_are_added_to_ours() -> None:
    found = conf(
        "spark://host:7077", spark_driver_extraJavaOptions="-Da=b", spark_executor_extraJavaOptions="-Dc=d"
    )
    assert found["spark.driver.extraJavaOptions"].endswith(" -Da=b")
    assert found["spark.executor.extraJavaOptions"] == "-Duser.timezone=UTC -Dc=d"


@pytest.mark.parametrize("key", sorted(FIXED))
def test_what_answers_depend_on_is_refused_by_name(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SparkHost("local[1]", {key: "something else"})
    assert caught.value.primary == f"{key} cannot be set to something else: Tidemill needs {FIXED[key]}"
    assert spark_conf("local[1]", SCRATCH, SOCKETS, 512, {key: FIXED[key]})[key] == FIXED[key]


@pytest.mark.parametrize(
    ("key", "flag"), [("spark.master", "--spark-master"), ("spark.driver.memory", "--spark-driver-memory")]
)
def test_what_is_a_setting_of_ours_is_refused_with_its_name(key: str, flag: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SparkHost("local[1]", {key: "1g"})
    assert flag in (caught.value.hint or "")
