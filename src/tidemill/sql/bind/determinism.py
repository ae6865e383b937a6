"""The dependencies of a query's result other than the rows that it reads.

The binder records every function with such a dependency (`Context.depends_on`): the clock, the time of the
read, randomness, or the current session. PostgreSQL calls these functions stable (the same result within a
statement) or volatile (another one each time); all others are immutable. `BoundQuery.determinism` holds the
recorded functions. Materialized views and subscriptions refuse those whose result they cannot keep, by name.

The session's time zone is recorded but never refused: code that keeps a result fixes the time zone (views use
UTC).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tidemill.errors import Unsupported


class Dependence(Enum):
    CLOCK = "the time of day"
    READ_TIME = "the time that is read at"
    CHANCE = "chance"
    SESSION = "the session"
    TIME_ZONE = "the session's time zone"


_HINTS = {
    Dependence.CLOCK: "Compare with the time in the client, or write the time into a table.",
    Dependence.READ_TIME: "Compare with the time in the client, or write the time into a table.",
    Dependence.CHANCE: "Write the values into a table, and read them from there.",
    Dependence.SESSION: "Use a view, or ask in the query that reads the materialized view.",
}
_DETAILS = {Dependence.SESSION: "It is kept for all sessions alike."}


@dataclass(frozen=True, slots=True)
class Determinism:
    """`found`: the functions that the query uses, as written (`current_user`, `now()`), and their
    dependencies."""

    found: Mapping[str, Dependence] = field(default_factory=dict[str, Dependence])

    def on(self, *dependences: Dependence) -> str | None:
        """The first function that depends on one of these; None if the query uses none."""
        if not self.found:  # checked with every execution
            return None
        return next((name for name, on in self.found.items() if on in dependences), None)

    @property
    def within_session(self) -> bool:
        """Whether the same rows give the same result as long as the session does not change."""
        return self.on(Dependence.CLOCK, Dependence.READ_TIME, Dependence.CHANCE) is None

    def check_within_session(self, what: str) -> None:
        """Raise an error if the result can change although the inputs do not change. `what` is the context,
        as in `SUBSCRIBE to a query`."""
        self._refuse(what, Dependence.READ_TIME, Dependence.CLOCK, Dependence.CHANCE)

    def check_everywhere(self, what: str) -> None:
        """Raise an error if the result depends on anything but the inputs."""
        self.check_within_session(what)
        self._refuse(what, Dependence.SESSION)

    def _refuse(self, what: str, *dependences: Dependence) -> None:
        for dependence in dependences:
            used = self.on(dependence)
            if used is not None:
                raise Unsupported(
                    f"{what} that uses {used} is not supported",
                    detail=_DETAILS.get(dependence),
                    hint=_HINTS[dependence],
                )


# A query whose result depends only on its inputs.
DETERMINED = Determinism()
