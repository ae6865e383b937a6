"""Results spooled to disk: partitions whose size is unknown before they are computed.

Created by `run.ResultStream` for queries whose result may grow (`result_size`). What a task returns to the
driver must fit the heap, together with everything else that runs there. So the task writes its batches to
disk one by one, as a Spark block with storage level disk-only, and returns nothing. The driver then reads the
block batch by batch. A result of any size passes through the memory of some batches. Its disk space is
limited, and is freed once it is read.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.errors import LimitExceeded, TidemillError, Unavailable
from tidemill.query.settings import SettingPlace

if TYPE_CHECKING:
    from tidemill.query.job import Job
    from tidemill.query.spark import SparkHost

# What one result may have on disk at a time. (A SELECT's result is limited to a quarter of it, but one
# partition is complete before its first row is read.)
SPOOL_LIMIT_BYTES = 4 << 30
# The disk space that is left for others.
SPARE_BYTES = 512 << 20
# How often its size is checked while it grows: a disk writes some hundred megabytes in that time.
LOOK_SECONDS = 0.5
# A task that was stopped may yet finish its block, when the others are gone: they are removed again then.
FORGET_AGAIN_SECONDS = (1.0, 5.0, 30.0)


class Spool:
    """The partitions of one RDD of batches. `rdd` is the JVM's, Scala's own."""

    def __init__(self, host: SparkHost, job: Job, rdd: Any) -> None:
        self._host = host
        self._job = job
        self._jvm: Any = host.session._jvm
        self._rdd: Any = rdd.persist(self._jvm.org.apache.spark.storage.StorageLevel.DISK_ONLY())
        self._id = int(rdd.id())
        # Takes none of a partition's batches; to look for them makes the partition.
        self._made = self._rdd.toJavaRDD().sample(False, 0.0, 0)
        self._blocks: Any = _block_manager(self._jvm, host.session.sparkContext)
        # The block that is served, until all of it was read.
        self._reading: Any = None
        # Spark uses it to choose the serializer of a block of another process; the block was written as a
        # byte array.
        self._batch = self._jvm.scala.reflect.ClassTag.apply(self._jvm.java.lang.Class.forName("[B"))

    def fill(self, context: Any, partitions: list[int]) -> Any:
        """Compute these partitions; blocks until they are on disk. The result has no batches. Raises
        `LimitExceeded` if they take too much space, and what the job raises."""
        with self._watched():
            return self._jvm.PythonRDD.runJob(context._jsc.sc(), self._made, partitions)

    def serve(self, partition: int) -> Any | None:
        """The batches of one, as `PythonRDD.runJob` serves them; None where the block is lost (with the
        process that had it)."""
        block = self._block(partition)
        found = self._blocks.get(block, self._batch)
        if found.isEmpty():
            return None
        self._reading = block
        return self._jvm.PythonRDD.serveIterator(found.get().data(), f"serve RDD {self._id}")

    def drop(self, partition: int) -> None:
        """It was read."""
        self._reading = None
        self._blocks.master().removeBlock(self._block(partition))

    def close(self) -> None:
        """Nothing of it is read any more; the JVM may be gone. May be called again."""
        self._host.background(self._forget)

    def _block(self, partition: int) -> Any:
        return self._jvm.org.apache.spark.storage.RDDBlockId(self._id, partition)

    def _forget(self, later: tuple[float, ...] = FORGET_AGAIN_SECONDS) -> None:
        try:
            self._let_go()
            self._rdd.unpersist(False)
        except Exception:
            return  # no JVM any more, so no block either
        if later:
            again = threading.Timer(later[0], self._forget, (later[1:],))
            again.daemon = True
            again.start()

    def _let_go(self) -> None:
        """Release a block that was not read to its end: its removal would wait for its reader without end."""
        block, self._reading = self._reading, None
        if block is not None:
            try:
                self._blocks.releaseLock(block, self._jvm.scala.Option.empty())
            except Exception:
                return  # read to its end; it is not a block of this process

    @contextmanager
    def _watched(self) -> Generator[None]:
        if self._host.place is SettingPlace.REMOTE:  # the blocks are on disks of other machines
            yield
            return
        done = threading.Event()
        found: list[TidemillError] = []
        watch = threading.Thread(target=self._watch, args=(done, found), name="spool-watch", daemon=True)
        watch.start()
        try:
            yield
        except Exception:
            if found:
                raise found[0] from None
            raise
        finally:
            done.set()

    def _watch(self, done: threading.Event, found: list[TidemillError]) -> None:
        folder = Path(self._host.scratch) / "local"
        while not done.wait(LOOK_SECONDS):
            error = _too_much(folder, self._id)
            if error is not None:
                found.append(error)
                self._job.stop_jobs()
                return


def _too_much(folder: Path, rdd: int) -> TidemillError | None:
    size = 0
    for block in folder.glob(f"**/rdd_{rdd}_*"):
        try:
            size += block.stat().st_size
        except OSError:
            continue  # read meanwhile
    if size > SPOOL_LIMIT_BYTES:
        return LimitExceeded(
            f"the result has more than {SPOOL_LIMIT_BYTES >> 30} GB on disk",
            detail="What a query computes is put aside before it is sent, partition by partition.",
            hint="Add a condition or a LIMIT, or write the result to a table and read that.",
        )
    if shutil.disk_usage(folder).free < SPARE_BYTES:
        return Unavailable(
            "the disk is nearly full",
            detail=f"The result has {size >> 20} MB on disk, and {SPARE_BYTES >> 20} MB are left for others.",
            hint="Make room in --scratch-dir, or make the result smaller.",
            sqlstate="53100",
        )
    return None


def _block_manager(jvm: Any, context: Any) -> Any:
    """Through its field: py4j inspects all methods of a class before a call, and some of this class reference
    classes that do not exist."""
    field = jvm.java.lang.Class.forName("org.apache.spark.SparkEnv").getDeclaredField("blockManager")
    field.setAccessible(True)
    return field.get(context._jsc.sc().env())
