"""Gauge and outputs of a Kinesis source. Called by `source`, and by the engine when one is made."""

from __future__ import annotations

from tidemill.sources.contract import Gauge
from tidemill.types.model import TEXT, Column

# The gauge counts the records of a shard. What it shows is the sequence number of the last one, under which
# the binding is stored: it has 56 digits, more than any type of numbers.
GAUGE = Gauge(
    Column("sequence_number", TEXT),
    Column("shard_id", TEXT, nullable=False),
    Column("mz_sequence_number", TEXT),
)
# What INCLUDE calls the fields that a topic has by other names.
INCLUDED = {"partition": "shard_id", "offset": "sequence_number"}
