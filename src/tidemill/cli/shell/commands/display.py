"""How results are shown."""

from __future__ import annotations

from tidemill.cli.shell.commands.registry import Call, command
from tidemill.cli.shell.look import all_options, set_option
from tidemill.cli.shell.shell import Shell
from tidemill.cli.shell.variables import truth


def _set(shell: Shell, name: str, value: str | None) -> None:
    told = set_option(shell.look, name, value)
    if not shell.quiet:
        shell.printer.target.write(told + "\n")


def _first(call: Call) -> str | None:
    words = call.words
    return words[0].rstrip(";") if words else None


@command("pset")
def pset(call: Call) -> None:
    words = call.words
    if not words:
        call.shell.printer.target.write("".join(text + "\n" for text in all_options(call.shell.look)))
        return
    _set(call.shell, words[0], words[1] if len(words) > 1 else None)


@command("x")
def expanded(call: Call) -> None:
    _set(call.shell, "expanded", _first(call))


@command("t")
def tuples_only(call: Call) -> None:
    _set(call.shell, "tuples_only", _first(call))


@command("a")
def unaligned(call: Call) -> None:
    _set(call.shell, "format", "aligned" if call.shell.look.format == "unaligned" else "unaligned")


@command("f")
def separator(call: Call) -> None:
    # As it stands: a semicolon is a separator that people want.
    words = call.words
    _set(call.shell, "fieldsep", words[0] if words else None)


@command("C")
def title(call: Call) -> None:
    _set(call.shell, "title", _first(call))


@command("timing")
def timing(call: Call) -> None:
    shell, value = call.shell, _first(call)
    shell.timing = not shell.timing if value is None else truth(value, "\\timing")
    if not shell.quiet:
        shell.printer.target.write(f"Timing is {'on' if shell.timing else 'off'}.\n")
