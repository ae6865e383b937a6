"""Spark Structured Streaming with a Delta MERGE in foreachBatch, the way it is commonly written.

Runs in an environment of its own, which has delta-spark: `spark_delta.py BOOTSTRAP TOPIC OUT JARS
MEMORY_MB BATCH`, where BATCH is how many messages one batch has at most. Prints one line of JSON with the
seconds from the start of the query to its end (trigger availableNow: all that is in the topic now). Then
writes the table to OUT as lines of JSON. The session is warm when the clock starts: a small MERGE has run
on another table.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

CORES = 2
COLUMNS = "id BIGINT, name STRING, amount DOUBLE, state BIGINT, at BIGINT, n BIGINT, note STRING"
MERGE = """
    MERGE INTO delta.`{table}` AS t USING changes AS c ON t.key = c.key
    WHEN MATCHED AND c.value IS NULL THEN DELETE
    WHEN MATCHED THEN UPDATE SET t.id = c.v.id, t.name = c.v.name, t.amount = c.v.amount, t.state = c.v.state,
        t.at = c.v.at, t.n = c.v.n, t.note = c.v.note
    WHEN NOT MATCHED AND c.value IS NOT NULL THEN INSERT (key, id, name, amount, state, at, n, note)
        VALUES (c.key, c.v.id, c.v.name, c.v.amount, c.v.state, c.v.at, c.v.n, c.v.note)
"""


def merge(table: str, batch: DataFrame) -> None:
    """The last message of each key of the batch, into the table."""
    batch.createOrReplaceTempView("batch")
    session = batch.sparkSession
    session.sql(
        f"""
        SELECT key, l.value AS value, from_json(l.value, '{COLUMNS}') AS v FROM (
            SELECT CAST(key AS STRING) AS key,
                   max_by(struct(CAST(value AS STRING) AS value), struct(partition, offset)) AS l
            FROM batch GROUP BY 1)
        """
    ).createOrReplaceTempView("changes")
    session.sql(MERGE.format(table=table))


def main(bootstrap: str, topic: str, out: str, jars: str, memory_mb: str, batch: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    work = Path(out).parent
    given = ",".join(str(jar) for jar in sorted(Path(jars).glob("*.jar")))
    builder: Any = SparkSession.builder
    session: SparkSession = (
        builder.master(f"local[{CORES}]")
        .config("spark.jars", given)
        .config("spark.driver.memory", f"{memory_mb}m")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        # Its default of 50 is for large machines: on two cores it only costs.
        .config("spark.databricks.delta.snapshotPartitions", str(CORES))
        .config("spark.local.dir", str(work / "tmp"))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.sql.shuffle.partitions", str(2 * CORES))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    tables = {name: str(work / name) for name in ("warm", "result")}
    for table in tables.values():
        session.sql(f"CREATE TABLE delta.`{table}` (key STRING, {COLUMNS}) USING DELTA")
    few = session.sql(
        "SELECT CAST(id AS STRING) AS key, '{}' AS value, 0 AS partition, id AS offset FROM range(1000)"
    )
    for _ in range(2):
        merge(tables["warm"], few)

    def each(changes: DataFrame, number: int) -> None:
        merge(tables["result"], changes)

    messages = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch)
        .load()
    )
    began = time.monotonic()
    query = (
        messages.writeStream.foreachBatch(each)
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print(json.dumps({"seconds": time.monotonic() - began}), flush=True)
    session.read.format("delta").load(tables["result"]).write.json(out)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
