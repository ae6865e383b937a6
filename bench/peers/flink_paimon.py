"""Flink SQL: `upsert-kafka` into a Paimon table with a primary key.

Runs in an environment of its own, which has apache-flink: `flink_paimon.py BOOTSTRAP TOPIC OUT JARS
MEMORY_MB`. Prints one line of JSON with the seconds from the running job to its end: the source is bounded
by where the topic ends now, and the job ends with its last commit to the table. Then writes the table to
OUT as lines of JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# Two cores, as ours has.
PARALLELISM = 2
CHECKPOINT = "1 s"
POLL_SECONDS = 0.02
COLUMNS = "id BIGINT, name STRING, amount DOUBLE, state BIGINT, `at` BIGINT, n BIGINT, note STRING"


def main(bootstrap: str, topic: str, out: str, jars: str, memory_mb: str) -> None:
    work = Path(out).parent
    # Both are read when the JVM starts. A quarter of the memory is RocksDB's, outside of the heap.
    os.environ["JVM_ARGS"] = f"-Xmx{int(memory_mb) * 3 // 4}m"
    os.environ["HADOOP_CLASSPATH"] = f"{jars}/*"
    table: Any = importlib.import_module("pyflink.table")
    settings = {
        "parallelism.default": str(PARALLELISM),
        "execution.checkpointing.interval": CHECKPOINT,
        "execution.checkpointing.dir": f"file://{work}/checkpoints",
        "state.backend.type": "rocksdb",
        "taskmanager.memory.managed.size": f"{int(memory_mb) // 4}m",
        "taskmanager.numberOfTaskSlots": str(PARALLELISM),
        "io.tmp.dirs": f"{work}/tmp",
    }
    environment = table.TableEnvironment.create(table.EnvironmentSettings.in_streaming_mode())
    for name, value in settings.items():
        environment.get_config().set(name, value)
    environment.execute_sql(
        f"CREATE TABLE topic (`key` STRING, {COLUMNS}, PRIMARY KEY (`key`) NOT ENFORCED) WITH ("
        f"'connector' = 'upsert-kafka', 'topic' = '{topic}', 'properties.bootstrap.servers' = '{bootstrap}',"
        "'key.format' = 'raw', 'value.format' = 'json', 'value.fields-include' = 'EXCEPT_KEY',"
        "'scan.bounded.mode' = 'latest-offset', 'properties.group.id' = 'flink')"
    )
    lake = f"CREATE CATALOG lake WITH ('type' = 'paimon', 'warehouse' = 'file://{work}/lake')"
    environment.execute_sql(lake)
    environment.execute_sql(
        f"CREATE TABLE lake.`default`.kept (`key` STRING, {COLUMNS}, PRIMARY KEY (`key`) NOT ENFORCED)"
        f" WITH ('bucket' = '{PARALLELISM}')"
    )
    job = environment.execute_sql("INSERT INTO lake.`default`.kept SELECT * FROM topic").get_job_client()
    began = None
    while True:
        try:
            status = str(job.get_job_status().result()).rsplit(".", 1)[-1]
        except Exception as e:
            # The cluster in this process ends with its job, sometimes before it was asked. Whether the job
            # went well is told by what it left, which is compared.
            if began is None or "MiniCluster" not in str(e):
                raise
            break
        if began is None and status in ("RUNNING", "FINISHED"):
            began = time.monotonic()
        if status == "FINISHED":
            break
        if status in ("FAILED", "CANCELED"):
            raise SystemExit(f"the job ended as {status}: {job.get_job_execution_result().result()}")
        time.sleep(POLL_SECONDS)
    assert began is not None
    print(json.dumps({"seconds": time.monotonic() - began}), flush=True)

    # An environment is of one mode for good.
    environment = table.TableEnvironment.create(table.EnvironmentSettings.in_batch_mode())
    environment.execute_sql(lake)
    environment.execute_sql(
        f"CREATE TABLE dump (`key` STRING, {COLUMNS}) WITH ("
        f"'connector' = 'filesystem', 'path' = 'file://{out}', 'format' = 'json')"
    )
    environment.execute_sql("INSERT INTO dump SELECT * FROM lake.`default`.kept").wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
