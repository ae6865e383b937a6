"""Stack: programs in one folder that are started and stopped together.

Base of `kafka_stack` and `postgres_stack`, which `tidemill dev` runs. The programs start in the order of
their dependencies and stop in reverse order. If one fails to start, those already started are stopped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tidemill.dev.jars import Progress
from tidemill.dev.process import LocalProgram, must_be_free


class Stack(ABC):
    """With the same folder and ports, everything is as before the last end. `ports` must be free."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)

    @property
    @abstractmethod
    def programs(self) -> list[LocalProgram]:
        """The programs in the order in which they start."""

    @abstractmethod
    def introduction(self) -> list[str]:
        """What a person is told when everything runs, as lines: addresses, and the statements to type."""

    def start(self, tell: Progress) -> None:
        must_be_free(*self._ports)
        self._fetch(tell)
        try:
            for program in self.programs:
                tell(f"starting {program.name}")
                program.start()
            self._prepare(tell)
        except BaseException:
            self.stop()
            raise

    def _fetch(self, tell: Progress) -> None:  # noqa: B027 - most programs are installed
        """Download what is missing."""

    def _prepare(self, tell: Progress) -> None:  # noqa: B027 - optional
        """Called when all programs run."""

    def stop(self) -> None:
        for program in reversed(self.programs):
            program.stop()

    def check(self) -> None:
        """Raise an error with the end of its log if one of the programs has ended."""
        for program in self.programs:
            program.check()


def addressed(addresses: dict[str, str]) -> list[str]:
    """Names and addresses as lines, in two columns."""
    width = max(map(len, addresses)) + 2
    return [f"{name:{width}}{address}" for name, address in addresses.items()]


def indented(statements: Sequence[str]) -> list[str]:
    """Statements as lines."""
    return [f"  {line}" for statement in statements for line in statement.splitlines()]
