"""A JVM that ran out of memory is asked whether it still works, and ended if it does not."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tidemill.query import out_of_memory
from tidemill.query.out_of_memory import Exhausted
from tidemill.query.settings import spark_conf


class World:
    def __init__(self, folder: Path) -> None:
        self.printed = folder / "jvm.log"
        self.asked = threading.Event()
        self.ended = threading.Event()
        self.why: list[str] = []
        self.answers = True
        self.exhausted = Exhausted(self.printed, self._probe, self._give_up)

    def _probe(self) -> None:
        self.asked.set()
        if not self.answers:
            threading.Event().wait(60)

    def _give_up(self, why: str) -> None:
        self.why.append(why)
        self.ended.set()


def test_one_that_works_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.exhausted.met()
    assert world.asked.wait(60)
    assert not world.ended.wait(0.1)


def test_one_that_does_not_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_memory, "PROBE_SECONDS", 0.05)
    world = World(tmp_path)
    world.answers = False
    world.exhausted.met()
    assert world.ended.wait(60)
    assert world.why == ["it ran out of memory, and did not recover"]


def test_one_whose_thread_died_is_ended(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert not world.exhausted.died()
    world.printed.write_bytes(b'WARNING: OutOfMemoryError\nException in thread "dag-sched')
    assert not world.exhausted.died()
    with world.printed.open("ab") as file:
        file.write(b'uler" java.lang.OutOfMemoryError: Java heap space\n\tat x\n')
    pauses: list[float] = []
    world.exhausted.watch(lambda: False, pauses.append)
    assert world.why == ["one of its threads ran out of memory"] and len(pauses) == 1
    assert not world.exhausted.died()


def test_tasks_in_the_drivers_process_may_fail_alone(tmp_path: Path) -> None:
    """Executors of their own may end: their tasks run again elsewhere, and the driver's end is noticed."""
    here = spark_conf("local[2]", tmp_path, tmp_path, None, {})
    assert "ExitOnOutOfMemoryError" not in here["spark.driver.extraJavaOptions"]
    assert here["spark.executor.killOnFatalError.depth"] == "0"
    there = spark_conf("local-cluster[1,1,1024]", tmp_path, tmp_path, None, {})
    assert "ExitOnOutOfMemoryError" in there["spark.driver.extraJavaOptions"]
