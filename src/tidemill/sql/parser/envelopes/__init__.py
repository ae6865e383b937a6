"""ENVELOPE: the syntax of each kind.

A kind is one file here, with the dataclass of its clause, its parser and its options' text, and a line in
`ENVELOPES`. CONTRIBUTING.md has the complete recipe for an envelope.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.sql.ast import Envelope
from tidemill.sql.parser.cursor import TokenCursor
from tidemill.sql.parser.envelopes.debezium import parse_debezium
from tidemill.sql.parser.envelopes.debezium_upsert import parse_debezium_upsert
from tidemill.sql.parser.envelopes.materialize import parse_materialize
from tidemill.sql.parser.envelopes.none import parse_none
from tidemill.sql.parser.envelopes.upsert import parse_upsert
from tidemill.sql.parser.named_options import refuse_kind, spelled

# The words after ENVELOPE, and the parser of the rest; of two with a common start the longer is first.
ENVELOPES: dict[tuple[str, ...], Callable[[TokenCursor, int], Envelope]] = {
    ("none",): parse_none,
    ("upsert",): parse_upsert,
    ("debezium", "upsert"): parse_debezium_upsert,
    ("debezium",): parse_debezium,
    ("materialize",): parse_materialize,
}
# What a hint adds to the words.
_ALSO: dict[tuple[str, ...], str] = {("materialize",): " (CDCv2)"}


def envelope(cursor: TokenCursor) -> Envelope:
    """ENVELOPE kind [(options)]"""
    cursor.expect("envelope")
    offset = cursor.offset
    for words, parser in ENVELOPES.items():
        if cursor.accept(*words):
            return parser(cursor, offset)
    shown = [f"ENVELOPE {spelled(words)}{_ALSO.get(words, '')}" for words in ENVELOPES]
    hint = f"Use {', '.join(shown[:-1])} or {shown[-1]}."
    raise refuse_kind(cursor, "envelope", "ENVELOPE", hint, (), ENVELOPES)
