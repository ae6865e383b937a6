"""ENVELOPE NONE: each record is a row, except records with neither key nor value."""

from __future__ import annotations

from typing import ClassVar

from tidemill.sources.kafka.layout import EnvelopeLayout


class NoEnvelopeLayout(EnvelopeLayout):
    name: ClassVar[str] = "none"
    keyed: ClassVar[bool] = False
