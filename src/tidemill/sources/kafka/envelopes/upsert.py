"""ENVELOPE UPSERT: a record is the row of its key; a record without a value deletes it."""

from __future__ import annotations

from typing import ClassVar

from tidemill.sources.kafka.layout import EnvelopeLayout


class UpsertLayout(EnvelopeLayout):
    name: ClassVar[str] = "upsert"
