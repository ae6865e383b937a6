"""Queries whose answer must hang on their inputs alone: those that are followed or kept."""

from __future__ import annotations

from tidemill.errors import Unsupported
from tidemill.sql.bind import BoundQuery


def is_steady(bound: BoundQuery) -> bool:
    return not (bound.uses_now or bound.uses_mz_now or bound.uses_chance)


def check_steady(bound: BoundQuery, what: str) -> None:
    """Refuse a query that asks for the time of day or for chance; `what` is where it stands, as in
    `SUBSCRIBE to a query`."""
    if bound.uses_now or bound.uses_mz_now:
        raise Unsupported(
            f"{what} that uses {'mz_now()' if bound.uses_mz_now else 'now()'} is not supported",
            hint="Compare with the time in the client, or write the time into a table.",
        )
    if bound.uses_chance:
        raise Unsupported(
            f"{what} that uses random() or gen_random_uuid() is not supported",
            hint="Write the values into a table, and read them from there.",
        )
