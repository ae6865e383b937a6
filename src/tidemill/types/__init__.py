"""SQL types: their model, names, row identity, and forms in Arrow, Delta, Spark and the PostgreSQL wire.

See `model` for the types, `parse_name` for their names, and `identity` for the equality of rows. All layers
use this package; it calls none of them. Spark is imported only by the functions that return Spark objects.
"""

from tidemill.types.arrow import arrow_schema, arrow_type, shard_schema, storage_schema
from tidemill.types.delta import delta_schema_string, delta_type, relation_of
from tidemill.types.identity import canonical, consolidate, row_hash
from tidemill.types.model import Column, Kind, RelationDesc, SqlType, type_name
from tidemill.types.names import physical_names
from tidemill.types.parse_name import parse_type
from tidemill.types.spark import spark_schema, spark_type

__all__ = [
    "Column",
    "Kind",
    "RelationDesc",
    "SqlType",
    "arrow_schema",
    "arrow_type",
    "canonical",
    "consolidate",
    "delta_schema_string",
    "delta_type",
    "parse_type",
    "physical_names",
    "relation_of",
    "row_hash",
    "shard_schema",
    "spark_schema",
    "spark_type",
    "storage_schema",
    "type_name",
]
