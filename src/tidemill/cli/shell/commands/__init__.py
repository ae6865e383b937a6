"""The backslash commands. Each group has a module; importing it registers its commands."""

from __future__ import annotations

from tidemill.cli.shell.commands import buffer, connection, describe, display, files, general
from tidemill.cli.shell.commands.registry import REGISTRY, CommandCall
from tidemill.cli.shell.shell import Next, Shell
from tidemill.cli.shell.splitter import Command
from tidemill.errors import UndefinedObject

__all__ = ["REGISTRY", "run"]
_GROUPS = (buffer, connection, describe, display, files, general)


def run(shell: Shell, command: Command) -> Next:
    """Run the command. The shell reports what it raises."""
    handler = REGISTRY.get(command.name)
    if handler is None:
        handler = describe.handler_of(command.name)
    if handler is None:
        raise UndefinedObject(f"invalid command \\{command.name}", hint="Try \\? for help.")
    return handler(CommandCall(shell, command.name, command.rest)) or Next.GO_ON
