"""Commands that set how results are displayed."""

from __future__ import annotations

from tidemill.cli.shell.commands.registry import CommandCall, command
from tidemill.cli.shell.display_settings import all_options, set_option
from tidemill.cli.shell.shell import Shell
from tidemill.cli.shell.variables import truth


def _set(shell: Shell, name: str, value: str | None) -> None:
    told = set_option(shell.look, name, value)
    if not shell.quiet:
        shell.printer.target.write(told + "\n")


def _first(call: CommandCall) -> str | None:
    words = call.words
    return words[0].rstrip(";") if words else None


@command("pset")
def pset(call: CommandCall) -> None:
    words = call.words
    if not words:
        call.shell.printer.target.write("".join(text + "\n" for text in all_options(call.shell.look)))
        return
    _set(call.shell, words[0], words[1] if len(words) > 1 else None)


@command("x")
def expanded(call: CommandCall) -> None:
    _set(call.shell, "expanded", _first(call))


@command("t")
def tuples_only(call: CommandCall) -> None:
    _set(call.shell, "tuples_only", _first(call))


@command("a")
def unaligned(call: CommandCall) -> None:
    _set(call.shell, "format", "aligned" if call.shell.look.format == "unaligned" else "unaligned")


@command("f")
def separator(call: CommandCall) -> None:
    # Taken literally: a semicolon may be the separator.
    words = call.words
    _set(call.shell, "fieldsep", words[0] if words else None)


@command("C")
def title(call: CommandCall) -> None:
    _set(call.shell, "title", _first(call))


@command("timing")
def timing(call: CommandCall) -> None:
    shell, value = call.shell, _first(call)
    shell.timing = not shell.timing if value is None else truth(value, "\\timing")
    if not shell.quiet:
        shell.printer.target.write(f"Timing is {'on' if shell.timing else 'off'}.\n")
