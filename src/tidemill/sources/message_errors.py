"""Errors about one message of a topic: how their detail names the message, and what to do about them.

Called by `query` and `subscribe`, whose statements fail with such an error, and by the system relations about
sources. `sources.kafka.messages` and `sources.pubnub.rows` write the detail; a view over such a relation
passes the error on with it. Errors of the view's own query, and of CDCv2 streams, which have no dead letters,
have no detail of this form.
"""

from __future__ import annotations

import re

# The end of a detail of `sources.kafka.messages` and `sources.pubnub.rows`.
PARTITION_AND_OFFSET = re.compile(r"(?:partition|region) (\d+), (?:offset|timetoken) (\d+)\.")
_OF = ('Topic "', 'Channel "')

LISTED_HINT = "SELECT * FROM mz_internal.mz_source_errors lists what could not be read."
BAD_MESSAGES_HINT = (
    f"{LISTED_HINT} ON ERROR DEAD LETTER of a Kafka or PubNub source, or of a table of one, puts such "
    "messages aside."
)


def hint_of(detail: str | None) -> str | None:
    """The hint for readers of a relation with this error; None if the error is not about a message of a
    topic or a channel."""
    if detail is None or not detail.startswith(_OF) or PARTITION_AND_OFFSET.search(detail) is None:
        return None
    return BAD_MESSAGES_HINT
