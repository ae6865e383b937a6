"""The settings that every Spark session of Tidemill starts with, and why each.

Used by `SparkHost` only. What its maker gives it as `conf` wins over what stands here, except where a
promise of the SQL layer hangs on it (`FIXED`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# A quarter of the machine, within these: below 1 GB a shuffle of a few million rows spills at once; above 4
# GB one server hardly gains, and the page cache that holds the parts loses.
MIN_DRIVER_MB, MAX_DRIVER_MB = 1024, 4096

# What one task reads. Small enough that a short query gets a core soon (tasks are not interrupted for one
# another) and that the Arrow form of one result partition stays in the tens of megabytes; large enough that a
# task's own cost does not show.
MAX_PARTITION_BYTES = 16 << 20

# Rows per Arrow batch of a result: at 100 bytes a row about 1.6 MB, so a stream holds little and per-batch
# costs vanish.
RESULT_BATCH_ROWS = 16_384

# The answers of the SQL layer are translated for these; another value would make them silently wrong.
FIXED: dict[str, str] = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # `sql.functions` relies on it: a decimal sum or product keeps its scale and raises when it does not fit.
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.legacy.charVarcharAsString": "true",
    "spark.sql.catalogImplementation": "in-memory",
    # Times before 1900 mean in Parquet what they say: our parts are written by Arrow, proleptic Gregorian.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    # A part that is missing or broken is an error; rows are never left out quietly.
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # Parts carry checksums; a flipped bit is an error, not a value.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
}


def driver_memory_mb() -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    return max(MIN_DRIVER_MB, min(MAX_DRIVER_MB, total // 4))


def cores(master: str) -> int:
    """How many tasks run at once, as far as the master's name tells."""
    if master.startswith("local[") and master[6:-1].split(",")[0].isdigit():
        return int(master[6:-1].split(",")[0])
    return 1 if master == "local" else os.cpu_count() or 2


def spark_conf(
    master: str, scratch: Path, socket_dir: Path, driver_mb: int | None, extra: Mapping[str, str]
) -> dict[str, str]:
    """All settings of the session. `scratch` is a folder of ours for shuffle files and temporary ones."""
    local = master.startswith("local")
    conf = {
        "spark.master": master,
        "spark.app.name": "tidemill",
        "spark.driver.memory": f"{driver_mb or driver_memory_mb()}m",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": (
            f"-Djava.io.tmpdir={scratch / 'tmp'} -Duser.timezone=UTC -XX:+UseParallelGC"
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # TCP between JVM and Python costs about 45 ms a stage in delayed acknowledgements; Unix sockets none.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(socket_dir),
        "spark.python.worker.reuse": "true",
        # Each running query has a pool of its own, so that a short one is not stuck behind a long one.
        "spark.scheduler.mode": "FAIR",
        # Many and small to begin with; adaptive planning joins them to pieces of this size, so that no
        # partition of a sorted result is half of it.
        "spark.sql.shuffle.partitions": str(8 * cores(master)) if local else "200",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": str(MAX_PARTITION_BYTES),
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
        "spark.default.parallelism": str(max(2, cores(master))) if local else "64",
        # The list of parts is ours: beyond 32 files Spark would look for them with a job.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
        # Shuffle files go when the driver's heap is collected; an idle server must not wait half an hour for
        # that.
        "spark.cleaner.periodicGC.interval": "5min",
        "spark.sql.files.maxPartitionBytes": str(MAX_PARTITION_BYTES),
        "spark.sql.files.openCostInBytes": str(1 << 20),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(RESULT_BATCH_ROWS),
        # The generated classes of a plan; a server repeats its queries.
        "spark.sql.codegen.cache.maxEntries": "1000",
        # What the driver remembers of past jobs is for a UI that is off.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "500",
        "spark.sql.ui.retainedExecutions": "10",
        "spark.sql.debug.maxToStringFields": "25",
    }
    if local:
        conf["spark.driver.host"] = "127.0.0.1"
        conf["spark.driver.bindAddress"] = "127.0.0.1"
    conf.update(extra)
    conf.update(FIXED)
    return conf


LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {folder}/spark.log
appender.file.filePattern = {folder}/spark.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
# Errors of queries reach their client; a stack trace here for every failed task would hide what matters.
logger.task.name = org.apache.spark.executor.Executor
logger.task.level = off
logger.set.name = org.apache.spark.scheduler.TaskSetManager
logger.set.level = off
"""
