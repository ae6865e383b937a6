"""The settings of every Spark session of Tidemill, with the reason for each.

Used by `SparkHost`. Its `conf` argument overrides these settings, except those that a promise of the SQL
layer depends on (`FIXED`). Overriding one of those is refused.

About half of them depend on where the executors run (`place`): folders, addresses and sockets of this machine
are meaningless on another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

from tidemill.config import LOCAL_CLUSTER, LOCAL_MASTER, ConfigError

# A quarter of the machine, within these: below 1 GB a shuffle of a few million rows spills at once; above 4
# GB one server hardly gains, and the page cache that holds the parts loses.
MIN_DRIVER_MB, MAX_DRIVER_MB = 1024, 4096

# What one task reads. Small enough that a short query gets a core soon (tasks are not preempted) and that the
# Arrow form of one result partition stays in the tens of megabytes; large enough that a task's overhead is
# negligible.
MAX_PARTITION_BYTES = 16 << 20

# Rows per Arrow batch of a result: at 100 bytes a row about 1.6 MB, so a stream holds little and per-batch
# costs vanish.
RESULT_BATCH_ROWS = 16_384

# A task's result up to this size is passed inside the JVM. A larger one would use the block manager, which
# may lose it when memory is short: then a query over millions of rows fails on a busy machine. Several times
# the size of a result partition.
DIRECT_RESULT_BYTES = 8 * MAX_PARTITION_BYTES

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
    # Times before 1900 in Parquet are read unchanged: our parts are written by Arrow, proleptic Gregorian.
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


class SettingPlace(Enum):
    """Where Spark's tasks run."""

    ONE_JVM = "in the driver's process"
    THIS_MACHINE = "in processes beside the driver"
    REMOTE = "on whatever machines the master names"


def place(master: str) -> SettingPlace:
    if LOCAL_MASTER.fullmatch(master):
        return SettingPlace.ONE_JVM
    return SettingPlace.THIS_MACHINE if LOCAL_CLUSTER.fullmatch(master) else SettingPlace.REMOTE


def cores(master: str) -> int:
    """How many tasks run at once, as far as the master's name shows; `SparkHost.cores` has more for a remote
    one."""
    local = LOCAL_MASTER.fullmatch(master)
    if local:
        here = os.cpu_count() or 2
        return 1 if local[1] is None else here if local[1] == "*" else int(local[1])
    cluster = LOCAL_CLUSTER.fullmatch(master)
    return int(cluster[1]) * int(cluster[2]) if cluster else 2


# Settings of Spark that are settings of Tidemill, and by which name.
_OURS = {"spark.master": "--spark-master", "spark.driver.memory": "--spark-driver-memory"}
# Our options precede those given for these settings, instead of being replaced by them.
_JOINED = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")


def refuse_fixed(extra: Mapping[str, str]) -> None:
    """Raises ConfigError for a setting that the caller may not override."""
    for key, value in extra.items():
        if key in _OURS:
            raise ConfigError(f"{key} is not to be set by --spark-conf", hint=f"Use {_OURS[key]}.")
        fixed = FIXED.get(key)
        if fixed is not None and fixed != value:
            raise ConfigError(
                f"{key} cannot be set to {value}: Tidemill needs {fixed}",
                detail="The answers of queries are translated for that value; another would make them wrong.",
                hint="Leave it out of --spark-conf.",
            )


