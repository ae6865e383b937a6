"""The library by itself: neither the server, nor Spark, nor a client of Kafka is needed, or loaded."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
for name in ("pyspark", "py4j", "confluent_kafka", "deltalake", "sqlglot", "starlette", "uvicorn", "psycopg"):
    sys.modules[name] = None  # an import of it fails
import pyarrow as pa
from tidemill.cdcv2 import AvroCodec, ColumnRecovery, JsonCodec, Writer
from tidemill.cdcv2 import Progress, UpdateColumns, Updates, recover
from tidemill.cdcv2.survey import Survey
said = [Updates([("a", 1, 1)]), Progress([0], [], [(1, 1)])]
assert list(recover(said)) == [([("a", 1, 1)], [])]
rows = pa.record_batch({"a": [1]})
for codec in (AvroCodec(rows.schema), JsonCodec(rows.schema)):
    recovery = ColumnRecovery(rows.schema)
    batch = Writer(rows.schema, [0]).add(UpdateColumns.of(rows, [1]))
    messages = codec.encode(batch) + codec.encode(said[1])
    released = [r for m in codec.decode(messages) for r in recovery.push(m)]
    assert [u.rows() for u, _ in released] == [[((1,), 1, 1)]]
loaded = {name.split(".")[1] for name in sys.modules if name.startswith("tidemill.")}
print(sorted(loaded))
"""


def test_without_the_server_and_without_spark() -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "['cdcv2', 'errors', 'time', 'types']"
