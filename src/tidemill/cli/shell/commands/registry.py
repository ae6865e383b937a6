"""The registry of commands. The modules next to it fill it when they are imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.cli.shell.arguments import arguments
from tidemill.cli.shell.shell import Next, Shell
from tidemill.errors import InvalidValue


@dataclass(frozen=True, slots=True)
class CommandCall:
    """A command as it was typed. `name` has no backslash; `words` are its parsed arguments."""

    shell: Shell
    name: str
    rest: str

    @property
    def words(self) -> list[str]:
        return arguments(self.rest, self.shell.variables.lookup)

    @property
    def pattern(self) -> str:
        """The single argument of a listing command. Quotes are kept; a final semicolon is dropped."""
        words = arguments(self.rest.rstrip("; "), self.shell.variables.lookup, keep_quotes=True)
        return words[0] if words else ""

    def needs(self, count: int) -> list[str]:
        """Raise if there are fewer arguments than this."""
        words = self.words
        if len(words) < count:
            raise InvalidValue(f"\\{self.name}: missing required argument", hint="\\? tells how it is used.")
        return words


# None: continue.
Handler = Callable[[CommandCall], Next | None]
REGISTRY: dict[str, Handler] = {}


def command(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for name in names:
            assert name not in REGISTRY, name
            REGISTRY[name] = handler
        return handler

    return register
