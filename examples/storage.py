"""Sources and tables without SQL: Tidemill as a library, through its storage interface.

python examples/storage.py some/folder
"""

from __future__ import annotations

import sys

import pyarrow as pa

from tidemill.catalog.items import DEFAULT_DATABASE, DEFAULT_SCHEMA
from tidemill.catalog.ops import CreateTableOp
from tidemill.catalog.store import Catalog
from tidemill.ingest.runner import LocalRunner
from tidemill.ingest.service import Ingestion
from tidemill.ingest.storage import CollectionType, SourceDescription, Storage, StorageCollectionId
from tidemill.persist.environment import Environment
from tidemill.sources.generators.definition import normalise
from tidemill.types.model import INT8, TEXT, Column, RelationDesc

folder = sys.argv[1]
environment = Environment.open(folder)
catalog = Catalog.open(environment)
# LocalRunner reads the sources in this process; SparkRunner(SparkHost("local[*]"), ...) does it on Spark.
ingestion = Ingestion(environment, catalog, LocalRunner(f"{folder}-state"))
storage = Storage(environment, catalog, ingestion)
schema = catalog.state.resolve_schema([DEFAULT_SCHEMA], DEFAULT_DATABASE).id

# A source: the numbers from 1 to 1,000, all of them due at once.
definition = normalise("COUNTER", {"TICK INTERVAL": 1, "UP TO": 1000}, started=environment.oracle.now())
(counter,) = storage.create_sources([SourceDescription(schema, "counter", definition, sql="")])
source = catalog.state.sources()[0]
ingestion.wait_readable(source, 0, timeout=60)

# What it holds, and by which bindings, at any time from since to upper. A binding's number of records is in
# its diff: the sum of all until a time is how far the source has been read at that time.
numbers = storage.render(StorageCollectionId(counter))
with numbers.snapshot(numbers.upper - 1) as snapshot:
    print("rows:", snapshot.read(["counter"]).num_rows)
bindings = storage.render(StorageCollectionId(counter, CollectionType.REMAPPING))
with bindings.snapshot(bindings.upper - 1) as snapshot:
    print("records read:", sum(snapshot.read()["mz_diff"].to_pylist()))

# A table, and a write to it. All tables of one insert get it at one time.
columns = RelationDesc((Column("name", TEXT, nullable=False), Column("n", INT8)))
state = catalog.transact([CreateTableOp(schema, "people", columns)])
people = state.tables()[0].id
rows = pa.table({"name": ["anna", "bruno"], "n": pa.array([1, 2]), "mz_diff": pa.array([1, 1])})
time = storage.insert({people: rows})
with storage.render(StorageCollectionId(people)).snapshot(time) as snapshot:
    print("people:", snapshot.read(["name"])["name"].to_pylist())

# How far each is durable and final, and letting the past go.
print("the insert is durable:", storage.durability_frontier_updates()[people] > time)
before = numbers.since
ingestion.wait_readable(source, before + 1, timeout=60)  # it is never less than one time that can be read
storage.allow_compaction({counter: numbers.upper - 1})
print("the past may go:", numbers.since > before)

ingestion.stop()
environment.close()