def spark_conf(
    master: str,
    scratch: Path,
    socket_dir: Path,
    driver_mb: int | None,
    extra: Mapping[str, str],
    archive: str = "",
) -> dict[str, str]:
    """All settings of the session. `scratch` is a folder of ours for shuffle files and temporary ones,
    `socket_dir` one with a short path. `archive` is the option that names an archive of classes, if there is
    one; `scratch/conf` is not on the class path then."""
    refuse_fixed(extra)
    where = place(master)
    conf = {
        "spark.master": master,
        "spark.app.name": "tidemill",
        "spark.driver.memory": f"{driver_mb or driver_memory_mb()}m",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": " ".join(
            (
                _java_options(where, scratch, socket_dir),
                "-XX:+UseParallelGC",
                # The thread that runs out of memory may be one that all others wait for, without end. A
                # dead JVM is detected, reported and replaced. Where tasks run in it, the thread is nearly
                # always a task's: a task may fail alone (`out_of_memory`).
                *([] if where is SettingPlace.ONE_JVM else ["-XX:+ExitOnOutOfMemoryError"]),
                *LATE_COMPILATION,
                *([archive, LOG4J_OPTION.format(folder=scratch)] if archive else []),
            )
        ),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # TCP between JVM and Python costs about 45 ms a stage in delayed acknowledgements; Unix sockets none.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.worker.reuse": "true",
        # Each running query has a separate pool, so that a short one is not stuck behind a long one.
        "spark.scheduler.mode": "FAIR",
        # Many and small to begin with; adaptive planning joins them to pieces of this size, so that no
        # partition of a sorted result is half of it.
        "spark.sql.shuffle.partitions": "200" if where is SettingPlace.REMOTE else str(8 * cores(master)),
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": str(MAX_PARTITION_BYTES),
        "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
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
        # The driver's records of past jobs serve a UI that is off.
        "spark.ui.retainedJobs": "50",
        "spark.ui.retainedStages": "50",
        "spark.ui.retainedTasks": "500",
        "spark.sql.ui.retainedExecutions": "10",
        "spark.sql.debug.maxToStringFields": "25",
    }
    if where is not SettingPlace.REMOTE:
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(scratch / "local"),
            "spark.python.unix.domain.socket.dir": str(socket_dir),
            # Without it Spark counts its current cores, which is right where executors join and leave.
            "spark.default.parallelism": str(max(2, cores(master))),
        }
    if where is SettingPlace.ONE_JVM:
        conf["spark.task.maxDirectResultSize"] = str(DIRECT_RESULT_BYTES)
        conf["spark.rpc.message.maxSize"] = str(2 * DIRECT_RESULT_BYTES >> 20)
        # A task that gets no memory fails alone; Spark would end the process.
        conf["spark.executor.killOnFatalError.depth"] = "0"
    else:
        conf |= EXECUTORS
        conf["spark.executor.extraJavaOptions"] = "-Duser.timezone=UTC"
    cluster = LOCAL_CLUSTER.fullmatch(master)
    if cluster:
        conf["spark.executor.memory"] = f"{cluster[3]}m"
        log = (scratch / "conf" / EXECUTOR_LOG4J_FILE).as_uri()
        conf["spark.executor.extraJavaOptions"] += f" -Dlog4j2.configurationFile={log}"
    joined = {key: f"{conf[key]} {extra[key]}" for key in _JOINED if key in conf and key in extra}
    return conf | dict(extra) | joined | FIXED


# Java's second compiler makes a method fast at the cost of some 10 to 100 ms of a core. By default it
# compiles methods that were called 5,000 times: in the first minutes of a server those are thousands, and
# half of the JVM's work in a catch-up. At ten times that it compiles what is really hot; loops over rows
# reach it in milliseconds.
LATE_COMPILATION = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)


def _java_options(where: SettingPlace, scratch: Path, socket_dir: Path) -> str:
    """Of the driver. Where no folder is named for Unix sockets, because executors on other machines have no
    such folder, they lie in each process's temporary one: the driver's must have a short path then."""
    temporary = socket_dir if where is SettingPlace.REMOTE else scratch / "tmp"
    return f"-Djava.io.tmpdir={temporary} -Duser.timezone=UTC"


# Executors in separate processes can die alone, and the others should continue soon.
EXECUTORS: dict[str, str] = {
    # A larger block of a result (`spool`) is transferred as a file, not through the driver's heap.
    "spark.network.maxRemoteBlockSizeFetchToMem": str(MAX_PARTITION_BYTES),
    # Any free core is better than waiting for one near the data: a tick has a second for everything.
    "spark.locality.wait": "0s",
    # A machine that vanishes without a word is given up after a minute. (The end of a process is seen at
    # once.)
    "spark.executor.heartbeatInterval": "5s",
    "spark.network.timeout": "60s",
    "spark.network.timeoutInterval": "10s",
    # How long a shuffle waits before it retries an executor that does not answer, three times.
    "spark.shuffle.io.retryWait": "1s",
    # The master gives up an application whose executors die one after the other; a server outlives that.
    "spark.deploy.maxExecutorRetries": "-1",
}

EXECUTOR_LOG4J_FILE = "executor-log4j2.properties"
# Of executors beside the driver: to their standard error, which Spark keeps in a folder of each.
EXECUTOR_LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS} %p %c{1}: %m%n%ex
logger.task.name = org.apache.spark.executor.Executor
logger.task.level = off
"""

# Names the file of `LOG4J` where its folder is not on the class path.
LOG4J_OPTION = '"-Dlog4j2.configurationFile={folder}/conf/log4j2.properties"'

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
